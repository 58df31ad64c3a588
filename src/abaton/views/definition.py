"""View definitions (HL7 SQL on FHIR v2) compiled to rows.

Invariants:
(1) an invalid definition (duplicate columns, different columns in a union, unknown keys, invalid paths) is refused
    when it is loaded;
(2) every row has exactly the columns of the view, in order;
(3) a resource of another type gives no row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NoReturn

from abaton.errors import AbatonError, SettingsError, did_you_mean, shorten_name
from abaton.fhir.bundles import SUBJECT_ELEMENTS
from abaton.fhir.elements import element_table as element_table
from abaton.fhirpath.compiler import EvaluationScope, Path, compile_path
from abaton.fhirpath.operators import Items
from abaton.fhirpath.parser import TemporalLiteral
from abaton.views.required_elements import elements_read_by

Row = tuple[Any, ...]
Rows = Callable[[Items, EvaluationScope], list[Row]]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_VIEW_KEYS = {
    "resourceType", "id", "meta", "implicitRules", "language", "text", "contained", "extension", "modifierExtension",
    "url", "identifier", "version", "versionAlgorithmString", "versionAlgorithmCoding", "name", "title", "status",
    "experimental", "date", "publisher", "contact", "description", "useContext", "jurisdiction", "purpose", "copyright",
    "copyrightLabel", "fhirVersion", "profile", "resource", "constant", "select", "where",
}  # fmt: skip
_WHERE_KEYS = {"id", "extension", "path", "description"}
_SELECT_KEYS = {"column", "select", "forEach", "forEachOrNull", "repeat", "unionAll", "id", "extension"}
_COLUMN_KEYS = {"name", "path", "type", "collection", "description", "tag", "id", "extension"}
_TEMPORAL_TYPES = {"valueDate", "valueDateTime", "valueInstant", "valueTime"}


@dataclass(frozen=True, slots=True)
class ViewColumnDefinition:
    """Column of a view: name, declared FHIR type, and whether a cell is a list."""

    name: str
    type: str
    collection: bool


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """Compiled view definition.

    >>> patients = ViewDefinition.load({"resource": "Patient", "select": [{"column": [{"name": "id", "path": "id"}]}]})
    >>> list(patients.table([{"resourceType": "Patient", "id": "p1"}]))
    [{'id': 'p1'}]
    """

    name: str
    resource: str
    columns: tuple[ViewColumnDefinition, ...]
    _rows: Rows
    _where: tuple[tuple[str, Path], ...]

    @classmethod
    def load(cls, definition: object) -> ViewDefinition:
        """Validate and compile a SQL on FHIR view definition.

        Raises:
            SettingsError: The definition is invalid.
        """
        content = _object(definition, "the view")
        _check_keys(content, _VIEW_KEYS, "the view")
        resource = _text(content, "resource", "the view")
        constants = _constants(_list(content, "constant", "the view"))
        selects = _list(content, "select", "the view")
        if not selects:
            _refuse("'select' is empty", "select")
        columns, rows = _SelectCompiler(constants).compile_all(selects, "select")
        _check_names(columns)
        where = []
        for i, item in enumerate(_list(content, "where", "the view")):
            _check_keys(_object(item, f"where[{i}]"), _WHERE_KEYS, f"where[{i}]")
            text = _text(item, "path", f"where[{i}]")
            where.append((f"where[{i}]", compile_path(text, constants)))
        _check_subject(resource, elements_read_by(content))
        return cls(str(content.get("name", "")), resource, columns, rows, tuple(where))

    def rows(self, resource: Mapping[str, Any]) -> list[Row]:
        """Return the rows of one resource in the compiled view definition."""
        if resource.get("resourceType") != self.resource:
            return []
        scope, focus = EvaluationScope(0, resource), [resource]
        for location, path in self._where:
            values = path(focus, scope)
            if len(values) > 1 or (values and not isinstance(values[0], bool)):
                raise AbatonError(
                    "a condition of the view is not boolean", where=location, remedy="use exists() or ="
                )
            if values != [True]:
                return []
        return self._rows(focus, scope)

    def table(self, resources: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the rows of a compiled view definition over resources, as dicts by column name."""
        names = [column.name for column in self.columns]
        for resource in resources:
            for row in self.rows(resource):
                yield dict(zip(names, row, strict=True))


