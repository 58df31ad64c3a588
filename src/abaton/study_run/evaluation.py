"""How well models do on subjects that nobody trained on: sites count, the counts are added, the sum is judged.

A site tells counts of cases and of controls in bins of the predicted chance, sums of errors, or counts of pairs of its
people; never a subject's score: those of each kind are put together with their neighbours, at least as many as the
smallest count at a time. It
tells nothing of fewer subjects than its smallest count, and nothing by an input of which one group is that small,
since that group would be what is missing from the rest.

What the community model is held against: each site alone, and all rows pooled in one place.

Pooling is for the lab alone: it needs the rows of all sites on one machine, which a federation is there
to avoid. Both kinds train on the validation rows, too, which the federation sets aside: they are not made weaker than
they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.disclosure.rounding import microaggregated, spread
from abaton.kernels import Vector
from abaton.learners import Examples, Learner, Model, train_model
from abaton.metrics.classification import (
    BINS,
    Estimate,
    ScoreCounts,
    count_scores,
    judge,
    recalibration,
    together,
)
from abaton.metrics.predictions import is_timed
from abaton.metrics.regression import ValueSums, add_errors, judge_sums, sum_errors
from abaton.metrics.survival import PairSums, add_pairs, judge_pairs, sum_pairs
from abaton.study import Learning
from abaton.study_run.consented_learner import Rows, examples
from abaton.study_run.preparation import Member, Members
from abaton.training import TrainSettings

EVERYBODY = "all sites"

Inside = Callable[[Member], frozenset[str]]
"""Whose records of a site may be used."""

_LOCAL = "model/"  # how a learner calls what stays at its site of the model
_POINTS = 101  # of a curve: more would tell single subjects' scores


@dataclass(frozen=True, slots=True)
class Subset:
    """Subjects whose results are told together: all, those of one site, or those of one group."""

    name: str
    of: str


Counted = Sequence[ScoreCounts] | ValueSums | PairSums
"""Counts for each class (one against the rest), sums of errors of values, or pairs of times."""

Told = Mapping[Subset, Counted]
"""What a site tells of a model, for each subset."""


class Judged(Protocol):
    """What all sites judge by: the classes, or mean and deviation by which values were scaled."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; none for values and times."""

    @property
    def label(self) -> tuple[float, float]:
        """Mean and deviation of the values."""


def layers_of(learner: Learner | None) -> dict[str, Vector]:
    """What of the model a learner's site has for itself, such as its personal layers."""
    kept = {} if learner is None else learner.kept
    return {name.removeprefix(_LOCAL): each for name, each in kept.items() if name.startswith(_LOCAL)}


def site_counts(
    member: Member,
    federation: Judged,
    model: Model,
    vector: Vector,
    inside: frozenset[str],
    local: Mapping[str, Vector] | None = None,
) -> Told:
    """What one site tells of a model, together with what of it the site has for itself."""
    mine = np.array([subject in inside for subject in member.test.subjects], dtype=bool)
    if mine.sum() < member.floor:
        return {}
    data = examples(member.test)
    predicted = model.score(vector, data, local).predictions
    made: dict[Subset, Counted] = {}
    for subset, rows in subsets_of(member, mine):
        made[subset] = counted(predicted[rows], data.y[rows], federation, member.floor)
    return made


def subsets_of(member: Member, mine: NDArray[np.bool_]) -> list[tuple[Subset, NDArray[np.bool_]]]:
    """The subsets of which a site may tell, each with its rows among those that may be used."""
    made = [(Subset(EVERYBODY, "all"), mine), (Subset(member.name, "site"), mine)]
    for name, groups in member.groups.items():
        found = np.array(groups, object)
        sizes = Counter(found[mine].tolist())
        if min(sizes.values()) >= member.floor:
            made += [(Subset(f"{name}: {group}", name), mine & (found == group)) for group in sorted(sizes)]
    return made


def counted(predicted: NDArray[Any], actual: NDArray[Any], federation: Judged, floor: int) -> Counted:
    """What a site tells of some subjects: counts of their predicted chances, sums of errors, or pairs of times."""
    if is_timed(actual):
        return sum_pairs(predicted, actual, floor)
    if not federation.classes:
        mean, deviation = federation.label
        values = np.asarray(actual, np.float64) * deviation + mean
        return sum_errors(predicted.reshape(-1).astype(np.float64) * deviation + mean, values)
    return [
        _merge_small_bins(count_scores(np.clip(predicted[:, i], 0, 1), actual == i, bins=BINS), floor)
        for i in case_classes(federation.classes)
    ]


