"""What a study asks of a whole table: what could give a person away, and how well each must be hidden.

The settings are the study document's table ``[privacy.anonymity]`` itself: one model, read, checked and written
back as it stands, without numpy or polars.
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
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Name = Annotated[str, Field(min_length=1)]

_FORM = ConfigDict(extra="forbid", allow_inf_nan=False)
_DATE_LEVELS = ("month", "quarter", "year", "decade", "century")


@dataclass(frozen=True, slots=True, config=_FORM)
class FileHierarchy:
    """Generalisations listed in a file: one line per value, coarser to the right (the form ARX uses)."""

    file: Name
    separator: str = ""
    """Empty: found from the first line."""


@dataclass(frozen=True, slots=True, config=_FORM)
class TableHierarchy:
    """Generalisations written into the study document itself: one row per value, coarser to the right."""

    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, config=_FORM)
class BinHierarchy:
    """Numbers become ranges, ever wider: widths (5, 10, 20) give 20-24, 20-29, 20-39, then everything."""

    bins: tuple[Number, ...]
    origin: Number = 0.0


def _levels(value: Any) -> Any:
    """One list of edges is one level of bands."""
    flat = isinstance(value, list | tuple) and not any(isinstance(edges, list | tuple) for edges in value)
    return (value,) if flat and value else value


@dataclass(frozen=True, slots=True, config=_FORM)
class BandHierarchy:
    """Numbers become bands with chosen edges, such as age bands; each coarser level keeps some edges."""

    bands: Annotated[tuple[tuple[Number, ...], ...], BeforeValidator(_levels)]


@dataclass(frozen=True, slots=True, config=_FORM)
class PrefixHierarchy:
    """Codes keep their first characters only, ever fewer: postal codes, ICD-10, ATC."""

    prefix: tuple[Whole, ...]


@dataclass(frozen=True, slots=True, config=_FORM)
class DateHierarchy:
    """Dates become months, quarters, years, decades or centuries, and then everything."""

    dates: tuple[DateLevel, ...] = ("year", "decade")


@dataclass(frozen=True, slots=True, config=_FORM)
class FlatHierarchy:
    """A value is either shown or hidden; nothing lies between."""


_HIERARCHIES = {
    "file": FileHierarchy,
    "rows": TableHierarchy,
    "bins": BinHierarchy,
    "bands": BandHierarchy,
    "prefix": PrefixHierarchy,
    "dates": DateHierarchy,
    "flat": FlatHierarchy,
}


def _as_table(value: Any) -> Any:
    """A name alone is that of a file."""
    return {"file": value} if isinstance(value, str) else value


def _kind(value: Any) -> str | None:
    """Which hierarchy a table means: exactly one of the keys that tell them apart, or none at all."""
    if not isinstance(value, Mapping):
        return next((kind for kind, model in _HIERARCHIES.items() if isinstance(value, model)), None)
    given = [kind for kind in _HIERARCHIES if kind in value]
    return (given[0] if len(given) == 1 else None) if value else "flat"


HierarchySpec = Annotated[
    Annotated[FileHierarchy, Tag("file")]
    | Annotated[TableHierarchy, Tag("rows")]
    | Annotated[BinHierarchy, Tag("bins")]
    | Annotated[BandHierarchy, Tag("bands")]
    | Annotated[PrefixHierarchy, Tag("prefix")]
    | Annotated[DateHierarchy, Tag("dates")]
    | Annotated[FlatHierarchy, Tag("flat")],
    Discriminator(
        _kind,
        custom_error_type="hierarchy",
        custom_error_message="a hierarchy is exactly one of file, rows, bins, bands, prefix, dates",
    ),
    BeforeValidator(_as_table),
]


@dataclass(frozen=True, slots=True, config=_FORM)
class QuasiIdentifier:
    """A column by which a person could be recognised together with others, and how it may be coarsened."""

    column: Name
    hierarchy: HierarchySpec = FlatHierarchy()
    weight: Number = 1.0
    """How much its loss counts beside that of the other columns; 0 lets it be coarsened for nothing."""


@dataclass(frozen=True, slots=True, config=_FORM)
class Diversity:
    """How many different sensitive values every class must hold (l-diversity)."""

    l: Number  # noqa: E741 - the name of the model
    """A whole number; only ``entropy`` knows 2.5 values."""
    kind: DiversityKind = "distinct"
    c: Number = 3.0
    """Only for ``recursive``: the most frequent value stays below c times the sum of the rarer ones."""


@dataclass(frozen=True, slots=True, config=_FORM)
class Closeness:
    """How far the sensitive values of a class may be from those of the whole table (t-closeness)."""

    t: Number
    distance: Distance = "equal"
    order: tuple[str, ...] = ()
    """Only for ``ordered``: the values from lowest to highest; empty means by number, then by text."""


@dataclass(frozen=True, slots=True, config=_FORM)
class Sensitive:
    """A column nobody should learn about a person, with what is asked of it in every class."""

    column: Name
    diversity: Diversity | None = None
    closeness: Closeness | None = None


@dataclass(frozen=True, slots=True, config=_FORM)
class AnonymitySettings:
    """Everything a study asks of a table before it may be used.

    Attributes:
        quasi_identifiers: Columns that recognise a person together, in the order of the search's levels.
        k: Every released record shares its quasi-identifiers with records of at least k - 1 other people.
        sensitive: Columns with diversity or closeness asked of every class.
        suppression_limit: The largest share of records that may be left out.
        local_floor: The smallest number of people a single site may contribute to a class; the smallest count that the
            site tells if that is more, or if none is given.
        method: ``recode`` (same ranges for everybody, the best there is), ``mondrian`` (finer, ranges
            differ from record to record) or ``measure`` (change nothing, only tell).
        keep: Further columns that stay in the released table; all others are left out.
        missing: Cells that mean "not known"; an empty cell always does.
        population: How many people the table was drawn from, if known.
        sampling_fraction: Or which share of them is in the table.
        subject: The column that says whose record a row is; it is never released.
        rows_are_people: Said instead of ``subject`` where no two rows are of one person.
    """

    quasi_identifiers: tuple[QuasiIdentifier, ...]
    k: Whole = 5
    sensitive: tuple[Sensitive, ...] = ()
    suppression_limit: Number = 0.05
    local_floor: Whole | None = None
    method: Method = "recode"
    keep: tuple[Name, ...] = ()
    missing: tuple[str, ...] = ()
    population: Whole | None = None
    sampling_fraction: Number | None = None
    subject: Name | None = None
    rows_are_people: Annotated[bool, Strict()] = False

    def __post_init__(self) -> None:
        """Refuse settings that contradict themselves, before anything is read."""
        _require(self.quasi_identifiers, "no quasi-identifier is named", "quasi_identifiers")
        _require(self.k >= 1, "k must be at least 1", "k")
        floor = self.local_floor
        _require(
            floor is None or 1 <= floor <= self.k, "the local floor must lie between 1 and k", "local_floor"
        )
        _require(0 <= self.suppression_limit <= 1, "a share lies between 0 and 1", "suppression_limit")
        self._check_columns()
        _require(
            self.population is None or self.sampling_fraction is None,
            "population and sampling_fraction say the same thing twice",
            "population",
        )
        _require(self.population is None or self.population >= 1, "a population has people", "population")
        fraction = self.sampling_fraction
        _require(fraction is None or 0 < fraction <= 1, "a fraction lies in (0, 1]", "sampling_fraction")
        for sensitive in self.sensitive:
            _check_sensitive(sensitive)
        for quasi in self.quasi_identifiers:
            _check_hierarchy(quasi)
        weights = [quasi.weight for quasi in self.quasi_identifiers]
        _require(min(weights) >= 0 and any(weights), "weights are positive, or 0 for some", "weight")

    def _check_columns(self) -> None:
        _require(
            self.subject not in self.columns,
            f"the subject column '{self.subject}' would be released: it tells which rows are of one person",
            "subject",
        )
        _require(
            self.subject is None or not self.rows_are_people,
            "subject and rows_are_people exclude each other",
            "subject",
        )
        twice = sorted({column for column in self.columns if self.columns.count(column) > 1})
        _require(
            not twice, f"column '{', '.join(twice)}' has two roles", "quasi_identifiers, sensitive, keep"
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a released table, in order: quasi-identifiers, sensitive ones, kept ones."""
        quasi = tuple(q.column for q in self.quasi_identifiers)
        return quasi + tuple(s.column for s in self.sensitive) + self.keep

    @property
    def asks_of_values(self) -> bool:
        """Whether anything is asked of sensitive values."""
        return any(each.diversity or each.closeness for each in self.sensitive)

    @property
    def weights(self) -> tuple[float, ...]:
        """How much each quasi-identifier's loss counts, as shares of 1."""
        whole = sum(quasi.weight for quasi in self.quasi_identifiers)
        return tuple(quasi.weight / whole for quasi in self.quasi_identifiers)


