"""What a reader may see of a run: all of an experiment; of a study's run nothing that tells how many people a site has.

Numbers of examples are numbers of people there, and steps follow from them; so do weights by examples. The report masks
small counts and what would give them away, and what is read here must not undo that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from abaton.store.learner_activity import LearnerLine, Span, busiest, spans
from abaton.store.commit_statistics import CycleLine, Quartiles, Stretch, cycle_lines, quartiles, stretches
from abaton.store.run_overview import codec_of, model_bytes
from abaton.store.store import Store

_DRAWN = 24  # learners in a figure; the table has more
_LINES = 8


@dataclass(frozen=True, slots=True)
class Activity:
    """What the learners of a run did, in bounded answers.

    Attributes:
        lines: the learners that committed most.
        total: how many learners there are.
        spans: what they did when.
        weights: how heavy their commits were over time; None if that would tell how many people a site has.
        pace: how many commits there were over time.
        width: how many seconds a stretch of time is.
        staleness: how stale commits were.
        stale: what staleness is counted in: 'steps', or 'versions' for a study.
        cycles: the losses at the end of cycles.
        sizes: how large updates were, by codec.
        uncompressed: how large a model is, if one is on the disk.
    """

    lines: list[LearnerLine]
    total: int
    spans: list[Span]
    weights: list[Stretch] | None
    pace: list[Stretch]
    width: float
    staleness: list[Quartiles]
    stale: str
    cycles: list[CycleLine]
    sizes: list[Quartiles]
    uncompressed: int | None


def activity(store: Store, run: str, *, wall: bool = False, first: bool = False) -> Activity:
    """What the learners of a run did, as far as it may be told.

    Args:
        store: Where the run is.
        run: Its name.
        wall: Whether time is wall-clock time, instead of the engine's.
        first: Whether spans are those of the beginning, instead of the newest.
    """
    recipe = store.run(run).recipe
    people = is_about_people(recipe)
    lines, total = busiest(store, run)
    busy = [line.learner for line in sorted(lines, key=lambda line: (-line.commits, line.learner))]
    shown, few = set(busy[:_DRAWN]), busy[:_LINES]
    told = tells_weights(recipe)
    weights = stretches(store, run, wall=wall, learners=few)[0] if told else None
    pace, width = stretches(store, run, wall=wall)
    stale = quartiles(store, run, "missed" if people else "staleness")
    cycles = cycle_lines(store, run, few)
    if people:
        lines = [
            replace(each, examples=None, steps=None, staleness=None, weight=each.weight if told else None)
            for each in lines
        ]
        cycles = [replace(each, steps=None) for each in cycles]
    sizes = quartiles(store, run, "size", by_learner=False)
    return Activity(
        lines=lines,
        total=total,
        spans=[span for span in spans(store, run, first=first) if span.learner in shown],
        weights=weights,
        pace=pace,
        width=width,
        staleness=[each for each in stale if each.name in shown],
        stale="versions" if people else "steps",
        cycles=cycles,
        sizes=[replace(each, name=codec_of(recipe)) for each in sizes],
        uncompressed=model_bytes(store, run),
    )


def is_about_people(recipe: Mapping[str, Any]) -> bool:
    """Whether a run's examples are people: it is one of a study.

    >>> is_about_people({"study": {"title": "Falls"}}), is_about_people({"name": "policy"})
    (True, False)
    """
    return "study" in recipe


def tells_weights(recipe: Mapping[str, Any]) -> bool:
    """Whether weights may be told: those of a study only if they are not made from numbers of examples.

    >>> tells_weights({"study": {}, "method": {"policy": {"name": "SyncFedAvg"}}})
    False
    >>> tells_weights({"study": {}, "method": {"policy": {"name": "SyncDVW"}, "weighting": [{"name": "examples"}]}})
    False
    """
    method = recipe.get("method") or {}
    if is_about_people(recipe) and method.get("weighting"):
        return all(part["name"] in ("validation", "staleness") for part in method["weighting"])
    policy = method.get("policy")
    name = str(policy.get("name")) if isinstance(policy, Mapping) else str(policy)
    return not is_about_people(recipe) or "DVW" in name or name == "FedAsync"
