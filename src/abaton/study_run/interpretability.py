"""What a model goes by, told from sums of the sites: inputs shuffled, curves of single inputs, calibration, decisions.

A site shuffles an input among its own test rows, or sets it to a value for all of them, asks the model again, and tells
counts of predicted chances or a sum of predictions, never a row. It tells nothing of fewer subjects than its smallest
count, and nothing at all if the study asks more often than the site's `limits.explanations`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.features import Column
from abaton.kernels import Vector
from abaton.learners import Examples, Model, Personal
from abaton.metrics.classification import auroc, net_benefit, together
from abaton.metrics.regression import ValueSums, add_errors
from abaton.metrics.survival import PairSums, add_pairs, judge_pairs
from abaton.study.evaluation_section import Explanation
from abaton.study_run.consented_learner import examples
from abaton.study_run.evaluation import (
    EVERYBODY,
    Counted,
    Judged,
    Subset,
    Told,
    counted,
    enough,
    site_counts,
    spread_out,
)
from abaton.study_run.preparation import Member

_REACH = 2.0  # how many deviations from the mean a curve goes
_DIGITS = 4  # of a mean prediction: more would tell nothing but who was asked
_THRESHOLDS = np.linspace(0.01, 0.99, 99)


@dataclass(frozen=True, slots=True)
class Point:
    """A value that an input is set to for everybody.

    Attributes:
        name: A category, no or yes, or how many deviations from the federation's mean.
        cells: What stands in which column then.
    """

    name: str | float
    cells: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class SiteExplained:
    """What one site tells.

    Attributes:
        subjects: How many test subjects were asked of.
        told: Counts of the model as it is, by subset.
        shuffled: By input, the same of all subjects, once for each time that the input was shuffled.
        means: By input, for each point the mean prediction of every case, or of the value.
    """

    subjects: int
    told: Told
    shuffled: Mapping[str, Sequence[Counted]]
    means: Mapping[str, Sequence[Sequence[float]]]


def inputs_of(columns: Sequence[Column]) -> dict[str, list[int]]:
    """The columns of every input."""
    made: dict[str, list[int]] = {}
    for i, column in enumerate(columns):
        made.setdefault(column.input, []).append(i)
    return made


def questions_of(asked: Explanation, columns: Sequence[Column]) -> int:
    """How often a study asks a model of all test subjects."""
    kinds = {name: len(_values(columns, places)) for name, places in inputs_of(columns).items()}
    return asked.questions(kinds)


def points_of(asked: Explanation, name: str, columns: Sequence[Column]) -> list[Point]:
    """The values that an input is set to: each category, no and yes, or steps around the federation's mean."""
    places = inputs_of(columns)[name]
    known = dict.fromkeys(places, 0.0)
    if values := _values(columns, places):
        return [Point(word, {**known, **cells}) for word, cells in values]
    steps = np.linspace(-_REACH, _REACH, asked.points)
    return [Point(float(step), {**known, places[0]: float(step)}) for step in steps]


def _values(columns: Sequence[Column], places: Sequence[int]) -> list[tuple[str, dict[int, float]]]:
    """What an input can be: its categories, or no and yes; nothing for a number."""
    name = columns[places[0]].input
    if columns[places[0]].measured:
        return []
    own = [i for i in places if columns[i].name != f"{name} missing"]
    if len(own) == 1:
        return [("no", {own[0]: 0.0}), ("yes", {own[0]: 1.0})]
    return [(columns[i].name.removeprefix(f"{name}="), {i: 1.0}) for i in own]


def site_explained(
    member: Member,
    asked: Explanation,
    columns: Sequence[Column],
    federation: Judged,
    model: Model,
    vector: Vector,
    inside: frozenset[str],
    *,
    seed: int,
    local: Mapping[str, Vector] | None = None,
) -> SiteExplained | str:
    """What one site tells of what a model goes by, or why it tells nothing."""
    limit = member.file.document.limits.explanations
    if limit is not None and questions_of(asked, columns) > limit:
        return f"the site answers {limit} such questions, the study asks {questions_of(asked, columns)}"
    mine = np.array([subject in inside for subject in member.test.subjects], dtype=bool)
    told = site_counts(member, federation, model, vector, inside, local)
    if not told:
        return f"fewer than {member.floor} subjects to test"
    data = examples(member.test)
    rows = Examples(data.x[mine], data.y[mine])

    def say(x: NDArray[Any]) -> NDArray[Any]:
        return model.score(vector, Examples(x, rows.y), local).predictions

    shuffled = {
        name: [
            counted(
                say(_shuffled(rows.x, places, (seed, name, time, member.name))),
                rows.y,
                federation,
                member.floor,
            )
            for time in range(asked.importance)
        ]
        for name, places in inputs_of(columns).items()
        if asked.importance
    }
    means = {
        name: [_means(say(_set(rows.x, point)), federation) for point in points_of(asked, name, columns)]
        for name in asked.dependence
    }
    return SiteExplained(len(rows), told, shuffled, means)