class _SelectCompiler:
    """Compiler of the selects of one view."""

    def __init__(self, constants: Mapping[str, object]) -> None:
        self.constants = constants

    def compile_all(self, selects: list[Any], location: str) -> tuple[tuple[ViewColumnDefinition, ...], Rows]:
        """Compile several selects of a view definition to their cross join."""
        return _cross_join([self.one(item, f"{location}[{i}]") for i, item in enumerate(selects)])

    def one(self, item: Any, location: str) -> tuple[tuple[ViewColumnDefinition, ...], Rows]:
        table = _object(item, location)
        _check_keys(table, _SELECT_KEYS, location)
        parts = []
        if columns := _list(table, "column", location):
            parts.append(self.cells(columns, f"{location}.column"))
        if selects := _list(table, "select", location):
            parts.append(self.compile_all(selects, f"{location}.select"))
        if branches := _list(table, "unionAll", location):
            parts.append(self.union(branches, f"{location}.unionAll"))
        if not parts and not {"forEach", "forEachOrNull", "repeat"} & table.keys():
            _refuse("the select has neither 'column', 'select' nor 'unionAll'", location)
        part_columns, rows = _cross_join(parts)
        return part_columns, self.apply_iteration(table, rows, location)

    def cells(self, columns: list[Any], location: str) -> tuple[tuple[ViewColumnDefinition, ...], Rows]:
        definitions: list[ViewColumnDefinition] = []
        cell_functions: list[Callable[[Items, EvaluationScope], Any]] = []
        for i, item in enumerate(columns):
            where = f"{location}[{i}]"
            table = _object(item, where)
            _check_keys(table, _COLUMN_KEYS, where)
            name = _text(table, "name", where)
            if not _NAME.fullmatch(name):
                _refuse("the column name is not valid", where, "use letters, digits and _")
            if not isinstance(table.get("collection", False), bool):
                _refuse("'collection' is not boolean", where)
            column = ViewColumnDefinition(name, str(table.get("type", "")), table.get("collection") is True)
            path = compile_path(_text(table, "path", where), self.constants, fhir_type=column.type)
            definitions.append(column)
            cell_functions.append(path if column.collection else _cell(path, name))
        return tuple(definitions), lambda focus, scope: [
            tuple([cell_function(focus, scope) for cell_function in cell_functions])
        ]

    def union(self, branches: list[Any], location: str) -> tuple[tuple[ViewColumnDefinition, ...], Rows]:
        compiled_branches = [self.one(branch, f"{location}[{i}]") for i, branch in enumerate(branches)]
        names = [[column.name for column in columns] for columns, _ in compiled_branches]
        if any(other != names[0] for other in names):
            _refuse(
                "the branches of 'unionAll' have different columns",
                location,
                "use the same columns in the same order",
            )
        branch_rows = [rows for _, rows in compiled_branches]
        return compiled_branches[0][0], lambda focus, scope: [
            row for rows_of in branch_rows for row in rows_of(focus, scope)
        ]

    def apply_iteration(self, table: Mapping[str, Any], rows: Rows, location: str) -> Rows:
        given = [key for key in ("forEach", "forEachOrNull", "repeat") if key in table]
        if not given:
            return rows
        if len(given) > 1:
            _refuse(f"{' and '.join(given)} exclude each other", location, "remove all but one")
        if given[0] == "repeat":
            texts = _list(table, "repeat", location)
            if not texts or not all(isinstance(text, str) for text in texts):
                _refuse("'repeat' is not a list of paths", location)
            return _repeated([compile_path(text, self.constants) for text in texts], rows)
        path = compile_path(_text(table, given[0], location), self.constants)
        return _for_each(path, rows, or_null=given[0] == "forEachOrNull")


def _cross_join(
    parts: list[tuple[tuple[ViewColumnDefinition, ...], Rows]],
) -> tuple[tuple[ViewColumnDefinition, ...], Rows]:
    columns = tuple(column for part_columns, _ in parts for column in part_columns)
    row_functions = [rows for _, rows in parts]
    if len(row_functions) == 1:
        return columns, row_functions[0]

    def run(focus: Items, scope: EvaluationScope) -> list[Row]:
        row_lists = [rows_of(focus, scope) for rows_of in row_functions]
        return [tuple(cell for part in row for cell in part) for row in product(*row_lists)]

    return columns, run


