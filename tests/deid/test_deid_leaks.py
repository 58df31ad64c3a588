"""No leaks: canaries in every element of every R4 type and in real records occur in no output.

This is a permanent gate. The quick part plants every type once; the thorough part, marked slow, plants every choice of
every element; the part marked shared infects real resources, of which none was used to write the rules of its type.
"""

from __future__ import annotations

import json
import logging

import pytest
from tests.deid.canaries import Cage, as_text, found_canaries, infect, plant
from tests.deid.record_examples import KEY, maker, run

from abaton.deid import DataRequest, DateHandling, Mechanism, Pseudonyms, explain
from abaton.errors import AbatonError
from abaton.fhir.elements import resource_types
from abaton.record_types import Record


def leaks(make, record):
    """Return the canaries in the output or in the error, and whether there was an output."""
    try:
        deidentified = run(make, record)
    except AbatonError as error:
        return found_canaries(str(error)), False
    return found_canaries(as_text(deidentified)), True


def test_canaries_are_found_in_every_encoding():
    cage = Cage()
    for kind in (
        "string",
        "code",
        "base64Binary",
        "url",
        "date",
        "dateTime",
        "instant",
        "time",
        "xhtml",
        "uri",
        "markdown",
    ):
        assert found_canaries(as_text({"x": cage.value(kind)})), kind
    for kind in ("Patient", "Observation", "Bundle"):
        assert len(found_canaries(as_text(plant(kind, cage)))) > 100


@pytest.mark.parametrize("kind", sorted(resource_types()))
def test_no_canary_of_any_type_comes_out(kind, caplog):
    caplog.set_level(logging.DEBUG)
    cage, make = Cage(), maker()
    marks, written = leaks(make, plant(kind, cage))
    assert written
    assert not marks
    assert not found_canaries(as_text(make.take_counts().row()))
    assert not found_canaries(caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"mechanism": Mechanism.PSEUDONYMISE}, {"dates": DateHandling.REMOVE}], ids=str
)
def test_no_canary_in_any_choice_of_any_type_comes_out(settings):
    cage, make = Cage(), maker(**settings)
    for kind in sorted(resource_types()):
        for form in range(1, 5):
            marks, written = leaks(make, plant(kind, cage, 0, form))
            assert written, kind
            assert not marks, (kind, form)
    assert not found_canaries(as_text(make.take_counts().row()))


@pytest.mark.slow
def test_shifted_dates_are_never_the_old_ones():
    cage, make = Cage(), maker(dates=DateHandling.SHIFT)
    for kind in sorted(resource_types()):
        marks, _ = leaks(make, plant(kind, cage))
        # A shifted date may look like another canary's; words and times of day may not come out at all.
        assert not [mark for mark in marks if not mark[:1].isdigit() or ":" in mark], kind


def test_canaries_of_a_whole_bundle_and_in_contained_resources_do_not_come_out():
    cage = Cage()
    entries = [
        {
            "fullUrl": f"https://{cage.word()}.example/{kind}/{cage.word()}",
            "resource": plant(kind, cage, 2),
            "link": [{"relation": cage.word(), "url": cage.word()}],
        }
        for kind in ("Patient", "Observation", "DocumentReference", "Claim", "Provenance")
    ]  # fmt: skip
    raw = plant("Bundle", cage) | {"entry": entries, "type": cage.word()}
    marks, written = leaks(maker(), raw)
    assert written
    assert not marks


def test_explain_and_refusals_contain_no_value():
    cage = Cage()
    rows = explain(
        Record(plant("Patient", cage)),
        DataRequest("s"),
        Pseudonyms("s", KEY),
        year=2026,
    )
    assert rows
    assert not found_canaries(str(rows))
    modifier = {"resourceType": "Patient", "id": cage.word(), "modifierExtension": [{"url": cage.word()}]}
    assert leaks(maker(), modifier) == ([], True)
    assert leaks(maker(), {"resourceType": cage.word()}) == ([], False)


def real_records(shared):
    data = shared / "data" / "fhir"
    for folder in ("hl7-r4-examples", "iehr-examples", "ms-anonymizer-tests", "miracum-fixtures"):
        for path in sorted((data / folder).glob("*.json")):
            raw = json.loads(path.read_text(encoding="utf-8-sig"))
            if isinstance(raw, dict) and "resourceType" in raw:
                yield raw
    for path in sorted((data / "bulk-ndjson").glob("10.*.ndjson")):
        yield from (json.loads(line) for line in path.read_text().splitlines()[:40])


@pytest.mark.shared
def test_no_canary_planted_in_real_records_comes_out(shared):
    cage, make = Cage(), maker()
    count = 0
    for raw in real_records(shared):
        marks, _ = leaks(make, infect(raw, cage))
        assert not marks, raw["resourceType"]
        count += 1
    assert count > 1000
    assert not found_canaries(as_text(make.take_counts().row()))


@pytest.mark.shared
def test_no_text_of_a_real_record_comes_out_but_codes_and_years(shared):
    """Check that every text of an output is one of Abaton's, a public code, or a year."""
    data = shared / "data" / "fhir" / "synthea-bundles"
    make = maker()
    for path in sorted(data.glob("*.json")):
        raw = json.loads(path.read_text())
        output_text = as_text(run(make, raw))
        for entry in raw["entry"]:
            resource = entry["resource"]
            if resource["resourceType"] != "Patient":
                continue
            name = resource["name"][0]
            assert not any(
                word in output_text
                for word in (name["family"], *name["given"], *resource["address"][0]["line"])
            )
            assert resource["birthDate"] not in output_text
            assert resource["id"] not in output_text
