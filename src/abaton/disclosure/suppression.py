"""Small counts are not told, and cannot be worked out from those that are.

A number of people below the floor is printed as ``<5`` (with a floor of 5). The stages of a funnel add up, so a
masked number could be had by subtraction; therefore neighbours are hidden as well, as ``≥5``, until an observer
who knows the sums and how masking works cannot pin any masked number down to one value.

The observer is played by :func:`bounds`: every printed number becomes the range it stands for, and the ranges
are narrowed through the sums until nothing changes. The sums form a chain, so the ranges that remain are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from abaton.errors import AbatonError
from abaton.disclosure.attrition import Funnel, Stage

_MANY = 1 << 62


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of people and how it is printed: as it is, or only as below or not below the floor.

    ``blurred`` means that not even zero is told from other numbers below the floor.
    """

    count: int
    floor: int
    hidden: bool = False
    blurred: bool = False

    @property
    def is_small(self) -> bool:
        """Whether it must be masked in any case."""
        return 0 < self.count < self.floor

    @property
    def is_masked(self) -> bool:
        """Whether the number itself is not printed."""
        return self.is_small or self.hidden or self.blurred

    @property
    def text(self) -> str:
        """The number as it is printed."""
        if self.is_small or (self.blurred and self.count < self.floor):
            return f"<{self.floor}"
        return f"≥{self.floor}" if self.hidden or self.blurred else f"{self.count}"

    @property
    def range(self) -> tuple[int, int]:
        """The numbers it may stand for."""
        if self.blurred and self.count < self.floor:
            return 0, self.floor - 1
        if self.is_small:
            return 1, self.floor - 1
        return (self.floor, _MANY) if self.is_masked else (self.count, self.count)


@dataclass(frozen=True)
class Step:
    """One stage: how many reached it, and the reasons of those who did not; together they are the stage before.

    ``silent`` means that there are reasons, but none is told.
    """

    stage: Stage
    reached: Cell
    reasons: dict[str, Cell] = field(default_factory=dict)
    silent: bool = False


Steps = tuple[Step, ...]


def masked(funnel: Funnel, floor: int) -> Steps:
    """A funnel as it may be shown: nothing below the floor can be told from it.

    >>> young = {Stage.ELIGIBLE: Counter(young=3)}
    >>> funnel = Funnel(Counter({Stage.READ: 10, Stage.ELIGIBLE: 7}), young, (Stage.READ, Stage.ELIGIBLE))
    >>> [(s.reached.text, {r: c.text for r, c in s.reasons.items()}) for s in masked(funnel, 5)]
    [('10', {}), ('≥5', {'young': '<5'})]

    Raises:
        AbatonError: The funnel's numbers do not add up, so that no range could hold them.
    """
    if not funnel.adds_up:
        raise AbatonError("the numbers of the funnel do not add up", remedy="report this as a defect")
    steps = tuple(
        Step(
            stage,
            Cell(funnel.reached[stage], floor),
            {why: Cell(n, floor) for why, n in sorted(funnel.stopped.get(stage, Counter()).items()) if n},
        )
        for stage in funnel.stages
    )
    while _pinned(steps):
        steps = _coarser(steps)
    return steps


def _pinned(steps: Steps) -> int:
    """How many masked numbers an observer can work out."""
    found = 0
    for step, ranges in zip(steps, bounds(steps), strict=True):
        cells = [step.reached, *step.reasons.values()]
        masks = zip(cells, ranges, strict=True)
        found += sum(c.is_masked and low == high and c.range != (low, high) for c, (low, high) in masks)
    return found


def bounds(steps: Steps) -> list[list[tuple[int, int]]]:
    """What an observer knows of every number: of each step the stage first, then its reasons."""
    known = [[step.reached.range, *(cell.range for cell in step.reasons.values())] for step in steps]
    changed = True
    while changed:
        changed = False
        for before, parts, step in zip(known, known[1:], steps[1:], strict=False):
            whole = before[0]
            low, high = sum(a for a, _ in parts), sum(b for _, b in parts)
            high = _MANY if step.silent else high  # then the stage before is only known to be no smaller
            narrowed = [(max(a, whole[0] - (high - b)), min(b, whole[1] - (low - a))) for a, b in parts]
            total = (max(whole[0], low), min(whole[1], high))
            if narrowed != parts or total != whole:
                parts[:], before[0], changed = narrowed, total, True
    return known


def _coarser(steps: Steps) -> Steps:
    """Hide one more number: the one that helps most, a reason rather than a stage, a small one rather than a large.

    When no number is left to hide, the rarest reasons are told as one, and at last no reason is told at all.
    """
    ways = [
        (_pinned(made), isinstance(why, Stage), count, i, made)
        for i, step in enumerate(steps)
        for why, count, made in _hidings(steps, i, step)
    ]
    if ways:
        return min(ways, key=lambda way: way[:4])[4]
    several = [i for i, step in enumerate(steps) if len(step.reasons) > 1]
    if several:
        return _with(steps, several[0], _merged(steps[several[0]]))
    return tuple(
        replace(step, reached=replace(step.reached, blurred=True), reasons={}, silent=True) for step in steps
    )


def _hidings(steps: Steps, at: int, step: Step) -> Iterator[tuple[Stage | str, int, Steps]]:
    """Every number of a step that can still be hidden, and the funnel without it."""
    if step.reached.count and not step.reached.is_masked:
        made = replace(step, reached=replace(step.reached, hidden=True))
        yield step.stage, step.reached.count, _with(steps, at, made)
    for why, cell in step.reasons.items():
        if not cell.is_masked:
            made = replace(step, reasons={**step.reasons, why: replace(cell, hidden=True)})
            yield why, cell.count, _with(steps, at, made)


def _with(steps: Steps, at: int, step: Step) -> Steps:
    return (*steps[:at], step, *steps[at + 1 :])


def _merged(step: Step) -> Step:
    """The two rarest reasons become one."""
    (one, a), (other, b), *rest = sorted(step.reasons.items(), key=lambda item: (item[1].count, item[0]))
    both = Cell(a.count + b.count, a.floor, hidden=True)
    return replace(step, reasons=dict(sorted([*rest, (f"{one}; or {other}", both)])))
