"""A shape that is written out gives what its handlers give, step by step, whatever stands in a record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.records import Consented, Deidentifier, Need, Pseudonyms, Record, dump, shapes

LOINC, UCUM = "http://loinc.org", "http://unitsofmeasure.org"
_plain = st.sampled_from(
    [
        None,
        True,
        0,
        7,
        91,
        2.5,
        "",
        "-",
        "2020",
        "20-1",
        "2020-02-03",
        "20201",
        "٢٠٢٠",
        "final",
        "cm",
        "a",
        LOINC,
        UCUM,
    ]
)
_loose: st.SearchStrategy[Any] = st.recursive(
    _plain,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
)


def _object(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    usual = st.fixed_dictionaries({}, optional={name: each | _loose for name, each in fields.items()})
    return usual | _loose


_coding = _object(
    system=st.just(LOINC), code=st.sampled_from(["8302-2", "no"]), display=_plain, version=_plain
)
_concept = _object(coding=st.lists(_coding, max_size=2), text=_plain, id=_plain)
_reference = _object(
    reference=st.sampled_from(["Patient/1", "#a", "urn:x"]), display=_plain, type=st.just("Patient")
)
_quantity = _object(value=_plain, unit=_plain, system=st.just(UCUM), code=st.sampled_from(["cm", "a"]))
_observation = st.fixed_dictionaries(
    {"resourceType": st.just("Observation"), "id": st.just("1")},
    optional={
        "status": _plain | _loose,
        "category": st.lists(_concept, max_size=2) | _loose,
        "code": _concept,
        "subject": _reference,
        "performer": st.lists(_reference, max_size=2) | _loose,
        "effectiveDateTime": _plain | _loose,
        "issued": _plain | _loose,
        "valueQuantity": _quantity,
        "valueBoolean": _loose,
        "valueInteger": _loose,
        "unknown": _plain,
    },
)


def _twice(often: int, document: dict[str, Any]) -> tuple[list[bytes], dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_OFTEN", often)
        make = Deidentifier(Need("shapes"), Pseudonyms("shapes", bytes(range(32))), year=2026)
        made = [make(Consented.on_ground(Record(document), "test")) for _ in range(2)]
    return [dump(each.content) for each in made if each is not None], make.tally().row()


@given(_observation)
def test_written_out_equals_step_by_step(document: dict[str, Any]) -> None:
    assert _twice(1, document) == _twice(1_000_000, document)


def test_nothing_read_becomes_part_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(shapes, "_OFTEN", 1)
    monkeypatch.setattr(
        shapes, "compile", lambda text, *rest: texts.append(text) or compile(text, *rest), raising=False
    )
    make = Deidentifier(Need("shapes"), Pseudonyms("shapes", bytes(range(32))), year=2026)
    patient = {
        "resourceType": "Patient",
        "id": "1",
        "CANARY": 1,
        "gender": "CANARY",
        "_CANARY": {},
        "active": True,
    }
    make(Consented.on_ground(Record(patient), "test"))
    assert any("'active'" in text for text in texts)
    assert not any("CANARY" in text for text in texts)
