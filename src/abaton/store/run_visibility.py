"""Visible part of a run: everything of an experiment; of a study's run nothing that reveals a site's size.

In a study, numbers of examples are numbers of subjects; steps and weights by examples follow from them. The report
suppresses small counts, so these values are not shown either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from abaton.store.commit_statistics import (
    CommitInterval,
    CycleRow,
    Quartiles,
    commits_by_interval,
    cycle_rows,
    quartiles,
)
from abaton.store.learner_activity import LearnerActivity, TrainingSpan, most_active_learners, training_spans
from abaton.store.run_overview import model_bytes, recipe_codec
from abaton.store.store import Store

_MAX_FIGURE_LEARNERS = 24  # the table has more
_MAX_CURVES = 8


@dataclass(frozen=True, slots=True)
class VisibleActivity:
    """Activity of a run's learners that a viewer may see; every list is bounded.

    Attributes:
        learners: The learners with the most commits.
        total: Number of learners.
        spans: Their activity over time.
        weights: Mean weight of their commits over time; None if it would reveal a site's number of subjects.
        commits: Number of commits over time.
        interval_seconds: Length of an interval of `weights` and `commits`.
        staleness: Quartiles of the commits' staleness.
        staleness_unit: 'steps', or 'versions' for a study.
        cycles: Losses at the end of cycles.
        payload_bytes: Quartiles of payload sizes, by codec.
        model_bytes: Uncompressed size of a model, if one is on disk.
    """

    learners: list[LearnerActivity]
    total: int
    spans: list[TrainingSpan]
    weights: list[CommitInterval] | None
    commits: list[CommitInterval]
    interval_seconds: float
    staleness: list[Quartiles]
    staleness_unit: str
    cycles: list[CycleRow]
    payload_bytes: list[Quartiles]
    model_bytes: int | None


def visible_activity(
    store: Store, run: str, *, wall_time: bool = False, first: bool = False
) -> VisibleActivity:
    """Return the activity of a run's learners that a viewer may see.

    Args:
        store: The store.
        run: The run.
        wall_time: Whether to use wall-clock time instead of the engine's.
        first: Whether to return the first spans instead of the latest.
    """
    recipe = store.run(run).recipe
    is_study = is_study_run(recipe)
    activities, total = most_active_learners(store, run)
    busy = [line.learner for line in sorted(activities, key=lambda line: (-line.commits, line.learner))]
    shown, curve_learners = set(busy[:_MAX_FIGURE_LEARNERS]), busy[:_MAX_CURVES]
    are_weights_visible = weights_visible(recipe)
    weights = (
        commits_by_interval(store, run, wall_time=wall_time, learners=curve_learners)[0]
        if are_weights_visible
        else None
    )
    commits, interval_seconds = commits_by_interval(store, run, wall_time=wall_time)
    stale = quartiles(store, run, "versions_missed" if is_study else "staleness")
    cycles = cycle_rows(store, run, curve_learners)
    if is_study:
        activities = [
            replace(
                item,
                examples=None,
                steps=None,
                staleness=None,
                weight=item.weight if are_weights_visible else None,
            )
            for item in activities
        ]
        cycles = [replace(item, steps=None) for item in cycles]
    payload_bytes = quartiles(store, run, "payload_bytes", by_learner=False)
    return VisibleActivity(
        learners=activities,
        total=total,
        spans=[span for span in training_spans(store, run, first=first) if span.learner in shown],
        weights=weights,
        commits=commits,
        interval_seconds=interval_seconds,
        staleness=[item for item in stale if item.name in shown],
        staleness_unit="versions" if is_study else "steps",
        cycles=cycles,
        payload_bytes=[replace(item, name=recipe_codec(recipe)) for item in payload_bytes],
        model_bytes=model_bytes(store, run),
    )


def is_study_run(recipe: Mapping[str, Any]) -> bool:
    """Return whether a run belongs to a study, so that a viewer may not see its numbers of examples.

    >>> is_study_run({"study": {"title": "Falls"}}), is_study_run({"name": "strategy"})
    (True, False)
    """
    return "study" in recipe


def weights_visible(recipe: Mapping[str, Any]) -> bool:
    """Return whether a viewer may see weights: those of a study only if they do not depend on examples.

    >>> weights_visible({"study": {}, "method": {"strategy": {"name": "SyncFedAvg"}}})
    False
    >>> weights_visible({"study": {}, "method": {"strategy": {"name": "SyncDVW"}, "weighting": [{"name": "examples"}]}})
    False
    """
    method = recipe.get("method") or {}
    if is_study_run(recipe) and method.get("weighting"):
        return all(part["name"] in ("validation", "loss", "staleness") for part in method["weighting"])
    strategy = method.get("strategy")
    name = str(strategy.get("name")) if isinstance(strategy, Mapping) else str(strategy)
    return not is_study_run(recipe) or "DVW" in name or name == "FedAsync"
