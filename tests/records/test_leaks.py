"""Nothing leaks: canaries in every element of every R4 type and in real records are gone from everything written.

This is a permanent gate. The quick part plants every type once; the thorough part, marked slow, plants every choice of
every element; the part marked shared infects real resources, of which none was used to write the rules of its type.
"""

from __future__ import annotations

import json
import logging

import pytest
from canaries import Cage, as_text, found, infect, plant
from making import KEY, maker, run

from abaton.errors import AbatonError
from abaton.records import Dates, Mechanism, Need, Pseudonyms, Record, explain
from abaton.fhir.elements import resources


def leaks(make, record):
    """Canaries in the output or in the error, and whether there was an output."""
    try:
        made = run(make, record)
    except AbatonError as error:
        return found(str(error)), False
    return found(as_text(made)), True


def test_canaries_are_found_where_they_hide():
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
        assert found(as_text({"x": cage.value(kind)})), kind
    for kind in ("Patient", "Observation", "Bundle"):
        assert len(found(as_text(plant(kind, cage)))) > 100


@pytest.mark.parametrize("kind", sorted(resources()))
def test_no_canary_of_any_type_comes_out(kind, caplog):
    caplog.set_level(logging.DEBUG)
    cage, make = Cage(), maker()
    marks, written = leaks(make, plant(kind, cage))
    assert written
    assert not marks
    assert not found(as_text(make.tally().row()))
    assert not found(caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wish", [{}, {"mechanism": Mechanism.PSEUDONYMISE}, {"dates": Dates.REMOVE}], ids=str
)
def test_no_canary_in_any_choice_of_any_type_comes_out(wish):
    cage, make = Cage(), maker(**wish)
    for kind in sorted(resources()):
        for form in range(1, 5):
            marks, written = leaks(make, plant(kind, cage, 0, form))
            assert written, kind
            assert not marks, (kind, form)
    assert not found(as_text(make.tally().row()))


@pytest.mark.slow
def test_shifted_dates_are_never_the_old_ones():
    cage, make = Cage(), maker(dates=Dates.SHIFT)
    for kind in sorted(resources()):
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


def test_explaining_and_refusing_tell_no_value():
    cage = Cage()
    rows = explain(
        Record(plant("Patient", cage)),
        Need("s"),
        Pseudonyms("s", KEY),
        year=2026,
    )
    assert rows
    assert not found(str(rows))
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
    assert not found(as_text(make.tally().row()))


@pytest.mark.shared
def test_no_text_of_a_real_record_comes_out_but_codes_and_years(shared):
    """No free text at all: every word that comes out is one of ours, a public code, or a year."""
    data = shared / "data" / "fhir" / "synthea-bundles"
    make = maker()
    for path in sorted(data.glob("*.json")):
        raw = json.loads(path.read_text())
        made = as_text(run(make, raw))
        for entry in raw["entry"]:
            resource = entry["resource"]
            if resource["resourceType"] != "Patient":
                continue
            name = resource["name"][0]
            assert not any(
                word in made for word in (name["family"], *name["given"], *resource["address"][0]["line"])
            )
            assert resource["birthDate"] not in made
            assert resource["id"] not in made
