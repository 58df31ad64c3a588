"""From the study document's table ``[privacy.anonymity]`` to settings; what is not understood is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from abaton.errors import SettingsError
from abaton.records.anonymity.settings import (
    AnonymitySettings,
    BandHierarchy,
    BinHierarchy,
    Closeness,
    DateHierarchy,
    DateLevel,
    Distance,
    Diversity,
    DiversityKind,
    FileHierarchy,
    FlatHierarchy,
    HierarchySpec,
    Method,
    PrefixHierarchy,
    QuasiIdentifier,
    Sensitive,
    TableHierarchy,
)

WHERE = "privacy.anonymity"
Row = TypeVar("Row")


def settings_from(table: Mapping[str, object], *, where: str = WHERE) -> AnonymitySettings:
    """The settings a study document asks for, from its table as plain values.

    Args:
        table: What ``tomllib`` made of ``[privacy.anonymity]``.
        where: How to name the place in errors.

    Returns:
        Checked settings.

    Raises:
        SettingsError: A key is unknown, missing, of the wrong kind, or contradicts another.

    >>> age = {"column": "age", "hierarchy": {"bins": [5, 10]}}
    >>> made = settings_from({"k": 3, "quasi_identifiers": [age]})
    >>> made.k, made.quasi_identifiers[0].hierarchy
    (3, BinHierarchy(widths=(5.0, 10.0), origin=0.0))
    """
    read = _Reader(table, where)
    quasi_identifiers = read.rows("quasi_identifiers", _quasi_identifier, required=True)
    sensitive = read.rows("sensitive", _sensitive)
    k, local_floor = read.whole("k"), read.whole("local_floor")
    limit, fraction = read.number("suppression_limit"), read.number("sampling_fraction")
    method = read.choice("method", ("recode", "mondrian", "measure"), "recode")
    keep, missing, population = read.texts("keep"), read.texts("missing"), read.whole("population")
    read.done()
    return AnonymitySettings(
        quasi_identifiers=quasi_identifiers,
        k=5 if k is None else k,
        sensitive=sensitive,
        suppression_limit=0.05 if limit is None else limit,
        local_floor=1 if local_floor is None else local_floor,
        method=cast("Method", method),
        keep=keep,
        missing=missing,
        population=population,
        sampling_fraction=fraction,
    )


def read_settings(study: Path) -> AnonymitySettings:
    """The anonymity settings of a study document on disk."""
    try:
        document = tomllib.loads(study.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(
            "the study document cannot be read", where=str(study), remedy="check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the study document is not TOML: {error}", where=str(study)) from error
    table: object = document
    for name in WHERE.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise SettingsError(
            f"the study asks for no anonymity: it has no table [{WHERE}]",
            where=str(study),
            remedy="add the table, see docs/anonymity.md",
        )
    return settings_from(table, where=f"{study}: {WHERE}")


class _Reader:
    """Takes the keys of one table one by one, and complains about those nobody took."""

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, Mapping):
            raise SettingsError("this must be a table", where=where)
        self._table, self._where, self._taken = table, where, set[str]()

    def take(self, key: str) -> Any:
        self._taken.add(key)
        return self._table.get(key)

    def wrong(self, key: str, what: str) -> SettingsError:
        return SettingsError(f"'{key}' must be {what}", where=self._where, remedy="see docs/anonymity.md")

    def whole(self, key: str) -> int | None:
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number")
        return value

    def number(self, key: str) -> float | None:
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or (not value and default is None):
            raise self.wrong(key, "a text")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in choices:
            raise self.wrong(key, f"one of {', '.join(choices)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of texts")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        return _numbers(self.take(key), self.wrong(key, "a list of numbers"))

    def rows(
        self, key: str, make: Callable[[object, str], Row], *, required: bool = False
    ) -> tuple[Row, ...]:
        value = self.take(key)
        if value is None and not required:
            return ()
        if not isinstance(value, list):
            raise self.wrong(key, "a list of tables")
        return tuple(make(row, f"{self._where}.{key}[{i}]") for i, row in enumerate(value))

    def done(self) -> None:
        unknown = sorted(set(self._table) - self._taken)
        if unknown:
            known = ", ".join(sorted(self._taken))
            raise SettingsError(
                f"'{unknown[0]}' is not a known key", where=self._where, remedy=f"known are {known}"
            )


def _numbers(value: object, wrong: SettingsError) -> tuple[float, ...]:
    fits = isinstance(value, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in value
    )
    if not isinstance(value, list) or not fits:
        raise wrong
    return tuple(float(item) for item in value)


def _quasi_identifier(row: object, where: str) -> QuasiIdentifier:
    read = _Reader(row, where)
    column, hierarchy = read.text("column"), read.take("hierarchy")
    read.done()
    return QuasiIdentifier(column, _hierarchy(hierarchy, f"{where}.hierarchy"))


def _sensitive(row: object, where: str) -> Sensitive:
    read = _Reader(row, where)
    column = read.text("column")
    diversity, closeness = read.take("diversity"), read.take("closeness")
    read.done()
    return Sensitive(
        column,
        None if diversity is None else _diversity(diversity, f"{where}.diversity"),
        None if closeness is None else _closeness(closeness, f"{where}.closeness"),
    )


def _diversity(row: object, where: str) -> Diversity:
    read = _Reader(row, where)
    kind = read.choice("kind", ("distinct", "entropy", "recursive"), "distinct")
    count, c = read.whole("l"), read.number("c")
    read.done()
    if count is None:
        raise read.wrong("l", "given")
    return Diversity(count, cast("DiversityKind", kind), 3.0 if c is None else c)


def _closeness(row: object, where: str) -> Closeness:
    read = _Reader(row, where)
    distance = read.choice("distance", ("equal", "ordered"), "equal")
    t, order = read.number("t"), read.texts("order")
    read.done()
    if t is None:
        raise read.wrong("t", "given")
    return Closeness(t, cast("Distance", distance), order)


def _hierarchy(row: object, where: str) -> HierarchySpec:
    if row is None:
        return FlatHierarchy()
    if isinstance(row, str):
        return FileHierarchy(row)
    read = _Reader(row, where)
    kinds = ("file", "rows", "bins", "bands", "prefix", "dates")
    given = [kind for kind in kinds if isinstance(row, Mapping) and kind in row]
    if len(given) != 1:
        raise SettingsError(
            f"a hierarchy is one of {', '.join(kinds)}", where=where, remedy="name exactly one of them"
        )
    spec = _HIERARCHIES[given[0]](read)
    read.done()
    return spec


def _file(read: _Reader) -> HierarchySpec:
    return FileHierarchy(read.text("file"), read.text("separator", ""))


def _rows(read: _Reader) -> HierarchySpec:
    rows = read.take("rows")
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and row and all(isinstance(cell, str) for cell in row) for row in rows
    ):
        raise read.wrong("rows", "a list of rows of texts")
    return TableHierarchy(tuple(tuple(row) for row in rows))


def _bins(read: _Reader) -> HierarchySpec:
    return BinHierarchy(read.numbers("bins"), read.number("origin") or 0.0)


def _bands(read: _Reader) -> HierarchySpec:
    levels = read.take("bands")
    wrong = read.wrong("bands", "a list of lists of numbers")
    if not isinstance(levels, list):
        raise wrong
    # One list of edges is one level of bands.
    nested = levels if levels and isinstance(levels[0], list) else [levels]
    return BandHierarchy(tuple(_numbers(edges, wrong) for edges in nested))


def _prefix(read: _Reader) -> HierarchySpec:
    keep = read.numbers("prefix")
    if any(length != int(length) for length in keep):
        raise read.wrong("prefix", "a list of whole numbers")
    return PrefixHierarchy(tuple(int(length) for length in keep))


def _dates(read: _Reader) -> HierarchySpec:
    levels, known = read.texts("dates"), ("month", "quarter", "year", "decade", "century")
    if not set(levels) <= set(known):
        raise read.wrong("dates", f"a list of some of {', '.join(known)}")
    return DateHierarchy(cast("tuple[DateLevel, ...]", levels))


_HIERARCHIES: dict[str, Callable[[_Reader], HierarchySpec]] = {
    "file": _file,
    "rows": _rows,
    "bins": _bins,
    "bands": _bands,
    "prefix": _prefix,
    "dates": _dates,
}