def _cell(path: Path, name: str) -> Callable[[Items, EvaluationScope], Any]:
    def cell(focus: Items, scope: EvaluationScope) -> Any:
        values = path(focus, scope)
        if len(values) > 1:
            raise AbatonError(
                "a column that is not a collection has several values",
                where=f"column {name}",
                remedy="use first(), forEach, or collection = true",
            )
        return values[0] if values else None

    return cell


def _for_each(path: Path, rows: Rows, *, or_null: bool) -> Rows:
    def run(focus: Items, scope: EvaluationScope) -> list[Row]:
        items, outer = path(focus, scope), scope.row
        combined: list[Row] = []
        for number, item in enumerate(items):
            scope.row = number
            combined += rows([item], scope)
        if or_null and not items:
            scope.row = 0
            combined = rows([], scope)
        scope.row = outer
        return combined

    return run


def _repeated(paths: list[Path], rows: Rows) -> Rows:
    """Apply the ``repeat`` paths of a view definition recursively, parents before children."""

    def walk(item: Any, scope: EvaluationScope) -> Iterator[Any]:
        for path in paths:
            for child in path([item], scope):
                yield child
                yield from walk(child, scope)

    def run(focus: Items, scope: EvaluationScope) -> list[Row]:
        outer = scope.row
        combined: list[Row] = []
        for number, item in enumerate(child for start in focus for child in walk(start, scope)):
            scope.row = number
            combined += rows([item], scope)
        scope.row = outer
        return combined

    return run


def _constants(items: list[Any]) -> dict[str, object]:
    constants: dict[str, object] = {}
    for i, item in enumerate(items):
        name, value = _constant(item, location := f"constant[{i}]")
        if not _NAME.fullmatch(name):
            _refuse("the constant name is not valid", location, "use letters, digits and _")
        if name in constants:
            _refuse(f"the constant '{name}' is defined twice", location, "rename one of them")
        constants[name] = value
    return constants


def _constant(item: Any, location: str) -> tuple[str, object]:
    table = _object(item, location)
    values = [key for key in table if key.startswith("value")]
    if len(values) != 1 or isinstance(table[values[0]], dict | list):
        _refuse("the constant does not have exactly one primitive value", location)
    value = table[values[0]]
    return _text(table, "name", location), TemporalLiteral(value) if values[0] in _TEMPORAL_TYPES else value


def _check_names(columns: tuple[ViewColumnDefinition, ...]) -> None:
    names = [column.name for column in columns]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        _refuse(f"the column '{twice[0]}' is defined twice", "select", "rename one of them")
    if not names:
        _refuse("the view has no columns", "select")


def _check_subject(resource: str, read: frozenset[str]) -> None:
    """Refuse a view definition with another type's subject element, since the column would be empty."""
    known = element_table().get(resource, {})
    absent = [name for name in SUBJECT_ELEMENTS if name in read and known and name not in known]
    if absent:
        existing = [name for name in SUBJECT_ELEMENTS if name in known]
        hint = f"use '{existing[0]}', or getReferenceKey(Patient) of the resource itself" if existing else ""
        _refuse(
            f"{resource} has no element '{absent[0]}'", "select", hint or "the resource type has no subject"
        )


def _object(value: Any, location: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse("the value is not an object", location)
    return value


def _list(table: Mapping[str, Any], key: str, location: str) -> list[Any]:
    value = table.get(key, [])
    if not isinstance(value, list):
        _refuse(f"'{key}' is not a list", location)
    return value


def _text(table: Mapping[str, Any], key: str, location: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        _refuse(f"'{key}' is missing or not text", location)
    return value


def _check_keys(table: Mapping[str, Any], keys: set[str], location: str) -> None:
    unknown = sorted(set(table) - keys)
    if unknown:
        guess = did_you_mean(unknown[0], keys, f"known keys are {', '.join(sorted(keys))}")
        _refuse(f"'{shorten_name(unknown[0])}' is not a known key", location, guess)


def _refuse(what: str, location: str, remedy: str = "correct the view definition") -> NoReturn:
    raise SettingsError(what, where=location, remedy=remedy)
