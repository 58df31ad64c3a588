"""Suppression of small counts in an attrition table, with complementary suppression.

A count of subjects below `min_cell_count` is printed as ``<5`` (for 5). The stages add up, so a suppressed count could
be found by differencing; therefore further counts are suppressed as ``≥5``. Rules of thumb (suppress the next smallest
cell) fail for chains such as 9, 8, 7, 6, 5. Suppression continues until interval propagation over the sums
(:func:`feasible_ranges`), which is exact for a chain, cannot determine a suppressed value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from abaton.disclosure.attrition import Attrition, AttritionStage
from abaton.errors import AbatonError

_UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class SuppressedCount:
    """Count of subjects and its printed form: exact, or only as below or not below `min_cell_count`.

    ``zero_suppressed`` means that zero is not distinguished from other counts below `min_cell_count`.
    """

    count: int
    min_cell_count: int
    suppressed: bool = False
    zero_suppressed: bool = False

    @property
    def is_below_threshold(self) -> bool:
        """Whether primary suppression applies: the count must be suppressed in any case."""
        return 0 < self.count < self.min_cell_count

    @property
    def is_suppressed(self) -> bool:
        """Whether suppression hides the exact count."""
        return self.is_below_threshold or self.suppressed or self.zero_suppressed

    @property
    def text(self) -> str:
        """The printed form of a count after suppression."""
        if self.is_below_threshold or (self.zero_suppressed and self.count < self.min_cell_count):
            return f"<{self.min_cell_count}"
        return f"≥{self.min_cell_count}" if self.suppressed or self.zero_suppressed else f"{self.count}"

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and highest count with the same printed form after suppression."""
        if self.zero_suppressed and self.count < self.min_cell_count:
            return 0, self.min_cell_count - 1
        if self.is_below_threshold:
            return 1, self.min_cell_count - 1
        return (self.min_cell_count, _UNBOUNDED) if self.is_suppressed else (self.count, self.count)


@dataclass(frozen=True)
class AttritionStep:
    """Attrition stage: subjects that reached it, and excluded ones by reason; the sum is the previous stage.

    ``reasons_suppressed`` means that there are reasons, but none is printed.
    """

    stage: AttritionStage
    reached: SuppressedCount
    reasons: dict[str, SuppressedCount] = field(default_factory=dict)
    reasons_suppressed: bool = False


Steps = tuple[AttritionStep, ...]


def suppress_attrition(attrition: Attrition, min_cell_count: int) -> Steps:
    """Return the attrition with suppressed counts, from which no count below `min_cell_count` can be determined.

    >>> young = {AttritionStage.ELIGIBLE: Counter(young=3)}
    >>> reached = Counter({AttritionStage.READ: 10, AttritionStage.ELIGIBLE: 7})
    >>> attrition = Attrition(reached, young, (AttritionStage.READ, AttritionStage.ELIGIBLE))
    >>> [(s.reached.text, {r: c.text for r, c in s.reasons.items()}) for s in suppress_attrition(attrition, 5)]
    [('10', {}), ('≥5', {'young': '<5'})]

    Raises:
        AbatonError: The counts do not add up, so no consistent ranges exist.
    """
    if not attrition.adds_up:
        raise AbatonError("the counts of the attrition do not add up", remedy="report this as a defect")
    steps = tuple(
        AttritionStep(
            stage,
            SuppressedCount(attrition.reached[stage], min_cell_count),
            {
                reason: SuppressedCount(n, min_cell_count)
                for reason, n in sorted(attrition.excluded.get(stage, Counter()).items())
                if n
            },
        )
        for stage in attrition.stages
    )
    while _count_determined(steps):
        steps = _suppress_one_more(steps)
    return steps


def _count_determined(steps: Steps) -> int:
    """Return how many suppressed counts an observer can determine despite suppression."""
    determined = 0
    for step, ranges in zip(steps, feasible_ranges(steps), strict=True):
        cells = [step.reached, *step.reasons.values()]
        pairs = zip(cells, ranges, strict=True)
        determined += sum(
            c.is_suppressed and low == high and c.range != (low, high) for c, (low, high) in pairs
        )
    return determined


def feasible_ranges(steps: Steps) -> list[list[tuple[int, int]]]:
    """Return each count's range that an observer can derive despite suppression: stage first, then reasons.

    Every printed count becomes its range, and the ranges are narrowed through the sums until nothing changes.
    """
    ranges = [[step.reached.range, *(cell.range for cell in step.reasons.values())] for step in steps]
    changed = True
    while changed:
        changed = False
        for previous, addends, step in zip(ranges, ranges[1:], steps[1:], strict=False):
            total = previous[0]
            low, high = sum(a for a, _ in addends), sum(b for _, b in addends)
            high = (
                _UNBOUNDED if step.reasons_suppressed else high
            )  # then only a lower bound of the stage is known
            narrowed = [(max(a, total[0] - (high - b)), min(b, total[1] - (low - a))) for a, b in addends]
            narrowed_total = (max(total[0], low), min(total[1], high))
            if narrowed != addends or narrowed_total != total:
                addends[:], previous[0], changed = narrowed, narrowed_total, True
    return ranges


def _suppress_one_more(steps: Steps) -> Steps:
    """Suppress one more count: the most effective one, a reason before a stage, a small one before a large.

    When all counts are suppressed, the two rarest reasons are merged; in the end no reason is printed.
    """
    candidates = [
        (_count_determined(candidate), isinstance(name, AttritionStage), count, i, candidate)
        for i, step in enumerate(steps)
        for name, count, candidate in _suppression_candidates(steps, i, step)
    ]
    if candidates:
        return min(candidates, key=lambda candidate: candidate[:4])[4]
    with_reasons = [i for i, step in enumerate(steps) if len(step.reasons) > 1]
    if with_reasons:
        return _replace_step(steps, with_reasons[0], _merge_rarest_reasons(steps[with_reasons[0]]))
    return tuple(
        replace(
            step, reached=replace(step.reached, zero_suppressed=True), reasons={}, reasons_suppressed=True
        )
        for step in steps
    )


def _suppression_candidates(
    steps: Steps, index: int, step: AttritionStep
) -> Iterator[tuple[AttritionStage | str, int, Steps]]:
    """Yield the steps with one more count of a step suppressed, for each count that still can be."""
    if step.reached.count and not step.reached.is_suppressed:
        suppressed = replace(step, reached=replace(step.reached, suppressed=True))
        yield step.stage, step.reached.count, _replace_step(steps, index, suppressed)
    for reason, cell in step.reasons.items():
        if not cell.is_suppressed:
            suppressed = replace(step, reasons={**step.reasons, reason: replace(cell, suppressed=True)})
            yield reason, cell.count, _replace_step(steps, index, suppressed)


def _replace_step(steps: Steps, index: int, step: AttritionStep) -> Steps:
    return (*steps[:index], step, *steps[index + 1 :])


def _merge_rarest_reasons(step: AttritionStep) -> AttritionStep:
    """Return the step with its two rarest reasons merged into one, where suppression alone does not suffice."""
    (first, a), (second, b), *others = sorted(step.reasons.items(), key=lambda item: (item[1].count, item[0]))
    merged = SuppressedCount(a.count + b.count, a.min_cell_count, suppressed=True)
    return replace(step, reasons=dict(sorted([*others, (f"{first}; or {second}", merged)])))
