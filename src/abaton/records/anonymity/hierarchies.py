"""Generalisation hierarchies: every value of a column with its ever coarser names.

A spec from the study document becomes a :class:`Ladder` once the column's values are known. Invariants:
(1) level 0 is the value itself; (2) two values that share a name on one level share it on every coarser one;
(3) a missing value is a value of its own and joins the others only on the last level, if that has one name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.records.anonymity.generalisations import STAR, levels_of, rows_of
from abaton.anonymity.settings import (
    BandHierarchy,
    BinHierarchy,
    FileHierarchy,
    HierarchySpec,
    QuasiIdentifier,
    TableHierarchy,
)

Label = str | None
"""A name on some level; ``None`` is "not known"."""

_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?")


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """A column's values and their names on every level, from the value itself to the coarsest.

    Attributes:
        column: The column's name.
        labels: ``labels[level][code]`` is the name a code stands for; level 0 holds the values, ordered so
            that neighbours share their coarser names.
        steps: ``steps[level][leaf]`` is the code on that level of a value.
        leaves: ``leaves[level][code]`` is how many values of the domain a code covers.
        numeric: Whether values are numbers, so that 7, 7.0 and 7.00 are one.
        covers: Per level, about how many values a name stands for, told without looking at any; none where the study's
            document lists the values itself.
    """

    column: str
    labels: tuple[tuple[Label, ...], ...]
    steps: tuple[NDArray[np.int32], ...]
    leaves: tuple[NDArray[np.int64], ...]
    numeric: bool = False
    covers: tuple[int, ...] | None = None

    @property
    def height(self) -> int:
        """The coarsest level."""
        return len(self.labels) - 1

    @property
    def size(self) -> int:
        """How many values the domain has."""
        return int(self.leaves[0].sum())

    def shares(self, level: int) -> NDArray[np.float64]:
        """For every value, the share of the domain its name on a level covers: 1/size up to 1."""
        share: NDArray[np.float64] = self.leaves[level][self.steps[level]] / self.size
        return share


def ladder(
    quasi: QuasiIdentifier, values: Sequence[Label], *, folder: Path = Path(), missing: Iterable[str] = ()
) -> Ladder:
    """Build the ladder of a column from its hierarchy and the values that occur in it.

    Args:
        quasi: The column and its hierarchy.
        values: The distinct values, as text; ``None`` is a missing one.
        folder: Where hierarchy files named without a folder lie: beside the study document.
        missing: Texts that stand for a missing value in a hierarchy's file.

    Raises:
        SettingsError: Values are not in the hierarchy, or it is not a hierarchy.

    >>> from abaton.anonymity import BinHierarchy
    >>> ladder(QuasiIdentifier("age", BinHierarchy((10.0,))), ["7", "23", "21"]).labels
    (('7', '21', '23'), ('0-9', '20-29'), ('*',))
    """
    present = [value for value in values if value is not None]
    where = f"hierarchy of column '{quasi.column}'"
    rows = rows_of(quasi.hierarchy, present, folder, where)
    absent = {"", *missing}
    chains: dict[Label, tuple[Label, ...]] = {}
    for row in rows:
        leaf = None if row[0] in absent else row[0]
        if leaf in chains:
            raise SettingsError("a value is listed twice", where=where, remedy="keep one line per value")
        chains[leaf] = (leaf, *row[1:])
    if None not in chains and len(present) < len(values):
        chains[None] = _missing_chain(list(chains.values()), quasi.hierarchy)
    _check_nested(chains.values(), where)
    numeric = isinstance(quasi.hierarchy, BinHierarchy | BandHierarchy)
    if not numeric:
        _check_present(chains, present, where)
    ordered = sorted(chains.values(), key=_by_number if numeric else by_name)
    made = ladder_of(quasi.column, ordered, [1] * len(ordered))
    return replace(made, numeric=numeric, covers=_covers(quasi.hierarchy, made.height))


def _covers(spec: HierarchySpec, height: int) -> tuple[int, ...] | None:
    """How many values the names of each level stand for: the width of a range, or twice as many as a level below."""
    if isinstance(spec, FileHierarchy | TableHierarchy):
        return None
    widths = [1.0, *(spec.bins if isinstance(spec, BinHierarchy) else ())]
    return tuple(max(2**level, int(widths[min(level, len(widths) - 1)])) for level in range(height + 1))


def aliases(made: Ladder, values: Iterable[Label]) -> dict[Label, int]:
    """Which leaf each value of a table is: by its text, or by the number it spells (63.0 is 63)."""
    codes = {label: code for code, label in enumerate(made.labels[0])}
    if made.numeric:
        return {value: codes[None if value is None else f"{float(value):.15g}"] for value in values}
    spelled = _spellings(made.labels[0])
    return {
        value: codes[value] if value in codes else codes[spelled[_number_text(value)]] for value in values
    }


def _spellings(labels: Iterable[Label]) -> dict[Label, Label]:
    """How a hierarchy writes each of its values that is a whole number; the first spelling counts."""
    spelled: dict[Label, Label] = {}
    for label in labels:
        spelled.setdefault(_number_text(label), label)
    return spelled


def _number_text(value: Label) -> Label:
    """63.0 and 63 are one number; 063 stays a code of its own."""
    whole = _WHOLE.fullmatch(value) if value is not None else None
    return whole[1] if whole else value


def _missing_chain(chains: list[tuple[Label, ...]], spec: HierarchySpec) -> tuple[Label, ...]:
    # A column without a single value still has the levels that the other sites see.
    height = len(chains[0]) if chains else levels_of(spec)
    tops: set[Label] = {chain[-1] for chain in chains} or {STAR}
    top = next(iter(tops)) if len(tops) == 1 and height > 1 else None
    return (*[None] * (height - 1), top)


def _check_present(chains: dict[Label, tuple[Label, ...]], present: list[str], where: str) -> None:
    spelled = _spellings(chains)
    strangers = sum(value not in chains and _number_text(value) not in spelled for value in present)
    if strangers:
        raise SettingsError(
            f"{strangers} of {len(present)} different values of the table are not in the hierarchy",
            where=where,
            remedy="add them to the hierarchy, or name the ones that mean 'not known' under 'missing'",
        )


def _check_nested(chains: Iterable[tuple[Label, ...]], where: str) -> None:
    parents: dict[tuple[int, Label], Label] = {}
    for chain in chains:
        for level in range(len(chain) - 1):
            if parents.setdefault((level, chain[level]), chain[level + 1]) != chain[level + 1]:
                raise SettingsError(
                    f"a name of level {level} has two different names on level {level + 1}",
                    where=where,
                    remedy="values that share a name must share all coarser ones",
                )


def by_name(chain: tuple[Label, ...]) -> list[tuple[bool, float, str]]:
    """Coarsest name first, names that start with a number by its size: so Mondrian may cut anywhere."""
    key = []
    for label in (*reversed(chain[1:]), chain[0]):
        number = re.match(r"-?\d+(?:\.\d+)?", label or "")
        key.append((label is None, float(number[0]) if number else -np.inf, label or ""))
    return key


def _by_number(chain: tuple[Label, ...]) -> tuple[bool, float, str]:
    """By size, the missing value last."""
    return chain[0] is None, float(chain[0] or "inf"), chain[0] or ""


def ladder_of(column: str, chains: Sequence[tuple[Label, ...]], weights: Sequence[int]) -> Ladder:
    """A ladder from its values' chains of names and how many values of the domain each stands for."""
    labels: list[tuple[Label, ...]] = []
    steps: list[NDArray[np.int32]] = []
    leaves: list[NDArray[np.int64]] = []
    for level in range(len(chains[0]) if chains else 1):
        codes: dict[Label, int] = {}
        step = np.array([codes.setdefault(chain[level], len(codes)) for chain in chains], np.int32)
        labels.append(tuple(codes))
        steps.append(step)
        leaves.append(np.bincount(step, weights, len(codes)).astype(np.int64))
    return Ladder(column, tuple(labels), tuple(steps), tuple(leaves))
