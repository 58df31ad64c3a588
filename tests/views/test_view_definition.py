"""View definitions: rows, their numbers, and what is refused at load."""

from __future__ import annotations

import json
from pathlib import Path

import polars
import pytest

from abaton.errors import AbatonError, SettingsError
from abaton.views import ViewDefinition, elements_read_by, to_frame, write_table

COLUMN = {"name": "id", "path": "id", "type": "id"}
NAMES = {
    "resourceType": "Patient",
    "id": "p1",
    "active": True,
    "name": [{"family": "A", "given": ["x", "y"]}, {"family": "B"}],
    "contact": [{"telecom": [{"value": "1"}, {"value": "2"}]}, {"telecom": [{"value": "3"}]}],
}
BARE = {"resourceType": "Patient", "id": "p2"}


def columns(*pairs):
    return [{"name": name, "path": path} for name, path in pairs]


def rows(select, *resources, **rest):
    return [
        tuple(row.values())
        for row in ViewDefinition.load({"resource": "Patient", "select": select, **rest}).table(resources)
    ]


def test_row_numbers_count_within_their_own_iteration():
    top = [{"column": columns(("i", "%rowIndex"))}]
    assert rows(top, NAMES, BARE) == [(0,), (0,)]
    nested = [
        {
            "forEach": "contact",
            "column": columns(("outer", "%rowIndex")),
            "select": [{"forEach": "telecom", "column": columns(("inner", "%rowIndex"), ("v", "value"))}],
        },
        {"column": columns(("top", "%rowIndex"))},
    ]
    assert rows(nested, NAMES) == [(0, 0, "1", 0), (0, 1, "2", 0), (1, 0, "3", 0)]
    or_null = [{"forEachOrNull": "name", "column": columns(("i", "%rowIndex"), ("f", "family"))}]
    assert rows(or_null, NAMES, BARE) == [(0, "A"), (1, "B"), (0, None)]
    union = [
        {
            "forEach": "contact",
            "select": [
                {
                    "unionAll": [
                        {"forEach": "telecom", "column": columns(("i", "%rowIndex"))},
                        {"column": columns(("i", "%rowIndex"))},
                    ]
                }
            ],
        }
    ]
    assert rows(union, NAMES) == [(0,), (1,), (0,), (0,), (1,)]


def test_row_numbers_of_a_repeat_run_through():
    item = {"linkId": "1", "item": [{"linkId": "1.1", "item": [{"linkId": "1.1.1"}]}, {"linkId": "1.2"}]}
    answer = {"resourceType": "Patient", "item": [item, {"linkId": "2"}]}
    select = [{"repeat": ["item"], "column": columns(("i", "%rowIndex"), ("l", "linkId"))}]
    assert rows(select, answer) == [(0, "1"), (1, "1.1"), (2, "1.1.1"), (3, "1.2"), (4, "2")]


@pytest.mark.parametrize(
    ("key", "value", "path", "expected"),
    [
        ("valueDate", "1978-03-12", "birthDate = %c", [True]),
        ("valueDate", "1978", "birthDate > %c", [None]),
        ("valueDecimal", 1.2, "1 < %c", [True]),
        ("valueBoolean", True, "active = %c", [True]),
        ("valueInteger", 0, "name[%c].family", ["A"]),
        ("valueCode", "x", "name.given contains %c", [False]),
        ("valueInstant", "2015-02-07T13:28:17+02:00", "%c = @2015-02-07T11:28:17Z", [True]),
    ],
)
def test_constants_of_every_kind(key, value, path, expected):
    patient = {
        "resourceType": "Patient",
        "birthDate": "1978-03-12",
        "active": True,
        "name": [{"family": "A"}],
    }
    table = rows([{"column": columns(("v", path))}], patient, constant=[{"name": "c", key: value}])
    assert table == [tuple(expected)]


@pytest.mark.parametrize(
    "view",
    [
        None,
        [],
        {},
        {"resource": "Patient"},
        {"resource": "Patient", "select": []},
        {"resource": "Patient", "select": {}},
        {"resource": "Patient", "select": [{}]},
        {"resource": "Patient", "select": [{"foreach": "name", "column": [COLUMN]}]},
        {"resource": "Patient", "select": [{"forEach": "name", "forEachOrNull": "name", "column": [COLUMN]}]},
        {"resource": "Patient", "select": [{"forEach": "name", "repeat": ["item"], "column": [COLUMN]}]},
        {"resource": "Patient", "select": [{"repeat": "item", "column": [COLUMN]}]},
        {"resource": "Patient", "select": [{"repeat": [1], "column": [COLUMN]}]},
        {"resource": "Patient", "select": [{"column": [COLUMN, COLUMN]}]},
        {"resource": "Patient", "select": [{"column": [COLUMN]}, {"column": [COLUMN]}]},
        {"resource": "Patient", "select": [{"column": [{"name": "a b", "path": "id"}]}]},
        {"resource": "Patient", "select": [{"column": [{"name": "_a", "path": "id"}]}]},
        {"resource": "Patient", "select": [{"column": [{"path": "id"}]}]},
        {"resource": "Patient", "select": [{"column": [{"name": "a"}]}]},
        {"resource": "Patient", "select": [{"column": [{**COLUMN, "colection": True}]}]},
        {"resource": "Patient", "select": [{"column": [{**COLUMN, "collection": "yes"}]}]},
        {"resource": "Patient", "select": [{"column": [COLUMN]}], "where": [{}]},
        {
            "resource": "Patient",
            "select": [{"column": [COLUMN]}],
            "constant": [{"name": "a b", "valueCode": "c"}],
        },
        {
            "resource": "Patient",
            "select": [{"column": [COLUMN]}],
            "constant": [{"name": "a", "valueCode": "c"}] * 2,
        },
        {"resource": "Patient", "select": [{"column": [COLUMN]}], "constant": [{"name": "a"}]},
        {
            "resource": "Patient",
            "select": [{"column": [COLUMN]}],
            "constant": [{"name": "a", "valueCoding": {}}],
        },
    ],
)
def test_a_definition_that_gives_no_table_is_refused_at_load(view):
    with pytest.raises(SettingsError):
        ViewDefinition.load(view)


