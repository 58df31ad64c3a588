"""The FHIRPath of views: meaning, unknowns, refusals, and agreement with another implementation."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import AbatonError, SettingsError
from abaton.fhirpath.compiler import EvaluationScope, compile_path
from abaton.fhirpath.functions import compute_boundary
from abaton.fhirpath.operators import OPERATORS, to_boolean
from abaton.fhirpath.parser import TemporalLiteral, parse_expression

PATIENT = {
    "resourceType": "Patient",
    "id": "p1",
    "active": True,
    "gender": "male",
    "birthDate": "1980-02-03",
    "_birthDate": {"extension": [{"url": "time", "valueDateTime": "1980-02-03T04:05:06Z"}]},
    "deceasedBoolean": False,
    "multipleBirthInteger": 2,
    "name": [
        {"use": "official", "family": "A", "given": ["x", "y"]},
        {"use": "old", "family": "B", "given": ["z", None]},
    ],
    "extension": [{"url": "u", "extension": [{"url": "inner", "valueCoding": {"code": "c"}}]}],
    "managingOrganization": {"reference": "Organization/o1"},
    "generalPractitioner": [{"reference": "urn:uuid:7", "type": "Practitioner"}, {"reference": "#inside"}],
    "communication": [{"preferred": True}, {"preferred": False}],
}


WALKS = [
    *("name.where(use = 'x').given.first()", "name.value", "name.extension('u')", "name.getReferenceKey()"),
    "extension('u').value.ofType(string)",
]


def ask(text, focus=PATIENT, **constants):
    return compile_path(text, constants)([focus], EvaluationScope(3, focus))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id", ["p1"]),
        ("Patient.id", ["p1"]),
        ("Observation.id", []),
        ("name.family", ["A", "B"]),
        ("name.given", ["x", "y", "z"]),
        ("name[1].family", ["B"]),
        ("name[9].family", []),
        ("name.first().given.last()", ["y"]),
        ("name.where(use = 'old').family", ["B"]),
        ("name.where(given.exists($this = 'z')).family", ["B"]),
        ("name.select(given.first())", ["x", "z"]),
        ("name.all(family.exists())", [True]),
        ("name.given.count()", [3]),
        ("name.given.join('-')", ["x-y-z"]),
        ("nothing.join(',')", [""]),
        ("nothing.exists()", [False]),
        ("nothing.empty()", [True]),
        ("nothing = 1", []),
        ("nothing.not()", []),
        ("nothing and false", [False]),
        ("nothing and true", []),
        ("nothing or true", [True]),
        ("nothing or false", []),
        ("true xor active", [False]),
        ("false implies nothing", [True]),
        ("active and gender = 'male'", [True]),
        ("active = 1", [False]),
        ("(gender = 'female').not()", [True]),
        ("gender != 'female'", [True]),
        ("gender ~ 'MALE'", [True]),
        ("gender !~ 'x'", [True]),
        ("gender in ('male' | 'other')", [True]),
        ("name.given contains 'y'", [True]),
        ("deceased", [False]),
        ("deceased.ofType(boolean)", [False]),
        ("deceased.ofType(dateTime)", []),
        ("(deceased as boolean).not()", [True]),
        ("multipleBirth.ofType(integer) + 1 * 2", [4]),
        ("(multipleBirth.ofType(integer) + 1) * 2", [6]),
        ("-multipleBirth.ofType(integer)", [-2]),
        ("7 div 2", [3]),
        ("7 mod 2", [1]),
        ("3 / 2", [1.5]),
        ("3 / 0", []),
        ("3 mod 0", []),
        ("0.1 + 0.2", [0.3]),
        ("0.3 div 0.1", [3]),
        ("5.5 mod 0.7", [0.6]),
        ("2 * 1.1", [2.2]),
        ("'a' + 'b' & nothing", ["ab"]),
        ("1 < 2 and 'a' <= 'b' and 2.5 >= 2 and 3 > 2", [True]),
        ("birthDate < @1990", [True]),
        ("birthDate = @1980-02", []),
        ("birthDate > @1980-02", []),
        ("birthDate >= @1980-02-03", [True]),
        ("@2020-01-01T00:00:00Z = @2020-01-01T02:00:00+02:00", [True]),
        ("birthDate.extension('time').value.ofType(dateTime)", ["1980-02-03T04:05:06Z"]),
        ("extension('u').extension('inner').value.ofType(Coding).code", ["c"]),
        ("extension('other').value", []),
        ("getResourceKey()", ["Patient/p1"]),
        ("managingOrganization.getReferenceKey()", ["Organization/o1"]),
        ("managingOrganization.getReferenceKey(Patient)", []),
        ("generalPractitioner.getReferenceKey(Practitioner)", ["urn:uuid:7"]),
        ("generalPractitioner.getReferenceKey()", ["urn:uuid:7"]),
        ("%rowIndex", [3]),
        ("%resource.id", ["p1"]),
        ("%use", ["old"]),
        ("name.where(use = %use).family", ["B"]),
        ("name.where(use = %`use`).family", ["B"]),
        ("$this.id", ["p1"]),
        ("{}", []),
        ("'it\\'s \\u00e9'", ["it's é"]),
        ("`id`", ["p1"]),
        ("id is string", [True]),
        ("multipleBirth is integer", [True]),
        ("deceased is dateTime", [False]),
        ("extension.extension.value is Coding", [True]),
        ("nothing is string", []),
        ("family.startsWith('A')", []),
        ("id.startsWith('p') and id.endsWith('1') and id.contains('p1')", [True]),
        ("id.upper() & id.length()", ["P12"]),
        ("name.given.distinct().count() = name.given.count()", [True]),
    ],
)
def test_meaning(text, expected):
    before = copy.deepcopy(PATIENT)
    assert ask(text, use="old") == expected
    assert before == PATIENT


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "@@",
            "name.",
            "name..family",
            "(id",
            "id)",
            "name[",
            "name[1",
            "1 +",
            "'open",
            "#",
            "name.nofun()",
        ),
        *(
            "first(1)",
            "ofType()",
            "ofType(1)",
            "%undefined",
            "id id",
            "extension()",
            "$that",
            "where()",
            "now()",
        ),
        *("resolve()", "name.trace('x')", "iif(true, 1)", "-" * 500 + "1", "a" * 20_000, "(" * 500),
    ],
)
def test_what_is_not_understood_is_refused_at_load(text):
    with pytest.raises(SettingsError):
        compile_path(text, {})


@pytest.mark.parametrize(
    "text",
    [
        *("name.family = 'A' and name.given", "name.family < 'x'", "name.family + 'x'", "id * 2", "id < 1"),
        *("active + 1", "name.family.single()", "active.upper()", "name['x']"),
    ],
)
def test_what_does_not_fit_the_data_is_an_error_without_content(text):
    with pytest.raises(AbatonError) as caught:
        ask(text)
    assert "p1" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind", "low", "high"),
    [
        (1.0, "", 0.95, 1.05),
        (1, "", 0.5, 1.5),
        (1.587, "", 1.5865, 1.5875),
        (-0.1, "", -0.15, -0.05),
        ("1970-06", "date", "1970-06-01", "1970-06-30"),
        ("2000-02", "date", "2000-02-01", "2000-02-29"),
        ("2003", "date", "2003-01-01", "2003-12-31"),
        ("2010-10-10", "dateTime", "2010-10-10T00:00:00.000+14:00", "2010-10-10T23:59:59.999-12:00"),
        ("2010-10-10T15:21", "dateTime", "2010-10-10T15:21:00.000+14:00", "2010-10-10T15:21:59.999-12:00"),
        ("2016-07-23T14:35Z", "dateTime", "2016-07-23T14:35:00.000Z", "2016-07-23T14:35:59.999Z"),
        ("2020-05-17T18:19:43.6+05:00", "", "2020-05-17T18:19:43.600+05:00", "2020-05-17T18:19:43.699+05:00"),
        ("12:34", "time", "12:34:00.000", "12:34:59.999"),
        ("2001", "dateTime", "2001-01-01T00:00:00.000+14:00", "2001-12-31T23:59:59.999-12:00"),
        (True, "", None, None),
        ("soon", "date", None, None),
        ("2001-13", "date", None, None),
        ({}, "", None, None),
    ],
)
def test_boundaries(value, kind, low, high):
    assert compute_boundary(value, kind, high=False) == low
    assert compute_boundary(value, kind, high=True) == high


def test_boundaries_know_the_type_from_path_or_column():
    seen = {"resourceType": "Observation", "valueDateTime": "2010-10-10", "date": "2010-10-10"}
    expected = compile_path("value.ofType(dateTime).lowBoundary()", {})([seen], EvaluationScope())
    assert expected == ["2010-10-10T00:00:00.000+14:00"]
    assert compile_path("date.highBoundary()", {}, fhir_type="dateTime")([seen], EvaluationScope()) == [
        "2010-10-10T23:59:59.999-12:00"
    ]
    assert compile_path("date.highBoundary()", {}, fhir_type="date")([seen], EvaluationScope()) == [
        "2010-10-10"
    ]


@pytest.mark.parametrize("kind", ["", "string", "date"])
def test_boundaries_of_an_element_that_is_of_one_type_everywhere(kind):
    seen = {"period": {"end": "2010-10-10"}, "birthDate": "2010-10"}
    assert compile_path("period.end.highBoundary()", {}, fhir_type=kind)([seen], EvaluationScope()) == [
        "2010-10-10T23:59:59.999-12:00"
    ]
    assert compile_path("birthDate.highBoundary()", {}, fhir_type=kind)([seen], EvaluationScope()) == [
        "2010-10-31"
    ]


collections = st.sampled_from([[], [True], [False]])


@given(collections, collections)
def test_logic_laws(a, b):
    both, either, negated = OPERATORS["and"], OPERATORS["or"], lambda x: [not v for v in x]
    assert both(a, b) == both(b, a)
    assert negated(both(a, b)) == either(negated(a), negated(b))
    assert OPERATORS["implies"](a, b) == either(negated(a), b)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        parse_expression(text)
    except SettingsError as error:
        assert error.exit_code == 2  # noqa: PT017


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda s: (
            st.lists(s, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["name", "given", "use", "value", "valueString", "extension", "url", "reference"]
                ),
                s,
                max_size=4,
            )
        ),
        max_leaves=15,
    )
)
def test_any_resource_is_walked_without_a_crash(content):
    focus = {"resourceType": "Patient", "name": content, "extension": content, "_name": content}
    for text in WALKS:
        try:
            ask(text, focus)
        except AbatonError:
            continue


def test_dates_and_times_are_compared_by_value():
    assert to_boolean(OPERATORS["<"]([TemporalLiteral("2020")], ["2021-05"])) is True
    assert OPERATORS["<"]([TemporalLiteral("2020")], ["2020-05"]) == []


ORACLE = [
    "id", "gender", "birthDate", "name.family", "name.given", "name.where(use = 'official').family.first()",
    "name.first().given.first()", "address.city", "address.line.first()", "telecom.where(system = 'phone').value",
    "maritalStatus.coding.code", "identifier.count()", "identifier.value.last()", "communication.language.text",
    "extension('http://hl7.org/fhir/StructureDefinition/patient-birthPlace').value.ofType(Address).city",
    "name.exists() and gender = 'male'", "(gender = 'male').not()", "deceased.exists()", "name.given.join(', ')",
    "multipleBirth.ofType(integer)", "multipleBirth.ofType(boolean)", "birthDate < @1970-01-01",
    "name.given.distinct()",
    "telecom.where(system = 'email').empty()", "identifier.where(type.coding.exists(code = 'MR')).value",
]  # fmt: skip


@pytest.mark.shared
def test_agrees_with_fhirpathpy_on_real_patients(shared: Path):
    import fhirpathpy
    from fhirpathpy.models import models

    lines = (shared / "data/fhir/bulk-ndjson/10.Patient.ndjson").read_text("utf-8").splitlines()
    patients = [json.loads(line) for line in lines][:8]
    for text in ORACLE:
        theirs, ours = fhirpathpy.compile(text, models["r4"]), compile_path(text, {})
        for patient in patients:
            assert ours([patient], EvaluationScope(0, patient)) == theirs(patient), text
