"""The core needs the standard library only, and gives the same bytes without its faster helpers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from abaton import records

CODE = """
import sys
if {block}:
    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("numpy", "orjson", "pydantic", "polars"):
                raise ImportError(name)
    sys.meta_path.insert(0, Block())
from abaton.records import Deidentifier, Need, Pseudonyms, dump, parse
raw = '''{{"resourceType":"Bundle","id":"b","type":"collection","entry":[
  {{"fullUrl":"urn:uuid:1","resource":{{"resourceType":"Patient","id":"p","birthDate":"1980-02-03","gender":"female",
    "name":[{{"family":"M\\u00fcller"}}]}}}},
  {{"resource":{{"resourceType":"Observation","id":"o","status":"final","subject":{{"reference":"urn:uuid:1"}},
    "code":{{"coding":[{{"system":"http://loinc.org","code":"8310-5","display":"x"}}]}},
    "valueQuantity":{{"value":0.0000123,"unit":"mg/dL"}},"component":[{{"code":{{"text":"x"}},"valueQuantity":{{"value":1e22}}}}]}}}}
]}}'''.encode()
make = Deidentifier(Need("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
made = make.plain(parse(raw))
sys.stdout.buffer.write(dump(made))
print(sorted(m for m in ("numpy", "pydantic", "polars") if m in sys.modules), file=sys.stderr)
"""


def test_fhir_itself_knows_nothing_of_deidentification():
    folder = Path(records.__file__).parent / "fhir"
    files = sorted(folder.glob("*.py"))
    assert len(files) > 8
    for path in files:
        assert "abaton.deid" not in path.read_text(), path.name


def output(*, block: bool) -> bytes:
    done = subprocess.run([sys.executable, "-c", CODE.format(block=block)], capture_output=True, check=True)
    assert done.stderr == b"[]\n"
    return done.stdout


def test_with_and_without_helpers_the_bytes_are_the_same():
    made = output(block=False)
    assert b"1980" in made
    assert output(block=True) == made