def test_errors_name_the_column_and_hold_no_content():
    view = ViewDefinition.load(
        {"resource": "Patient", "select": [{"column": columns(("family", "name.family"))}]}
    )
    with pytest.raises(AbatonError, match="column family") as caught:
        view.rows({**NAMES, "name": [{"family": "CANARY"}, {"family": "CANARY2"}]})
    assert "CANARY" not in str(caught.value)


TYPED = ViewDefinition.load(
    {
        "resource": "Patient",
        "select": [
            {
                "column": [
                    COLUMN,
                    {"name": "active", "path": "active", "type": "boolean"},
                    {"name": "n", "path": "name.count()", "type": "integer"},
                    {"name": "x", "path": "name.count() / 2", "type": "decimal"},
                    {"name": "given", "path": "name.given", "type": "string", "collection": True},
                    {"name": "first", "path": "name.first()"},
                ]
            }
        ],
    }
)


def test_frames_have_the_declared_types():
    table = to_frame(TYPED, [NAMES, BARE])
    assert [str(kind) for kind in table.dtypes] == [
        "String",
        "Boolean",
        "Int64",
        "Float64",
        "List(String)",
        "String",
    ]
    assert table.row(1) == ("p2", None, 0, 0.0, [], None)
    assert json.loads(table.row(0)[5]) == NAMES["name"][0]
    assert to_frame(TYPED, []).shape == (0, 6)


@pytest.mark.parametrize("form", ["csv", "ndjson", "jsonl", "parquet"])
def test_every_form_holds_the_same_table(tmp_path: Path, form: str):
    path = tmp_path / f"t.{form}"
    assert write_table(TYPED, [NAMES, BARE], path) == 2
    assert write_table(TYPED, [], tmp_path / f"empty.{form}") == 0
    read = {"csv": polars.read_csv, "parquet": polars.read_parquet}.get(form, polars.read_ndjson)
    table = read(path)
    assert table["id"].to_list() == ["p1", "p2"]
    assert table["active"].to_list() == [True, None]
    assert table["x"].to_list() == [1.0, 0.0]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [f"empty.{form}", f"t.{form}"]


def test_nothing_half_written_stays(tmp_path: Path):
    invalid = ViewDefinition.load(
        {"resource": "Patient", "select": [{"column": [{"name": "n", "path": "id", "type": "integer"}]}]}
    )
    path = tmp_path / "t.csv"
    path.write_text("old")
    with pytest.raises(AbatonError, match="column n"):
        write_table(invalid, [NAMES], path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]
    for target in (tmp_path / "t.xls", tmp_path / "none" / "t.csv"):
        with pytest.raises(SettingsError):
            write_table(TYPED, [NAMES], target)


def subject_view(resource, path):
    column = {"name": "subject", "path": path}
    return {"resource": resource, "select": [{"column": [column]}]}


@pytest.mark.parametrize(
    ("resource", "element"),
    [
        ("Observation", "subject"),
        ("Device", "patient"),
        ("AllergyIntolerance", "patient"),
        ("Immunization", "patient"),
        ("Coverage", "beneficiary"),
        ("ResearchSubject", "individual"),
        ("Task", "for"),
        ("EnrollmentRequest", "candidate"),
    ],
)
def test_every_resource_type_has_its_subject(resource, element):
    record = {"resourceType": resource, "id": "x", element: {"reference": "http://a.example/Patient/p1"}}
    for path in ("getReferenceKey(Patient)", f"{element}.getReferenceKey(Patient)", "getReferenceKey()"):
        definition = subject_view(resource, path)
        assert list(ViewDefinition.load(definition).table([record])) == [{"subject": "Patient/p1"}]
        assert elements_read_by(definition) == {element}
    other = {"resourceType": resource, "id": "x", element: {"reference": "Group/g1"}}
    table = ViewDefinition.load(subject_view(resource, "getReferenceKey(Patient)"))
    assert list(table.table([other, {**other, element: 3}])) == [{"subject": None}] * 2


@pytest.mark.parametrize(
    ("resource", "element"), [("Device", "subject"), ("Condition", "patient"), ("Coverage", "patient")]
)
def test_the_element_of_another_type_is_refused_instead_of_always_empty(resource, element):
    with pytest.raises(SettingsError, match=f"{resource} has no element '{element}'.*getReferenceKey"):
        ViewDefinition.load(subject_view(resource, f"{element}.getReferenceKey(Patient)"))
