"""Settings of the study document's table ``[privacy.anonymity]``.

One model, read, checked and written back unchanged, without numpy or polars.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Strict, Tag
from pydantic.dataclasses import dataclass

from abaton.errors import SettingsError

Method = Literal["recode", "mondrian", "measure"]
DiversityKind = Literal["distinct", "entropy", "recursive"]
Distance = Literal["equal", "ordered"]
DateLevel = Literal["month", "quarter", "year", "decade", "century"]
Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Name = Annotated[str, Field(min_length=1)]

_MODEL_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
_DATE_LEVELS = ("month", "quarter", "year", "decade", "century")


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class FileHierarchy:
    """Generalisations from a file: one line per value, coarser to the right (ARX's format)."""

    file: Name
    separator: str = ""
    """Empty: detected from the first line."""


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class TableHierarchy:
    """Generalisations in the study document: one row per value, coarser to the right."""

    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class BinHierarchy:
    """Ranges of numbers with increasing widths: (5, 10, 20) gives 20-24, 20-29, 20-39, then all."""

    bins: tuple[Number, ...]
    origin: Number = 0.0


def _wrap_levels(value: Any) -> Any:
    """Wrap one list of edges in the anonymity settings as one level of bands."""
    flat = isinstance(value, list | tuple) and not any(isinstance(edges, list | tuple) for edges in value)
    return (value,) if flat and value else value


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class BandHierarchy:
    """Bands of numbers with given edges, such as age bands; each coarser level keeps some edges."""

    bands: Annotated[tuple[tuple[Number, ...], ...], BeforeValidator(_wrap_levels)]


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class PrefixHierarchy:
    """Prefixes of codes with decreasing lengths: postal codes, ICD-10, ATC."""

    prefix: tuple[Integer, ...]


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class DateHierarchy:
    """Dates generalised to months, quarters, years, decades or centuries, then all."""

    dates: tuple[DateLevel, ...] = ("year", "decade")


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class FlatHierarchy:
    """A value is either released or suppressed."""


_HIERARCHIES = {
    "file": FileHierarchy,
    "rows": TableHierarchy,
    "bins": BinHierarchy,
    "bands": BandHierarchy,
    "prefix": PrefixHierarchy,
    "dates": DateHierarchy,
    "flat": FlatHierarchy,
}


def _file_table(value: Any) -> Any:
    """Convert a name in the anonymity settings to a file hierarchy."""
    return {"file": value} if isinstance(value, str) else value


def _hierarchy_type(value: Any) -> str | None:
    """Return the type of a hierarchy in the anonymity settings by its distinguishing key, or None."""
    if not isinstance(value, Mapping):
        return next((name for name, model in _HIERARCHIES.items() if isinstance(value, model)), None)
    keys = [name for name in _HIERARCHIES if name in value]
    return (keys[0] if len(keys) == 1 else None) if value else "flat"


HierarchySpec = Annotated[
    Annotated[FileHierarchy, Tag("file")]
    | Annotated[TableHierarchy, Tag("rows")]
    | Annotated[BinHierarchy, Tag("bins")]
    | Annotated[BandHierarchy, Tag("bands")]
    | Annotated[PrefixHierarchy, Tag("prefix")]
    | Annotated[DateHierarchy, Tag("dates")]
    | Annotated[FlatHierarchy, Tag("flat")],
    Discriminator(
        _hierarchy_type,
        custom_error_type="hierarchy",
        custom_error_message="a hierarchy is exactly one of file, rows, bins, bands, prefix, dates",
    ),
    BeforeValidator(_file_table),
]


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class QuasiIdentifier:
    """Column that can identify a subject in combination with others, and its generalisation."""

    column: Name
    hierarchy: HierarchySpec = FlatHierarchy()
    weight: Number = 1.0
    """Weight of its loss relative to the other columns; 0 makes its generalisation free."""


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class LDiversity:
    """Setting of l-diversity: the number of distinct sensitive values that every class must have."""

    l: Number  # noqa: E741 - the name of the model
    """An integer, except for kind ``entropy``."""
    kind: DiversityKind = "distinct"
    c: Number = 3.0
    """Only for ``recursive``: the most frequent value stays below c times the sum of the rarer ones."""


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class TCloseness:
    """Setting of t-closeness: the largest distance of the sensitive values of a class from those of the whole table."""

    t: Number
    distance: Distance = "equal"
    order: tuple[str, ...] = ()
    """Only for ``ordered``: the values from lowest to highest; by default by number, then by text."""


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class SensitiveAttribute:
    """Sensitive column with the models required of every class."""

    column: Name
    diversity: LDiversity | None = None
    closeness: TCloseness | None = None


@dataclass(frozen=True, slots=True, config=_MODEL_CONFIG)
class AnonymitySettings:
    """Anonymity settings of a study.

    Attributes:
        quasi_identifiers: columns that identify a subject in combination, in the order of the search's levels.
        k: every released record shares its quasi-identifiers with records of at least k - 1 other subjects.
        sensitive: columns with diversity or closeness required of every class.
        suppression_limit: the largest fraction of suppressed records.
        min_cell_count: the smallest number of subjects of one site in a class; a site's own minimum applies if it is
            larger. In a study it is ``privacy.min_cell_count``.
        method: ``recode`` (optimal common levels), ``mondrian`` (finer, ranges differ between records) or ``measure``
            (metrics only).
        passthrough_columns: further columns of the released table; all others are dropped.
        missing_values: texts that mean a missing value, besides an empty cell.
        population: the number of persons that the table was sampled from, if known.
        sampling_fraction: alternatively the fraction of them in the table.
        subject: the column that identifies the subject of a row; it is never released.
        one_row_per_subject: given instead of ``subject`` where no two rows belong to one subject.
    """

    quasi_identifiers: tuple[QuasiIdentifier, ...]
    k: Integer = 5
    sensitive: tuple[SensitiveAttribute, ...] = ()
    suppression_limit: Number = 0.05
    min_cell_count: Integer | None = None
    method: Method = "recode"
    passthrough_columns: tuple[Name, ...] = ()
    missing_values: tuple[str, ...] = ()
    population: Integer | None = None
    sampling_fraction: Number | None = None
    subject: Name | None = None
    one_row_per_subject: Annotated[bool, Strict()] = False

    def __post_init__(self) -> None:
        """Check the anonymity settings for contradictions."""
        _require(self.quasi_identifiers, "there is no quasi-identifier", "quasi_identifiers")
        _require(self.k >= 1, f"k is {self.k}, less than 1", "k")
        min_cell_count = self.min_cell_count
        _require(
            min_cell_count is None or 1 <= min_cell_count <= self.k,
            f"min_cell_count is not between 1 and k = {self.k}",
            "min_cell_count",
        )
        _require(
            0 <= self.suppression_limit <= 1,
            f"suppression_limit is {self.suppression_limit}, not between 0 and 1",
            "suppression_limit",
        )
        self._check_columns()
        _require(
            self.population is None or self.sampling_fraction is None,
            "population and sampling_fraction are both given",
            "population",
        )
        _require(
            self.population is None or self.population >= 1,
            f"population is {self.population}, less than 1",
            "population",
        )
        fraction = self.sampling_fraction
        _require(
            fraction is None or 0 < fraction <= 1,
            f"sampling_fraction is {fraction}, not in (0, 1]",
            "sampling_fraction",
        )
        for sensitive in self.sensitive:
            _check_sensitive(sensitive)
        for quasi in self.quasi_identifiers:
            _check_hierarchy(quasi)
        weights = [quasi.weight for quasi in self.quasi_identifiers]
        _require(min(weights) >= 0 and any(weights), "a weight is negative, or all are 0", "weight")

    def _check_columns(self) -> None:
        _require(
            self.subject not in self.columns,
            "the subject column would be released, which links the rows of a subject",
            "subject",
        )
        _require(
            self.subject is None or not self.one_row_per_subject,
            "subject and one_row_per_subject are both given",
            "subject",
        )
        _require(
            len(set(self.columns)) == len(self.columns),
            "a column has two roles",
            "quasi_identifiers, sensitive, passthrough_columns",
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the anonymity settings release, in order: quasi-identifiers, sensitive, passthrough."""
        quasi = tuple(q.column for q in self.quasi_identifiers)
        return quasi + tuple(s.column for s in self.sensitive) + self.passthrough_columns

    @property
    def has_sensitive_models(self) -> bool:
        """Whether the anonymity settings require a model of sensitive values."""
        return any(attribute.diversity or attribute.closeness for attribute in self.sensitive)

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each quasi-identifier's loss in the anonymity settings; they add up to 1."""
        total = sum(quasi.weight for quasi in self.quasi_identifiers)
        return tuple(quasi.weight / total for quasi in self.quasi_identifiers)


def _check_sensitive(sensitive: SensitiveAttribute) -> None:
    where = f"sensitive '{sensitive.column}'"
    if (diversity := sensitive.diversity) is not None:
        _require(diversity.l >= 1, f"l is {diversity.l}, less than 1", where)
        is_valid = diversity.kind == "entropy" or diversity.l == int(diversity.l)
        _require(is_valid, f"l is {diversity.l}, but only kind = 'entropy' allows fractions", where)
        _require(diversity.c > 0, f"c is {diversity.c}, not positive", where)
    if (closeness := sensitive.closeness) is not None:
        _require(0 <= closeness.t <= 1, f"t is {closeness.t}, not between 0 and 1", where)
        _require(
            closeness.distance == "ordered" or not closeness.order,
            "order is given, but distance is not 'ordered'",
            where,
        )


def _check_hierarchy(quasi: QuasiIdentifier) -> None:
    where = f"hierarchy of '{quasi.column}'"
    match quasi.hierarchy:
        case BinHierarchy(bins=widths):
            _require(
                bool(widths) and all(w > 0 for w in widths),
                "a width is not positive, or there is none",
                where,
            )
            nested = all(abs(b / a - round(b / a)) < 1e-9 and b > a for a, b in itertools.pairwise(widths))
            _require(nested, "a width is not a larger multiple of the one before", where)
        case BandHierarchy(bands=levels):
            _require(bool(levels) and all(levels), "a level of bands has no edges", where)
            is_rising = all(tuple(sorted(set(edges))) == edges for edges in levels)
            _require(is_rising, "the edges of a level are not in rising order", where)
            nested = all(set(b) < set(a) for a, b in itertools.pairwise(levels))
            _require(nested, "the edges of a level of bands are not a proper subset of those before", where)
        case PrefixHierarchy(prefix=lengths):
            is_falling = all(b < a for a, b in itertools.pairwise(lengths))
            _require(
                bool(lengths) and is_falling and lengths[-1] >= 1,
                "prefix lengths are not decreasing, or less than 1",
                where,
            )
        case DateHierarchy(dates=levels):
            indices = [_DATE_LEVELS.index(level) for level in levels]
            _require(
                bool(indices) and indices == sorted(set(indices)),
                "date levels are not in order from fine to coarse",
                where,
            )
        case TableHierarchy(rows=rows):
            _require(bool(rows), "the table of generalisations is empty", where)
        case FileHierarchy() | FlatHierarchy():
            pass


def _require(condition: object, what: str, where: str) -> None:
    if not condition:
        raise SettingsError(
            what,
            where=f"privacy.anonymity: {where}",
            remedy="correct [privacy.anonymity] in the study document",
        )
