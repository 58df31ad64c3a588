"""Attrition of a cohort: subjects read, eligible, consented and retained, their rows, and reasons for exclusion.

A run on one machine adds subjects that remain anonymous, those in force at its end, and those evaluated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class AttritionStage(StrEnum):
    """Stage of the attrition, in the order of processing."""

    READ = "read"
    ELIGIBLE = "eligible"
    CONSENTED = "consented"
    RETAINED = "retained"
    ROWS = "rows"
    ANONYMOUS = "anonymous"
    IN_FORCE = "in_force"
    EVALUATED = "evaluated"


@dataclass(slots=True)
class Attrition:
    """Subjects by stage, and for each stage the excluded subjects by reason.

    Invariant: a subject that is missing at a stage is counted there once, under its first reason, so the counts of
    neighbouring stages add up.

    >>> attrition = Attrition()
    >>> attrition.count_subject(AttritionStage.READ)
    >>> attrition.exclude_subject(AttritionStage.ELIGIBLE, "criterion 1 (age) is not met")
    >>> attrition.reached[AttritionStage.READ], attrition.adds_up
    (1, True)
    """

    reached: Counter[AttritionStage] = field(default_factory=Counter)
    excluded: dict[AttritionStage, Counter[str]] = field(default_factory=dict)
    stages: tuple[AttritionStage, ...] = (
        AttritionStage.READ,
        AttritionStage.ELIGIBLE,
        AttritionStage.CONSENTED,
        AttritionStage.RETAINED,
    )

    def count_subject(self, stage: AttritionStage) -> None:
        """Count a subject that reached the stage of the attrition."""
        self.reached[stage] += 1

    def exclude_subject(self, stage: AttritionStage, reason: str) -> None:
        """Count a subject that did not reach the stage of the attrition, with the reason."""
        self.excluded.setdefault(stage, Counter())[reason] += 1

    def with_rows(self, rows: int, reasons: Counter[str]) -> Attrition:
        """Return the attrition with its last stage: retained subjects with a row, and the reasons for missing rows."""
        reached = Counter({**self.reached, AttritionStage.ROWS: rows})
        excluded = {**self.excluded, AttritionStage.ROWS: Counter(reasons)}
        unexplained = self.reached[AttritionStage.RETAINED] - rows - reasons.total()
        if unexplained > 0:
            excluded[AttritionStage.ROWS]["has no row in the views"] += unexplained
        return Attrition(reached, excluded, (*self.stages, AttritionStage.ROWS))

    @property
    def adds_up(self) -> bool:
        """Whether the attrition adds up: each subject is at the next stage or excluded with a reason."""
        pairs = zip(self.stages, self.stages[1:], strict=False)
        return all(
            self.reached[before] == self.reached[after] + self.excluded.get(after, Counter()).total()
            for before, after in pairs
        )