def _merge_small_bins(counts: ScoreCounts, floor: int) -> ScoreCounts:
    """The counts with each subject among at least so many neighbours of the same kind; fewer of a kind are not told."""
    parts = []
    for kind in (counts.cases, counts.controls):
        made = np.zeros_like(kind)
        places = np.repeat(np.arange(len(kind), dtype=np.int64), kind.astype(np.int64))
        for place, number in microaggregated(places, floor):
            made[place] += number
        parts.append(made)
    return ScoreCounts(counts.scores, *parts)


def case_classes(classes: Sequence[str]) -> Sequence[int]:
    """The classes that are told of: of two the second is the case; of more, each against the rest."""
    return [1] if len(classes) == 2 else range(len(classes))


def judge_models(
    learning: Learning,
    members: Members,
    model: Model,
    models: Mapping[str, Vector],
    inside: Inside,
    *,
    seed: int = 0,
    resamples: int = 1000,
    local: Mapping[str, Mapping[str, Vector]] | None = None,
) -> dict[str, Any]:
    """All measures of some models, by subset, as plain values: lines, ROC curves and calibration.

    Args:
        learning: How the study judges.
        members: The sites.
        model: What was trained.
        models: The models by their names.
        inside: Whose test rows may be used.
        seed: Decides who is drawn again.
        resamples: How often, for the intervals.
        local: By site, what of the model it has for itself.
    """
    allowed, own = {member.name: inside(member) for member in members.each}, local or {}
    told = {
        name: [
            site_counts(each, members, model, vector, allowed[each.name], own.get(each.name))
            for each in members.each
        ]
        for name, vector in models.items()
    }
    floor = max(member.floor for member in members.each)
    return judge_counts(learning, members.classes, floor, told, seed=seed, resamples=resamples)


def judge_counts(
    learning: Learning,
    classes: Sequence[str],
    floor: int,
    models: Mapping[str, Sequence[Told]],
    *,
    seed: int = 0,
    resamples: int = 1000,
) -> dict[str, Any]:
    """All measures of some models, from what the sites told of each; nothing of fewer subjects than the floor."""
    lines: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    lines_of: dict[str, list[float]] = {}
    for name, told in models.items():
        for subset in sorted({each for site in told for each in site}, key=_order):
            parts = [spread_out(site[subset]) for site in told if subset in site]
            for case, measures, number in judged(learning, classes, parts, floor, (seed, resamples)):
                words = f"{subset.name}, {case}" if case else subset.name
                lines.append(
                    {
                        "model": name, "subset": words, "of": subset.of, "subjects": number,
                        "sites": len(parts), "measures": measures,
                    }
                )  # fmt: skip
            if subset.of == "all" and len(classes) == 2:
                both = together(part[0] for part in parts if not isinstance(part, ValueSums | PairSums))
                curves[name] = _curves(both, floor, learning.metrics)
                lines_of[name] = list(recalibration(both) if enough(both, floor) else (0.0, 1.0))
    return {"lines": lines, "curves": curves, "recalibration": lines_of, "smallest_count": floor}


def spread_out(told: Counted) -> Counted:
    """What a site told of groups, as of the single subjects that they stand for."""
    if isinstance(told, ValueSums | PairSums):
        return told
    return [
        ScoreCounts(each.scores, spread(each.cases, each.controls), spread(each.controls, each.cases))
        for each in told
    ]


def _order(subset: Subset) -> tuple[int, str]:
    return {"all": 0, "site": 1}.get(subset.of, 2), subset.name


