"""View definitions (HL7 *SQL on FHIR v2*): from a resource to rows of a table, compiled once.

Invariants:
(1) a definition that could not give a table (columns twice, branches of a union that differ, unknown keys,
    paths that are not understood) is refused when it is loaded;
(2) every row has exactly the columns of the view, in their order;
(3) a resource of another type gives no row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import Any, NoReturn

from abaton.errors import AbatonError, SettingsError
from abaton.fhir.bundles import SUBJECTS
from abaton.fhir.elements import table as fields
from abaton.fhirpath.compiler import Path, Scope, compile_path
from abaton.fhirpath.operators import Items
from abaton.fhirpath.parser import Moment
from abaton.views.required_elements import elements

Row = tuple[Any, ...]
Rows = Callable[[Items, Scope], list[Row]]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_VIEW = {
    "resourceType", "id", "meta", "implicitRules", "language", "text", "contained", "extension", "modifierExtension",
    "url", "identifier", "version", "versionAlgorithmString", "versionAlgorithmCoding", "name", "title", "status",
    "experimental", "date", "publisher", "contact", "description", "useContext", "jurisdiction", "purpose", "copyright",
    "copyrightLabel", "fhirVersion", "profile", "resource", "constant", "select", "where",
}  # fmt: skip
_WHERE = {"id", "extension", "path", "description"}
_SELECT = {"column", "select", "forEach", "forEachOrNull", "repeat", "unionAll", "id", "extension"}
_COLUMN = {"name", "path", "type", "collection", "description", "tag", "id", "extension"}
_MOMENTS = {"valueDate", "valueDateTime", "valueInstant", "valueTime"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: its name, its FHIR type as declared, and whether a cell is a list."""

    name: str
    type: str
    collection: bool


