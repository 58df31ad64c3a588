"""Attrition of a cohort: subjects read, eligible, consented and retained, their rows, and reasons for exclusion.

The exact attrition stays at the site. Released is one table of disjoint cells: subjects with a legal basis, by the
stage and reason of their exclusion. The stages are added up from its cells. A run on one machine adds subjects that
remain anonymous, those in force at its end, and those evaluated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from abaton.disclosure.levels import format_count

NO_ROW = "has no row in the views"
OTHER_REASON = "another reason"


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


RELEASED_STAGES = (AttritionStage.CONSENTED, AttritionStage.RETAINED, AttritionStage.ROWS)
"""Stages that a site releases. Subjects without a consent or another legal basis are not counted for the centre."""


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
            excluded[AttritionStage.ROWS][NO_ROW] += unexplained
        return Attrition(reached, excluded, (*self.stages, AttritionStage.ROWS))

    @property
    def adds_up(self) -> bool:
        """Whether the attrition adds up: each subject is at the next stage or excluded with a reason."""
        pairs = zip(self.stages, self.stages[1:], strict=False)
        return all(
            self.reached[before] == self.reached[after] + self.excluded.get(after, Counter()).total()
            for before, after in pairs
        )


def attrition_cell(stage: AttritionStage, reason: str = "") -> str:
    """Return the name of a cell of the attrition: the last stage, or a stage that was not reached and the reason.

    >>> attrition_cell(AttritionStage.ROWS), attrition_cell(AttritionStage.ROWS, "no label")
    ('rows', 'rows/no label')
    """
    return f"{stage.value}/{reason}" if reason else stage.value


def assign_cells(
    outcomes: Mapping[str, tuple[AttritionStage, str]], names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the subjects in each cell of the attrition, empty cells included.

    The names are determined by the study document, since the presence of a name would show that a subject is in it. A
    reason that is not among them is counted as another reason of its stage.

    Args:
        outcomes: By Patient id, the last stage, or the stage that was not reached and the reason.
        names: Names of all cells.
    """
    cells: dict[str, list[str]] = {name: [] for name in names}
    for subject, (stage, reason) in outcomes.items():
        name = attrition_cell(stage, reason)
        cells[name if name in cells else attrition_cell(stage, OTHER_REASON)].append(subject)
    return {name: tuple(subjects) for name, subjects in cells.items()}


def attrition_steps(
    stages: Sequence[AttritionStage],
    counts: Mapping[str, float],
    suppressed: Collection[str],
    threshold: int,
    *,
    is_noisy: bool,
) -> list[dict[str, Any]]:
    """Return the steps of an attrition from released cells as JSON values: subjects at each stage, and exclusions.

    A stage is the sum of the cells after it. With noise, counts below the threshold are not shown, and reasons with
    such a count are omitted. Without noise, a suppressed cell is shown as below the threshold, and a sum that contains
    one as a lower bound.

    >>> counts = {"rows": 40.0, "rows/no label": 12.0}
    >>> stages = (AttritionStage.RETAINED, AttritionStage.ROWS)
    >>> for step in attrition_steps(stages, counts, ["rows/no value"], 5, is_noisy=False):
    ...     step["subjects"], [(entry["reason"], entry["subjects"]) for entry in step["excluded"]]
    ('≥53', [])
    ('40', [('no label', '12'), ('no value', '<5')])
    """
    order = {stage.value: i for i, stage in enumerate(stages)}
    steps = []
    for i, stage in enumerate(stages):
        later = {name: order[name.split("/")[0]] > i for name in (*counts, *suppressed)} | {
            stages[-1].value: True
        }
        known, hidden = (
            sum(n for name, n in counts.items() if later[name]),
            sum(later[name] for name in suppressed),
        )
        prefix = f"{stage.value}/"
        excluded = {
            name.removeprefix(prefix): format_count(n, threshold) if is_noisy else f"{round(n)}"
            for name, n in counts.items()
            if name.startswith(prefix) and n >= (threshold if is_noisy else 1)
        }
        excluded |= {
            name.removeprefix(prefix): f"<{threshold}" for name in suppressed if name.startswith(prefix)
        }
        if is_noisy:
            subjects = format_count(known, threshold)
        elif hidden:
            subjects = f"≥{round(known) + hidden}" if known else f"<{threshold * hidden}"
        else:
            subjects = f"{round(known)}"
        steps.append(
            {
                "stage": stage.value,
                "subjects": subjects,
                "excluded": [
                    {"reason": reason, "subjects": text} for reason, text in sorted(excluded.items())
                ],
            }
        )
    return steps