def _shuffled(x: NDArray[Any], places: Sequence[int], drawn: tuple[int, str, int, str]) -> NDArray[Any]:
    """The rows with the columns of one input shuffled among them, together."""
    seed, name, time, site = drawn
    chance = np.random.default_rng([seed, time, zlib.crc32(name.encode()), zlib.crc32(site.encode())])
    made = x.copy()
    made[:, places] = x[chance.permutation(len(x))][:, places]
    return made


def _set(x: NDArray[Any], point: Point) -> NDArray[Any]:
    made = x.copy()
    for place, value in point.cells.items():
        made[:, place] = value
    return made


def _means(predicted: NDArray[Any], federation: Judged) -> list[float]:
    """The mean prediction: of each case's chance, or of the value."""
    if not federation.classes:
        mean, deviation = federation.label
        told = np.array([float(predicted.mean()) * deviation + mean])
    else:
        told = predicted.mean(axis=0)[1:] if len(federation.classes) == 2 else predicted.mean(axis=0)
    return [round(float(each), _DIGITS) for each in told]


def explanation_of(
    asked: Explanation,
    columns: Sequence[Column],
    use: Mapping[str, Any],
    floor: int,
    sites: Mapping[str, SiteExplained | str],
) -> dict[str, Any]:
    """What the sites' answers say together, as plain values; nothing of fewer subjects than the floor.

    Args:
        asked: What the study asks for.
        columns: All columns.
        use: What a run says of them: `scale` and `classes`.
        floor: The smallest number that may be told.
        sites: What each site tells, or why it does not.
    """
    classes, scale = use["classes"], use["scale"]
    told = {name: each for name, each in sites.items() if isinstance(each, SiteExplained)}
    return {
        "measure": _measure(told, classes),
        "questions": questions_of(asked, columns),
        "sites": list(told),
        "left_out": {name: each for name, each in sites.items() if isinstance(each, str)},
        "cases": list(classes[1:] if len(classes) == 2 else classes),
        "importance": sorted(
            _importance(told, floor), key=lambda each: (each["of"] != "all", each["subset"], -each["value"])
        ),
        "dependence": [
            _dependence(name, told, points_of(asked, name, columns), columns, scale)
            for name in asked.dependence
            if told
        ],
        **(_curves(told, floor) if len(classes) == 2 else {"calibration": [], "decision": []}),
    }


def _measure(told: Mapping[str, SiteExplained], classes: Sequence[str]) -> str:
    """By which measure it is told how much worse a model is without an input."""
    timed = any(isinstance(what, PairSums) for each in told.values() for what in each.told.values())
    return "auroc" if classes else "concordance" if timed else "rmse"


def _importance(told: Mapping[str, SiteExplained], floor: int) -> Iterator[dict[str, Any]]:
    """How much worse a model is without an input: for all sites, and for each alone where it has enough subjects."""
    groups = [(Subset(EVERYBODY, "all"), list(told.values()))]
    groups += [(Subset(name, "site"), [each]) for name, each in told.items()]
    for subset, members in groups:
        if not members:
            continue
        whole = [each.told[Subset(EVERYBODY, "all")] for each in members]
        before = _good(whole, floor)
        for name in members[0].shuffled:
            times = range(len(members[0].shuffled[name]))
            lost = [_good([each.shuffled[name][i] for each in members], floor) for i in times]
            if before is None or any(each is None for each in lost):
                continue
            drops = [before - each for each in lost if each is not None]
            yield {
                "input": name, "subset": subset.name, "of": subset.of, "sites": len(members),
                "subjects": sum(each.subjects for each in members), "value": float(np.mean(drops)),
                "low": float(min(drops)), "high": float(max(drops)),
            }  # fmt: skip


