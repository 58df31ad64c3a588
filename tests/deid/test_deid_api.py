"""`deidentify`: all input forms, refused typos, and no shared state between calls."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from abaton.deid import DeidentificationRule, deidentify
from abaton.errors import RefusedError, SettingsError
from abaton.fhir.validation import validate_resource
from abaton.views import view

KEY = bytes(range(32))
PATIENT = {"resourceType": "Patient", "id": "7", "birthDate": "1980-02-03", "name": [{"family": "Smith"}]}
SEEN = {
    "resourceType": "Observation",
    "id": "1",
    "status": "final",
    "subject": {"reference": "Patient?identifier=urn:x|9"},
    "effectiveDateTime": "2020-02-03",
}
IDS = {"resource": "Patient", "select": [{"column": [{"name": "id", "path": "id"}]}]}
KNOWN = {**PATIENT, "identifier": [{"system": "urn:x", "value": "9"}]}


def test_a_resource_and_a_bundle():
    deidentified = deidentify(PATIENT, key=KEY, year=2026)
    assert not validate_resource(deidentified)
    assert deidentified["birthDate"] == "1980"
    bundle = {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [{"resource": KNOWN}, {"resource": SEEN}],
    }
    complete = deidentify(bundle, key=KEY)
    assert complete["entry"][0]["resource"]["id"] == deidentified["id"]
    assert "Smith" not in json.dumps(complete)
    with_key = deidentify(PATIENT, key=KEY)
    assert with_key["id"] == deidentified["id"]
    assert deidentify(PATIENT)["id"] != deidentify(PATIENT)["id"]
    odd = {**PATIENT, "modifierExtension": [{"url": "http://x.example"}]}
    assert deidentify(odd) is None


def test_many_in_every_form_give_the_same(tmp_path):
    lines = [json.dumps(KNOWN), json.dumps(SEEN)]
    (tmp_path / "x.ndjson").write_text("\n".join(lines) + "\n")
    (tmp_path / "folder").mkdir()
    for name, line in zip("ab", lines, strict=True):
        (tmp_path / "folder" / f"{name}.json").write_text(json.dumps(json.loads(line), indent=1))
    paths = [tmp_path / "folder" / "a.json", str(tmp_path / "folder" / "b.json")]
    forms = [
        paths,
        [lines[0], paths[1]],
        [KNOWN, SEEN],
        iter(lines),
        [line.encode() for line in lines],
        "\n".join(lines),
        "\n".join(lines).encode(),
        tmp_path / "x.ndjson",
        str(tmp_path / "x.ndjson"),
        tmp_path / "folder",
    ]
    first, *others = (deidentify(form, key=KEY) for form in forms)
    assert len(first) == 2
    assert first[1]["subject"]["reference"] == f"Patient/{first[0]['id']}"
    assert all(other == first for other in others)
    assert deidentify(json.dumps(PATIENT, indent=2), key=KEY)[0]["birthDate"] == "1980"


def test_rules_dates_and_what_is_allowed():
    assert "birthDate" not in deidentify(PATIENT, "Patient.birthDate  redact", KEY)
    assert "birthDate" not in deidentify(PATIENT, [DeidentificationRule("Patient.birthDate", "redact")], KEY)
    assert "meta" not in deidentify(PATIENT, "paper", KEY)
    seen = {**SEEN, "subject": {"reference": "Patient/7"}}
    assert deidentify(seen, key=KEY, dates="shift")["effectiveDateTime"] not in ("2020", "2020-02-03")
    assert deidentify(KNOWN, key=KEY, study="a")["id"] != deidentify(KNOWN, key=KEY, study="b")["id"]
    address = {**PATIENT, "address": [{"postalCode": "02134"}]}
    assert deidentify(address, key=KEY, opt_ins=["zip3"])["address"] == [{"postalCode": "021"}]


@pytest.mark.parametrize(
    ("settings", "guess"),
    [
        ({"rules": "defalt"}, "did you mean 'default'"),
        ({"dates": "shfit"}, "did you mean 'shift'"),
        ({"opt_ins": ["zip5"]}, "did you mean 'zip3'"),
        ({"rules": "Patient.brithDate redact"}, "no such element"),
        ({"rules": "Patient.birthDate redcat"}, "there is no method of this name"),
        ({"key": b"short"}, "32 random bytes"),
        ({"opt_ins": "zip"}, "did you mean 'zip3'"),
        ({"year": "2026"}, "an integer"),
    ],
)
def test_typos_are_refused(settings, guess):
    with pytest.raises(SettingsError, match=guess):
        deidentify(PATIENT, **settings)


@pytest.mark.parametrize("records", [None, 7, [None], object()])
def test_input_that_is_not_a_record_is_refused(records):
    for door in (deidentify, lambda given: view(IDS, given)):
        with pytest.raises(SettingsError, match="not a record"):
            door(records)


@pytest.mark.parametrize(
    "text", ['[{"id": "Smith"}]', " \n{'id': 'Smith'}", "<Patient>Smith</Patient>", "a\nSmith"]
)
def test_a_text_that_is_no_record_is_not_shown_as_a_path(text):
    for given in (text, [text], text.encode()):
        for door in (deidentify, lambda given: view(IDS, given)):
            with pytest.raises(RefusedError) as refused:
                door(given)
            assert "Smith" not in str(refused.value)


def test_a_refusal_names_the_record_and_nothing_in_it():
    with pytest.raises(RefusedError, match="record 2") as refused:
        deidentify([PATIENT, {"resourceType": "Smith"}])
    assert "Smith" not in str(refused.value)
    with pytest.raises(RefusedError, match="line 3"):
        deidentify(b'{"resourceType":"Patient"}\n\n{"resourceType":"Patient","id":"1","id":"Smith"}\n')
    with pytest.raises(SettingsError, match="record 1 is a int"):
        deidentify([7])
    with pytest.raises(SettingsError, match="does not exist"):
        deidentify("nowhere.ndjson")


def test_nothing_is_shared_between_calls():
    one, other = deidentify([SEEN | {"subject": {"reference": "Patient/7"}}] * 2, key=KEY)
    before = json.dumps(other)
    one["meta"]["security"].clear()
    one["extension"][0].clear()
    one["subject"].clear()
    assert json.dumps(other) == before


def test_deid_requires_only_the_standard_library():
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] not in sys.stdlib_module_names | {'abaton', 'sitecustomize'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from abaton.deid import deidentify\n"
        f"print(deidentify({PATIENT!r}, key=bytes(range(32)))['birthDate'])\n"
        "print([name for name in ('numpy', 'orjson', 'pydantic', 'polars', 'numba') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1980\n[]\n"