@dataclass(frozen=True, slots=True)
class View:
    """A compiled view definition.

    >>> patients = View.load({"resource": "Patient", "select": [{"column": [{"name": "id", "path": "id"}]}]})
    >>> list(patients.table([{"resourceType": "Patient", "id": "p1"}]))
    [{'id': 'p1'}]
    """

    name: str
    resource: str
    columns: tuple[Column, ...]
    _rows: Rows
    _where: tuple[tuple[str, Path], ...]

    @classmethod
    def load(cls, definition: object) -> View:
        """Check and compile a definition.

        Raises:
            SettingsError: It is not a view definition, or not one that gives a table.
        """
        table = _object(definition, "the view")
        _known(table, _VIEW, "the view")
        resource = _text(table, "resource", "the view")
        constants = _constants(_list(table, "constant", "the view"))
        selects = _list(table, "select", "the view")
        if not selects:
            _refuse("the view selects nothing", "select")
        columns, rows = _Selection(constants).together(selects, "select")
        _check_names(columns)
        where = []
        for i, item in enumerate(_list(table, "where", "the view")):
            _known(_object(item, f"where[{i}]"), _WHERE, f"where[{i}]")
            text = _text(item, "path", f"where[{i}]")
            where.append((f"where[{i}]", compile_path(text, constants)))
        _check_subject(resource, elements(table))
        return cls(str(table.get("name", "")), resource, columns, rows, tuple(where))

    def rows(self, resource: Mapping[str, Any]) -> list[Row]:
        """The rows of one resource."""
        if resource.get("resourceType") != self.resource:
            return []
        scope, focus = Scope(0, resource), [resource]
        for place, path in self._where:
            found = path(focus, scope)
            if len(found) > 1 or (found and not isinstance(found[0], bool)):
                raise AbatonError(
                    "a condition of the view is not true or false", where=place, remedy="use exists() or ="
                )
            if found != [True]:
                return []
        return self._rows(focus, scope)

    def table(self, resources: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """The rows of many resources, as records with the names of the columns."""
        names = [column.name for column in self.columns]
        for resource in resources:
            for row in self.rows(resource):
                yield dict(zip(names, row, strict=True))


class _Selection:
    """Compiles selects with the constants of one view."""

    def __init__(self, constants: Mapping[str, object]) -> None:
        self.constants = constants

    def together(self, selects: list[Any], place: str) -> tuple[tuple[Column, ...], Rows]:
        """Several selects side by side: every row of one with every row of the others."""
        return _beside([self.one(item, f"{place}[{i}]") for i, item in enumerate(selects)])

    def one(self, item: Any, place: str) -> tuple[tuple[Column, ...], Rows]:
        table = _object(item, place)
        _known(table, _SELECT, place)
        parts = []
        if columns := _list(table, "column", place):
            parts.append(self.cells(columns, f"{place}.column"))
        if selects := _list(table, "select", place):
            parts.append(self.together(selects, f"{place}.select"))
        if branches := _list(table, "unionAll", place):
            parts.append(self.union(branches, f"{place}.unionAll"))
        if not parts and not {"forEach", "forEachOrNull", "repeat"} & table.keys():
            _refuse("the select has neither columns nor selects", place)
        made, rows = _beside(parts)
        return made, self.iterated(table, rows, place)

    def cells(self, columns: list[Any], place: str) -> tuple[tuple[Column, ...], Rows]:
        made: list[Column] = []
        makers: list[Callable[[Items, Scope], Any]] = []
        for i, item in enumerate(columns):
            where = f"{place}[{i}]"
            table = _object(item, where)
            _known(table, _COLUMN, where)
            name = _text(table, "name", where)
            if not _NAME.fullmatch(name):
                _refuse(f"'{name}' is not a name for a column", where, "use letters, digits and _")
            if not isinstance(table.get("collection", False), bool):
                _refuse("'collection' must be true or false", where)
            column = Column(name, str(table.get("type", "")), table.get("collection") is True)
            path = compile_path(_text(table, "path", where), self.constants, kind=column.type)
            made.append(column)
            makers.append(path if column.collection else _cell(path, name))
        return tuple(made), lambda focus, scope: [tuple([make(focus, scope) for make in makers])]

    def union(self, branches: list[Any], place: str) -> tuple[tuple[Column, ...], Rows]:
        made = [self.one(branch, f"{place}[{i}]") for i, branch in enumerate(branches)]
        names = [[column.name for column in columns] for columns, _ in made]
        if any(other != names[0] for other in names):
            _refuse("the branches of a union have different columns", place, "give all the same, in order")
        makers = [rows for _, rows in made]
        return made[0][0], lambda focus, scope: [row for make in makers for row in make(focus, scope)]

    def iterated(self, table: Mapping[str, Any], rows: Rows, place: str) -> Rows:
        given = [key for key in ("forEach", "forEachOrNull", "repeat") if key in table]
        if not given:
            return rows
        if len(given) > 1:
            _refuse(f"{' and '.join(given)} exclude each other", place, "keep one")
        if given[0] == "repeat":
            texts = _list(table, "repeat", place)
            if not texts or not all(isinstance(text, str) for text in texts):
                _refuse("'repeat' must be a list of paths", place)
            return _repeated([compile_path(text, self.constants) for text in texts], rows)
        path = compile_path(_text(table, given[0], place), self.constants)
        return _each(path, rows, or_null=given[0] == "forEachOrNull")


def _beside(parts: list[tuple[tuple[Column, ...], Rows]]) -> tuple[tuple[Column, ...], Rows]:
    columns = tuple(column for made, _ in parts for column in made)
    makers = [rows for _, rows in parts]
    if len(makers) == 1:
        return columns, makers[0]

    def run(focus: Items, scope: Scope) -> list[Row]:
        found = [make(focus, scope) for make in makers]
        return [tuple(cell for part in row for cell in part) for row in product(*found)]

    return columns, run


def _cell(path: Path, name: str) -> Callable[[Items, Scope], Any]:
    def cell(focus: Items, scope: Scope) -> Any:
        found = path(focus, scope)
        if len(found) > 1:
            raise AbatonError(
                "a column that is not a collection has several values",
                where=f"column {name}",
                remedy="use first(), forEach, or collection = true",
            )
        return found[0] if found else None

    return cell


def _each(path: Path, rows: Rows, *, or_null: bool) -> Rows:
    def run(focus: Items, scope: Scope) -> list[Row]:
        found, outer = path(focus, scope), scope.row
        made: list[Row] = []
        for number, item in enumerate(found):
            scope.row = number
            made += rows([item], scope)
        if or_null and not found:
            scope.row = 0
            made = rows([], scope)
        scope.row = outer
        return made

    return run


def _repeated(paths: list[Path], rows: Rows) -> Rows:
    """Every item that the paths reach, and those they reach from there, parents before children."""

    def walk(item: Any, scope: Scope) -> Iterator[Any]:
        for path in paths:
            for child in path([item], scope):
                yield child
                yield from walk(child, scope)

    def run(focus: Items, scope: Scope) -> list[Row]:
        outer = scope.row
        made: list[Row] = []
        for number, item in enumerate(child for start in focus for child in walk(start, scope)):
            scope.row = number
            made += rows([item], scope)
        scope.row = outer
        return made

    return run


def _constants(items: list[Any]) -> dict[str, object]:
    made: dict[str, object] = {}
    for i, item in enumerate(items):
        name, value = _constant(item, place := f"constant[{i}]")
        if not _NAME.fullmatch(name):
            _refuse(f"'{name}' is not a name for a constant", place, "use letters, digits and _")
        if name in made:
            _refuse(f"the constant '{name}' stands twice", place, "give every constant its own name")
        made[name] = value
    return made


def _constant(item: Any, place: str) -> tuple[str, object]:
    table = _object(item, place)
    values = [key for key in table if key.startswith("value")]
    if len(values) != 1 or isinstance(table[values[0]], dict | list):
        _refuse("a constant needs one plain value", place)
    value = table[values[0]]
    return _text(table, "name", place), Moment(value) if values[0] in _MOMENTS else value


def _check_names(columns: tuple[Column, ...]) -> None:
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        _refuse(f"the column '{twice[0]}' stands twice", "select", "give every column its own name")
    if not names:
        _refuse("the view has no columns", "select")


def _check_subject(resource: str, read: frozenset[str]) -> None:
    """Refuse the element that names the person in other types: it would give an empty column and no word about it."""
    has = fields().get(resource, {})
    absent = [name for name in SUBJECTS if name in read and has and name not in has]
    if absent:
        own = [name for name in SUBJECTS if name in has]
        about = f"use '{own[0]}', or getReferenceKey(Patient) of the resource itself" if own else ""
        _refuse(f"{resource} has no element '{absent[0]}'", "select", about or "it is about nobody")


def _object(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse("this must be an object", place)
    return value


def _list(table: Mapping[str, Any], key: str, place: str) -> list[Any]:
    value = table.get(key, [])
    if not isinstance(value, list):
        _refuse(f"'{key}' must be a list", place)
    return value


def _text(table: Mapping[str, Any], key: str, place: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        _refuse(f"'{key}' is missing or not text", place)
    return value


def _known(table: Mapping[str, Any], keys: set[str], place: str) -> None:
    strange = sorted(set(table) - keys)
    if strange:
        close = get_close_matches(strange[0], keys, n=1)
        guess = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(sorted(keys))}"
        _refuse(f"'{strange[0]}' is not a known key", place, guess)


def _refuse(what: str, place: str, remedy: str = "correct the view definition") -> NoReturn:
    raise SettingsError(what, where=place, remedy=remedy)