def _good(parts: Sequence[Counted], floor: int) -> float | None:
    """How good a model is, the more the better: its AUROC (the mean over cases) or concordance, or minus its error."""
    pairs = [part for part in parts if isinstance(part, PairSums)]
    if pairs:
        all_pairs = add_pairs(pairs)
        return judge_pairs(all_pairs)["concordance"].value if all_pairs.pairs else None
    sums = [part for part in parts if isinstance(part, ValueSums)]
    if sums:
        both = add_errors(sums)
        return -float(np.sqrt(both.squared / both.subjects)) if both.subjects >= floor else None
    counts = [part for each in parts if not isinstance(part := spread_out(each), ValueSums | PairSums)]
    joined = [together(part[i] for part in counts) for i in range(len(counts[0]))]
    if not all(enough(each, floor) for each in joined):
        return None
    return float(np.mean([auroc(e.scores, e.cases[None], e.controls[None])[0] for e in joined]))


def _dependence(
    name: str,
    told: Mapping[str, SiteExplained],
    points: Sequence[Point],
    columns: Sequence[Column],
    scale: Mapping[str, Sequence[Any]],
) -> dict[str, Any]:
    """The mean prediction by the values of one input: of all subjects, and of each site's; no category nobody had."""
    met = [i for i, point in enumerate(points) if _met(point, columns, scale)] or list(range(len(points)))
    mean, deviation = scale.get(columns[min(points[0].cells)].name, (0.0, 1.0))[:2]
    people = np.array([each.subjects for each in told.values()], float)
    means = np.array([each.means[name] for each in told.values()])[:, met]  # sites, points, cases
    return {
        "input": name,
        "at": [_shown(points[i].name, mean, deviation) for i in met],
        "all": (np.tensordot(people, means, 1) / people.sum()).round(_DIGITS).tolist(),
        "sites": {site: [each.means[name][i] for i in met] for site, each in told.items()},
    }


def _met(point: Point, columns: Sequence[Column], scale: Mapping[str, Sequence[Any]]) -> bool:
    """Whether anybody is known to have had a category; of some columns nothing is known."""
    named = [scale.get(columns[i].name) for i, value in point.cells.items() if value == 1.0]
    return not isinstance(point.name, str) or all(each is None or each[0] > 0 for each in named)


def _shown(name: str | float, mean: float, deviation: float) -> str | float:
    return name if isinstance(name, str) else float(mean + name * deviation)


def _curves(told: Mapping[str, SiteExplained], floor: int) -> dict[str, list[dict[str, Any]]]:
    """Calibration and decision curves for every subset that has cases and controls enough."""
    made: dict[str, list[dict[str, Any]]] = {"calibration": [], "decision": []}
    subsets = dict.fromkeys(subset for each in told.values() for subset in each.told)
    for subset in sorted(subsets, key=lambda each: ({"all": 0, "site": 1}.get(each.of, 2), each.name)):
        parts = [part for each in told.values() if (part := each.told.get(subset)) is not None]
        counts = together(
            part[0] for each in parts if not isinstance(part := spread_out(each), ValueSums | PairSums)
        )
        if not enough(counts, floor):
            continue
        about = {"subset": subset.name, "of": subset.of, "sites": len(parts), "subjects": counts.subjects}
        groups = max(2, min(10, counts.subjects // (2 * floor)))
        shares = [[predicted, asdict(share)] for predicted, share in counts.calibration(groups)]
        made["calibration"].append({**about, "points": shares})
        treated, everybody = net_benefit(counts, _THRESHOLDS)
        made["decision"].append(
            {
                **about,
                "thresholds": _THRESHOLDS.tolist(),
                "model": treated.tolist(),
                "everybody": everybody.tolist(),
            }
        )
    return made


def coefficients_of(
    model: Model, vector: Vector, columns: Sequence[Column], use: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The coefficients of a linear model by case, for each column by its deviation and by its unit; none of others.

    They are log odds, or values. Nothing says how sure they are: a federated average is no maximum-likelihood estimate.
    """
    if isinstance(model, Personal):
        return []  # what is shared may look like a whole linear model, and is a part of another
    first, *others = model.layout
    if len(others) != 1 or len(first.shape) > 2 or first.shape[-1] != len(columns):
        return []
    weights = np.atleast_2d(np.asarray(model.layout.view(vector, first.name), np.float64))
    cases, scale = list(use["classes"]), use["scale"]
    if not cases:
        weights, cases = weights * use["label"][1], [""]
    elif len(cases) == 2:
        weights, cases = (weights[1:] - weights[:1] if len(weights) == 2 else weights), cases[1:]
    made = []
    for case, row in zip(cases, weights, strict=True):
        for weight, column in zip(row, columns, strict=True):
            deviation = scale[column.name][1] if column.measured else 1.0
            made.append(
                {
                    "case": case, "column": column.name, "input": column.input, "measured": column.measured,
                    "per_deviation": float(weight), "per_unit": float(weight / deviation),
                }
            )  # fmt: skip
    return made
