"""De-identification needs the standard library only, and gives the same bytes without optional libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import abaton

CODE = """
import sys
if {block}:
    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("numpy", "orjson", "pydantic", "polars"):
                raise ImportError(name)
    sys.meta_path.insert(0, Block())
from abaton.deid import DataRequest, Deidentifier, Pseudonyms
from abaton.fhir.json_format import dump, parse
raw = '''{{"resourceType":"Bundle","id":"b","type":"collection","entry":[
  {{"fullUrl":"urn:uuid:1","resource":{{"resourceType":"Patient","id":"p","birthDate":"1980-02-03","gender":"female",
    "name":[{{"family":"M\\u00fcller"}}]}}}},
  {{"resource":{{"resourceType":"Observation","id":"o","status":"final","subject":{{"reference":"urn:uuid:1"}},
    "code":{{"coding":[{{"system":"http://loinc.org","code":"8310-5","display":"x"}}]}},
    "valueQuantity":{{"value":0.0000123,"unit":"mg/dL"}},"component":[{{"code":{{"text":"x"}},"valueQuantity":{{"value":1e22}}}}]}}}}
]}}'''.encode()
make = Deidentifier(DataRequest("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
sys.stdout.buffer.write(dump(make.deidentify_content(parse(raw))))
print(sorted(m for m in ("numpy", "pydantic", "polars") if m in sys.modules), file=sys.stderr)
"""


def test_fhir_does_not_import_deidentification():
    folder = Path(abaton.__file__).parent / "fhir"
    files = sorted(folder.glob("*.py"))
    assert len(files) > 8
    for path in files:
        assert "abaton.deid" not in path.read_text(), path.name


def output(*, block: bool) -> bytes:
    done = subprocess.run([sys.executable, "-c", CODE.format(block=block)], capture_output=True, check=True)
    assert done.stderr == b"[]\n"
    return done.stdout


def test_bytes_are_the_same_without_optional_libraries():
    deidentified = output(block=False)
    assert b"1980" in deidentified
    assert output(block=True) == deidentified
