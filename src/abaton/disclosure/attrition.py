"""The funnel: how many people were read, eligible, consented and kept, how many rows they give, and why not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """How far a subject came."""

    READ = "read"
    ELIGIBLE = "eligible"
    CONSENTED = "consented"
    KEPT = "kept"
    ROWS = "rows"


@dataclass(slots=True)
class Funnel:
    """Subjects by stage, and for every stage why subjects did not reach it.

    Invariant: every subject that is missing at a stage is counted there once, under its first reason, so that
    the numbers add up.

    >>> funnel = Funnel()
    >>> funnel.reach(Stage.READ)
    >>> funnel.stop(Stage.ELIGIBLE, "criterion 1 (age) is not met")
    >>> funnel.reached[Stage.READ], funnel.adds_up
    (1, True)
    """

    reached: Counter[Stage] = field(default_factory=Counter)
    stopped: dict[Stage, Counter[str]] = field(default_factory=dict)
    stages: tuple[Stage, ...] = (Stage.READ, Stage.ELIGIBLE, Stage.CONSENTED, Stage.KEPT)

    def reach(self, stage: Stage) -> None:
        """Count a subject at a stage."""
        self.reached[stage] += 1

    def stop(self, stage: Stage, reason: str) -> None:
        """Count a subject that does not reach a stage, and why."""
        self.stopped.setdefault(stage, Counter())[reason] += 1

    def with_rows(self, rows: int, reasons: Counter[str]) -> Funnel:
        """The funnel with its last stage: how many of the kept subjects give a row, and why others do not."""
        reached = Counter({**self.reached, Stage.ROWS: rows})
        stopped = {**self.stopped, Stage.ROWS: Counter(reasons)}
        unexplained = self.reached[Stage.KEPT] - rows - reasons.total()
        if unexplained > 0:
            stopped[Stage.ROWS]["has no row in the views"] += unexplained
        return Funnel(reached, stopped, (*self.stages, Stage.ROWS))

    @property
    def adds_up(self) -> bool:
        """Whether every subject is accounted for."""
        pairs = zip(self.stages, self.stages[1:], strict=False)
        return all(
            self.reached[before] == self.reached[after] + self.stopped.get(after, Counter()).total()
            for before, after in pairs
        )