def judged(
    learning: Learning,
    classes: Sequence[str],
    parts: Sequence[Counted],
    floor: int,
    drawn: tuple[int, int],
) -> list[tuple[str, dict[str, Any] | None, str]]:
    """For each class that is a case: its name, the measures that the study names, and how many subjects.

    Nothing is told of small numbers.
    """
    how, names, (seed, resamples) = learning.evaluation, measure_names(learning), drawn
    sums = [part for part in parts if isinstance(part, ValueSums)]
    if sums:
        both = add_errors(sums)
        measures = _plain(judge_sums(both, level=how.confidence), names) if both.subjects >= floor else None
        return [("", measures, _number(both.subjects, floor))]
    pairs = [part for part in parts if isinstance(part, PairSums)]
    if pairs:
        all_pairs = add_pairs(pairs)
        few = min(all_pairs.events, all_pairs.subjects - all_pairs.events) < floor
        measures = None if few else _plain(judge_pairs(all_pairs, level=how.confidence), names)
        return [("", measures, _number(all_pairs.subjects, floor))]
    told = [part for part in parts if not isinstance(part, ValueSums | PairSums)]
    made: list[tuple[str, dict[str, Any] | None, str]] = []
    for i in range(len(told[0])):
        counts = together(part[i] for part in told)
        found = None
        if enough(counts, floor):
            settings = {"specificity": how.specificity, "level": how.confidence}
            found = _plain(judge(_filled(counts), seed=seed, resamples=resamples, **settings), names)
        case = classes[i] if len(told[0]) > 1 else ""
        made.append((case, found, _number(counts.subjects, floor)))
    return made


def enough(counts: ScoreCounts, floor: int) -> bool:
    """Whether there are cases and controls enough to tell of."""
    return bool(min(counts.cases.sum(), counts.controls.sum()) >= floor)


def _filled(counts: ScoreCounts) -> ScoreCounts:
    """The counts without empty bins: the same measures, sooner."""
    some = (counts.cases + counts.controls) > 0
    return ScoreCounts(counts.scores[some], counts.cases[some], counts.controls[some])


def _curves(counts: ScoreCounts, floor: int, metrics: Sequence[str]) -> dict[str, Any]:
    """The curves that belong to the measures that the study names."""
    if not enough(counts, floor):
        return {}
    fpr, tpr = counts.curve()
    x = np.linspace(0, 1, _POINTS)
    bins = max(2, min(10, counts.subjects // (2 * floor)))
    points = [[predicted, asdict(share)] for predicted, share in counts.calibration(bins)]
    made = {
        "auroc": {"roc": [x.tolist(), np.interp(x, fpr, tpr).tolist()]},
        "calibration": {"calibration": points},
    }
    return {key: value for name, curve in made.items() if name in metrics for key, value in curve.items()}


def measure_names(learning: Learning) -> list[str]:
    """What the measures that a study names are called in its results, in the study's order.

    >>> measure_names(Learning(evaluation={"metrics": ["brier", "calibration"]}))
    ['brier', 'calibration slope', 'calibration intercept']
    """
    called = {
        "calibration": ("calibration slope", "calibration intercept"),
        "sensitivity": (f"sensitivity at specificity {learning.evaluation.specificity:g}",),
        "r_squared": ("r2",),
    }
    return [name for metric in learning.metrics for name in called.get(metric, (metric,))]


def _plain(measures: Mapping[str, Estimate], names: Sequence[str]) -> dict[str, Any]:
    """Some estimates as plain values; what is not a number is nothing."""
    return {
        name: {key: value if math.isfinite(value) else None for key, value in asdict(measures[name]).items()}
        for name in names
    }


def _number(count: int, floor: int) -> str:
    return f"<{floor}" if 0 < count < floor else str(count)


POOLED = "all data pooled"


def alone(name: str) -> str:
    """What the model of one site is called."""
    return f"{name} alone"


def baselines(
    members: Members, model: Model, settings: TrainSettings, epochs: int, seed: int
) -> dict[str, Vector]:
    """The models of every site alone and of all rows pooled, trained for so many epochs with the study's settings."""
    made = {
        alone(member.name): train_alone(model, member.rows, settings, epochs, seed) for member in members.each
    }
    pooled = _pool_examples([member.rows for member in members.each])
    return {**made, POOLED: _trained(model, pooled, settings, epochs, seed)}


def train_alone(model: Model, rows: Rows, settings: TrainSettings, epochs: int, seed: int) -> Vector:
    """The model of one site's own rows, which needs nobody else's: a site can train it for itself."""
    return _trained(model, _pool_examples([rows]), settings, epochs, seed)


def _trained(model: Model, data: Examples, settings: TrainSettings, epochs: int, seed: int) -> Vector:
    plain = replace(settings, epochs=epochs, adaptive=None, budget=0.0, steps=0, proximal=0.0)
    return train_model(model, model.initial(seed), data, plain, np.random.default_rng(seed)).vector


def _pool_examples(parts: Sequence[Rows]) -> Examples:
    listed = [examples(part) for rows in parts for part in (rows.train, rows.validation)]
    return Examples(np.concatenate([each.x for each in listed]), np.concatenate([each.y for each in listed]))
