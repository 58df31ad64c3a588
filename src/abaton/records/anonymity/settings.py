"""What a study asks of a whole table: what could give a person away, and how well each must be hidden.

The settings come from the study document's table ``[privacy.anonymity]``; this module uses the standard
library only, so that a phone or a study editor can read them without the counting parts.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from abaton.errors import SettingsError

Method = Literal["recode", "mondrian", "measure"]
DiversityKind = Literal["distinct", "entropy", "recursive"]
Distance = Literal["equal", "ordered"]
DateLevel = Literal["month", "quarter", "year", "decade", "century"]


@dataclass(frozen=True, slots=True)
class FileHierarchy:
    """Generalisations listed in a file: one line per value, coarser to the right (the form ARX uses)."""

    file: str
    separator: str = ""
    """Empty: found from the first line."""


@dataclass(frozen=True, slots=True)
class TableHierarchy:
    """Generalisations written into the study document itself: one row per value, coarser to the right."""

    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class BinHierarchy:
    """Numbers become ranges, ever wider: widths (5, 10, 20) give 20-24, 20-29, 20-39, then everything."""

    widths: tuple[float, ...]
    origin: float = 0.0


@dataclass(frozen=True, slots=True)
class BandHierarchy:
    """Numbers become bands with chosen edges, such as age bands; each coarser level keeps some edges."""

    levels: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class PrefixHierarchy:
    """Codes keep their first characters only, ever fewer: postal codes, ICD-10, ATC."""

    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DateHierarchy:
    """Dates become months, quarters, years, decades or centuries, and then everything."""

    levels: tuple[DateLevel, ...] = ("year", "decade")


@dataclass(frozen=True, slots=True)
class FlatHierarchy:
    """A value is either shown or hidden; nothing lies between."""


HierarchySpec = (
    FileHierarchy
    | TableHierarchy
    | BinHierarchy
    | BandHierarchy
    | PrefixHierarchy
    | DateHierarchy
    | FlatHierarchy
)


@dataclass(frozen=True, slots=True)
class QuasiIdentifier:
    """A column by which a person could be recognised together with others, and how it may be coarsened."""

    column: str
    hierarchy: HierarchySpec = FlatHierarchy()


@dataclass(frozen=True, slots=True)
class Diversity:
    """How many different sensitive values every class must hold (l-diversity)."""

    l: int  # noqa: E741 - the name of the model
    kind: DiversityKind = "distinct"
    c: float = 3.0
    """Only for ``recursive``: the most frequent value stays below c times the sum of the rarer ones."""


@dataclass(frozen=True, slots=True)
class Closeness:
    """How far the sensitive values of a class may be from those of the whole table (t-closeness)."""

    t: float
    distance: Distance = "equal"
    order: tuple[str, ...] = ()
    """Only for ``ordered``: the values from lowest to highest; empty means by number, then by text."""


@dataclass(frozen=True, slots=True)
class Sensitive:
    """A column nobody should learn about a person, with what is asked of it in every class."""

    column: str
    diversity: Diversity | None = None
    closeness: Closeness | None = None


@dataclass(frozen=True, slots=True)
class AnonymitySettings:
    """Everything a study asks of a table before it may be used.

    Attributes:
        quasi_identifiers: Columns that recognise a person together, in the order of the search's levels.
        k: Every released record shares its quasi-identifiers with at least k - 1 others.
        sensitive: Columns with diversity or closeness asked of every class.
        suppression_limit: The largest share of records that may be left out.
        local_floor: The smallest class a single site may contribute; 1 asks for nothing.
        method: ``recode`` (same ranges for everybody, the best there is), ``mondrian`` (finer, ranges
            differ from record to record) or ``measure`` (change nothing, only tell).
        keep: Further columns that stay in the released table; all others are left out.
        missing: Cells that mean "not known"; an empty cell always does.
        population: How many people the table was drawn from, if known.
        sampling_fraction: Or which share of them is in the table.
    """

    quasi_identifiers: tuple[QuasiIdentifier, ...]
    k: int = 5
    sensitive: tuple[Sensitive, ...] = ()
    suppression_limit: float = 0.05
    local_floor: int = 1
    method: Method = "recode"
    keep: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    population: int | None = None
    sampling_fraction: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that contradict themselves, before anything is read."""
        _require(bool(self.quasi_identifiers), "no quasi-identifier is named", "quasi_identifiers")
        _require(self.k >= 1, "k must be at least 1", "k")
        _require(1 <= self.local_floor <= self.k, "the local floor must lie between 1 and k", "local_floor")
        _require(0 <= self.suppression_limit <= 1, "a share lies between 0 and 1", "suppression_limit")
        columns = [q.column for q in self.quasi_identifiers] + [s.column for s in self.sensitive]
        columns += self.keep
        twice = sorted({column for column in columns if columns.count(column) > 1})
        _require(
            not twice, f"column '{', '.join(twice)}' has two roles", "quasi_identifiers, sensitive, keep"
        )
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

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a released table, in order: quasi-identifiers, sensitive ones, kept ones."""
        quasi = tuple(q.column for q in self.quasi_identifiers)
        return quasi + tuple(s.column for s in self.sensitive) + self.keep


def _check_sensitive(sensitive: Sensitive) -> None:
    where = f"sensitive '{sensitive.column}'"
    if (diversity := sensitive.diversity) is not None:
        _require(diversity.l >= 1, "l must be at least 1", where)
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
        case BinHierarchy(widths=widths):
            _require(bool(widths) and all(w > 0 for w in widths), "widths must be positive", where)
            nested = all(abs(b / a - round(b / a)) < 1e-9 and b > a for a, b in itertools.pairwise(widths))
            _require(nested, "each width must be a larger multiple of the one before", where)
        case BandHierarchy(levels=levels):
            _require(bool(levels) and all(levels), "every level of bands needs edges", where)
            rising = all(tuple(sorted(set(edges))) == edges for edges in levels)
            _require(rising, "edges must rise", where)
            nested = all(set(b) < set(a) for a, b in itertools.pairwise(levels))
            _require(nested, "each level of bands must keep some of the edges of the one before", where)
        case PrefixHierarchy(keep=keep):
            falling = all(b < a for a, b in itertools.pairwise(keep))
            _require(bool(keep) and falling and keep[-1] >= 1, "kept lengths must fall, down to 1", where)
        case DateHierarchy(levels=levels):
            order = ["month", "quarter", "year", "decade", "century"]
            places = [order.index(level) for level in levels]
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