def _check_sensitive(sensitive: Sensitive) -> None:
    where = f"sensitive '{sensitive.column}'"
    if (diversity := sensitive.diversity) is not None:
        _require(diversity.l >= 1, "l must be at least 1", where)
        whole = diversity.kind == "entropy" or diversity.l == int(diversity.l)
        _require(whole, "l must be a whole number, except for kind = 'entropy'", where)
        _require(diversity.c > 0, "c must be positive", where)
    if (closeness := sensitive.closeness) is not None:
        _require(0 <= closeness.t <= 1, "t lies between 0 and 1", where)
        _require(
            closeness.distance == "ordered" or not closeness.order,
            "an order is given for a distance that has none",
            where,
        )


def _check_hierarchy(quasi: QuasiIdentifier) -> None:
    where = f"hierarchy of '{quasi.column}'"
    match quasi.hierarchy:
        case BinHierarchy(bins=widths):
            _require(bool(widths) and all(w > 0 for w in widths), "widths must be positive", where)
            nested = all(abs(b / a - round(b / a)) < 1e-9 and b > a for a, b in itertools.pairwise(widths))
            _require(nested, "each width must be a larger multiple of the one before", where)
        case BandHierarchy(bands=levels):
            _require(bool(levels) and all(levels), "every level of bands needs edges", where)
            rising = all(tuple(sorted(set(edges))) == edges for edges in levels)
            _require(rising, "edges must rise", where)
            nested = all(set(b) < set(a) for a, b in itertools.pairwise(levels))
            _require(nested, "each level of bands must keep some of the edges of the one before", where)
        case PrefixHierarchy(prefix=keep):
            falling = all(b < a for a, b in itertools.pairwise(keep))
            _require(bool(keep) and falling and keep[-1] >= 1, "kept lengths must fall, down to 1", where)
        case DateHierarchy(dates=levels):
            places = [_DATE_LEVELS.index(level) for level in levels]
            _require(bool(places) and places == sorted(set(places)), "date levels must get coarser", where)
        case TableHierarchy(rows=rows):
            _require(bool(rows), "the table of generalisations is empty", where)
        case FileHierarchy() | FlatHierarchy():
            pass


def _require(holds: object, what: str, where: str) -> None:
    if not holds:
        raise SettingsError(
            what,
            where=f"privacy.anonymity: {where}",
            remedy="correct the study document's [privacy.anonymity]",
        )
