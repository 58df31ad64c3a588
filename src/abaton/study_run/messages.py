"""What a study's sites and its centre say to each other: plain values, checked on both sides before they are used.

Nothing here can hold a row of a table: sums, counts, masked numbers, digests and updates are all there is. The list of
fields is the law and not its description: each answer of a site is held against it (`check_fields`) before it is sent,
and `abaton site join --dry-run` prints it with what this site would send. Questions of a centre are read with care
before a site does anything about them (`checked`): a number is a number, so that nothing a centre sends breaks a site's
programs instead of being refused; what a value may be is decided later, by the contract and the policy.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from abaton.anonymity.federated_recoding import Histogram
from abaton.engines.base import UNKNOWN, Said
from abaton.engines.flower import Parcel
from abaton.errors import PayloadError, Refused
from abaton.features import Column, Moments, Statistics
from abaton.federation.run import COMMUNITY
from abaton.metrics.classification import BINS, Estimate, ScoreCounts
from abaton.metrics.regression import ValueSums
from abaton.metrics.survival import PairSums
from abaton.study.evaluation_section import Explanation
from abaton.study_run.evaluation import Counted, Subset, Told
from abaton.study_run.interpretability import SiteExplained, inputs_of, points_of
from abaton.study_run.local_benefit import OWN, SiteGain, Standing
from abaton.study_run.preparation import Sums
from abaton.study_run.preparation_state import Scale
from abaton.training import TrainSettings

_BODY = "body"
_CHOSEN = frozenset({"weight", "intercept", "slope"})  # what a site chooses for a model of its own
_LARGEST = 1 << 26
_MOST = 1 << 53  # whole numbers beyond are not exact in JSON
_LARGEST_NUMBER = sys.float_info.max
_FARTHEST = 1e150  # squares of it are numbers, too

PEOPLE = 1 << 34
"""More than there are: no count of people is above."""


def worded(kind: str, about: Mapping[str, Any], body: Mapping[str, Any]) -> Parcel:
    """A message whose plain values may be many."""
    return Parcel(kind, about, {_BODY: json.dumps(body, separators=(",", ":")).encode()})


def body_of(parcel: Parcel) -> dict[str, Any]:
    """The plain values of a message.

    >>> body_of(worded("read", {}, {"k": 5}))
    {'k': 5}
    """
    data = parcel.blobs.get(_BODY, b"")
    try:
        found = json.loads(data) if len(data) <= _LARGEST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise unreadable()
    return found


def scale_from(row: Mapping[str, Any]) -> Scale:
    """What all scale by, read with care."""
    mean, deviation = numbers(row["label"], length=2)
    return Scale(_statistics(row["columns"]), (mean, deviation))


def sums_row(told: Sums) -> dict[str, Any]:
    """What a site tells for scaling, as plain values."""
    return {"columns": _moments_row(told.columns), "label": list(astuple(told.label))}


def sums_from(row: Mapping[str, Any]) -> Sums:
    """What a site tells for scaling, read with care."""
    return Sums(_statistics(row["columns"]), _moments(row["label"]))


def told_row(told: Told) -> list[Any]:
    """What a site tells of a model, as plain values: counts in those bins that are not empty, or sums."""
    return [[subset.name, subset.of, _counted(what)] for subset, what in told.items()]


def told_from(rows: Sequence[Any], cases: int) -> Told:
    """What a site tells of a model, read with care; `cases` classes are told of, none for values and times."""
    made: dict[Subset, Counted] = {}
    for name, of, what in rows:
        made[Subset(text(name), text(of))] = _counted_from(what, cases)
    return made


def gain_row(found: SiteGain) -> dict[str, Any]:
    """What a site gains as plain values: measures and differences of every model, or why there is nothing."""
    told = None if found.told is None else {name: each.row() for name, each in found.told.items()}
    return {"why": found.why, "gain": told}


def gain_from(row: Mapping[str, Any], ways: Sequence[str]) -> SiteGain:
    """What a site gains, read with care: of its own model, the community model and the study's ways, and no others."""
    told, why = row["gain"], text(row["why"])
    if told is None:
        return SiteGain(None, why)
    if not isinstance(told, dict) or list(told) not in ([OWN, COMMUNITY], [OWN, COMMUNITY, *ways]):
        raise unreadable()
    return SiteGain({name: _standing(each) for name, each in told.items()}, why)


def _standing(row: Mapping[str, Any]) -> Standing:
    chosen = row["chosen"]
    if not isinstance(chosen, dict) or not chosen.keys() <= _CHOSEN:
        raise unreadable()
    value, over_own, over_community = (
        _estimate(row[name]) for name in ("value", "over_own", "over_community")
    )
    told = {name: numbers([each], length=1)[0] for name, each in chosen.items()}
    return Standing(value, over_own, over_community, told)


def _estimate(row: object) -> Estimate:
    if not isinstance(row, list) or len(row) != 3:
        raise unreadable()
    return Estimate(*(math.nan if each is None else numbers([each], length=1)[0] for each in row))


def explained_row(told: SiteExplained) -> dict[str, Any]:
    """What a site tells of what a model goes by, as plain values."""
    return {
        "subjects": told.subjects,
        "told": told_row(told.told),
        "shuffled": {name: [_counted(each) for each in times] for name, times in told.shuffled.items()},
        "means": {name: [list(each) for each in points] for name, points in told.means.items()},
    }


def explained_from(
    row: Mapping[str, Any], asked: Explanation, columns: Sequence[Column], cases: int
) -> SiteExplained:
    """What a site tells of what a model goes by, read with care: every input and every point, and no others."""
    inputs = list(inputs_of(columns)) if asked.importance else []
    points = {name: len(points_of(asked, name, columns)) for name in asked.dependence}
    told, subjects = told_from(row["told"], cases), whole(row["subjects"], PEOPLE)
    if list(row["shuffled"]) != inputs or list(row["means"]) != list(points) or not told or not subjects:
        raise unreadable()
    if any(len(times) != asked.importance for times in row["shuffled"].values()):
        raise unreadable()
    if any(len(row["means"][name]) != number for name, number in points.items()):
        raise unreadable()
    return SiteExplained(
        subjects,
        told,
        {name: [_counted_from(each, cases) for each in times] for name, times in row["shuffled"].items()},
        {name: [numbers(each, length=max(cases, 1)) for each in row["means"][name]] for name in points},
    )


def _counted_from(what: Any, cases: int) -> Counted:
    if not cases and isinstance(what, list) and len(what) == len(fields(PairSums)):
        return _pair_sums(numbers(what, length=len(fields(PairSums))))
    if not cases:
        return _value_sums(numbers(what, length=len(fields(ValueSums))))
    if not isinstance(what, list) or len(what) != cases:
        raise unreadable()
    return [_score_counts(each) for each in what]


def _pair_sums(told: Sequence[float]) -> PairSums:
    """Sums over pairs: what is right is among all of them, and nobody is in more pairs than there are others."""
    subjects, events, right, pairs, right_squared, both, pairs_squared = told
    most = subjects * subjects
    fits = 0 <= right <= pairs <= most and 0 <= right_squared <= both <= pairs_squared <= subjects * most
    if not fits or events > subjects:
        raise unreadable()
    return PairSums(whole(subjects, PEOPLE), whole(events), right, pairs, right_squared, both, pairs_squared)


def _value_sums(told: Sequence[float]) -> ValueSums:
    """Sums of errors and of values: each is at most what the next higher power allows (Cauchy and Schwarz)."""
    number, absolute, squared, fourth, total, squares = told
    fits = absolute >= 0 and 0 <= squared <= _FARTHEST and fourth >= 0 and squares >= 0
    pairs = (absolute, squared), (squared, fourth), (abs(total), squares)
    if not fits or not all(_root_of(number, each) * (1 + 1e-6) >= low for low, each in pairs):
        raise unreadable()
    return ValueSums(whole(number, PEOPLE), absolute, squared, fourth, total, squares)


def _root_of(number: float, squares: float) -> float:
    """The largest sum that so many numbers can have whose squares add up to something."""
    return math.sqrt(max(0.0, number)) * math.sqrt(squares)


def numbers(said: object, *, length: int) -> list[float]:
    """So many finite numbers."""
    if not isinstance(said, list) or len(said) != length:
        raise unreadable()
    for each in said:
        if isinstance(each, bool) or not isinstance(each, int | float) or not abs(each) <= _LARGEST_NUMBER:
            raise unreadable()
    return [float(each) for each in said]


def whole(said: object, most: int = _MOST) -> int:
    """A whole number that is not negative, and not larger than it can be."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= most or said % 1:
        raise unreadable()
    return int(said)


def text(said: object, longest: int = 400) -> str:
    """A line of text, not too long, without control characters."""
    if not isinstance(said, str) or len(said) > longest or not said.isprintable():
        raise unreadable()
    return said


def unreadable() -> PayloadError:
    """A message that cannot be what it says."""
    return PayloadError(
        "an answer is not readable", where="network", remedy="check that the site runs the same Abaton"
    )


def _moments_row(statistics: Statistics) -> dict[str, list[float]]:
    return {name: list(astuple(each)) for name, each in statistics.of.items()}


def _statistics(row: object) -> Statistics:
    if not isinstance(row, dict):
        raise unreadable()
    return Statistics({text(name): _moments(each) for name, each in row.items()})


def _moments(row: object) -> Moments:
    count, total, squares = numbers(row, length=3)
    if not 0 <= squares <= _FARTHEST or _root_of(count, squares) * (1 + 1e-6) < abs(total):
        raise unreadable()
    return Moments(whole(count, PEOPLE), total, squares)


def _counted(what: Counted) -> list[Any]:
    if isinstance(what, ValueSums | PairSums):
        return list(astuple(what))
    made = []
    for counts in what:
        some = np.flatnonzero(counts.cases + counts.controls)
        made.append([[int(i), int(counts.cases[i]), int(counts.controls[i])] for i in some])
    return made


def _score_counts(rows: object) -> ScoreCounts:
    if not isinstance(rows, list) or len(rows) > BINS:
        raise unreadable()
    cases, controls = np.zeros(BINS), np.zeros(BINS)
    for row in rows:
        place, ill, well = (whole(each, PEOPLE) for each in numbers(row, length=3))
        if place >= BINS:
            raise unreadable()
        cases[place], controls[place] = ill, well
    return ScoreCounts((np.arange(BINS) + 0.5) / BINS, cases, controls)


# ---- what a site tells of its cohort ------------------------------------------------------------------------------

Line = Annotated[str, AfterValidator(text)]
Number = Annotated[int, Field(ge=0, le=PEOPLE)]
_LINES = 1000


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Reason(_Form):
    reason: Line
    subjects: Line


class _Stage(_Form):
    stage: Line
    subjects: Line
    left_out: list[_Reason] = Field(max_length=_LINES)


class _Aside(_Form):
    reason: Line
    count: Line | Number
    places: list[Line] = Field(max_length=0)


class _Cohort(_Form):
    funnel: list[_Stage] = Field(max_length=20)
    records: dict[Line, Line | Number] = Field(max_length=_LINES)
    set_aside: list[_Aside] = Field(max_length=_LINES)
    kept_back: dict[Line, Line | Number] = Field(max_length=_LINES)
    remarks: list[Line] = Field(max_length=_LINES)
    smallest_count: Number
    usable: bool


def cohort_told(said: object) -> Mapping[str, Any]:
    """What a site tells of its cohort; nothing if it tells nothing.

    >>> cohort_told({})
    {}
    """
    if said == {}:
        return {}
    try:
        return _Cohort.model_validate(said).model_dump()
    except ValidationError:
        raise unreadable() from None


class _Sensitive(_Form):
    values: list[Line | None]
    triples: list[tuple[Number, Number, Number]]
    unsure: list[Number]
    whole: list[Number]


class _Histogram(_Form):
    base: list[Number]
    chains: list[list[tuple[list[Line | None], Number]]]
    listed: list[bool]
    cells: list[list[Number]]
    counts: list[Number]
    people: list[Number]
    sensitive: list[_Sensitive]
    hidden: Number


def histogram_told(said: object) -> Histogram:
    """How many people of a site share each combination, with no number that could not be one of people."""
    try:
        _Histogram.model_validate_json(json.dumps(said))
    except (TypeError, ValueError):
        raise unreadable() from None
    assert isinstance(said, dict)
    return Histogram.from_row(said)


# ---- every field that may leave a site ----------------------------------------------------------------------------

_REASON = "one of a few fixed phrases for what went wrong; never an error's text"
_HOLDS = "digests of the community models that the site holds, so that only differences are sent to it"
_COHORT = "a digest of who was in, which tells nobody"

FIELDS: Mapping[str, Mapping[str, str]] = {
    "query": {
        "site": "the site's id",
        "group": "the group of learners that the site belongs to; empty",
        "examples": "how many people's rows are trained on",
        "labels": "how many validation rows each class has",
        "holds": _HOLDS,
    },
    "read": {
        "body/told": "counts of people by stage and by reason, masked below the smallest count",
        "body/problem": "why the site cannot take part; empty if it can",
        "body/floor": "the smallest number of people that the site tells",
        "body/k": "among how many people everybody must hide",
        "body/histogram": "how many people share each combination of quasi-identifiers, in ranges so wide that none is "
        "of fewer people than the smallest count; of all rarer ones only how many people they hold together",
    },
    "deal": {
        "body/problem": "why the site cannot take part; empty if it can",
        "body/sums": "of each scaled column: how many values, their sum, the sum of their squares",
    },
    "scale": {
        "body/table": "a digest of the site's table",
        "body/cohort": _COHORT,
        "body/floor": "the smallest number of people that the site tells",
    },
    "train": {
        "key": "the task's name, as it was given",
        "steps": "how many batches were trained on",
        "loss": "the mean loss on the training rows; nothing if noise is added for privacy",
        "score": "counts of right and wrong on the site's validation rows, in coarse steps; nothing if few "
        "have changed",
        "examples": "how many people's rows were trained on",
        "cohort": _COHORT,
        "signature": "the site's public signing key, and its signature under the model that the change makes",
        "holds": _HOLDS,
        "update": "the encoded change of the model",
    },
    "evaluate": {
        "scores": "for each model, counts of right and wrong on the site's validation rows, in coarse steps",
        "holds": _HOLDS,
    },
    "tell": {"holds": _HOLDS},
    "judge": {
        "body/told": "for each model, groups of cases and of controls among the test rows by predicted "
        "chance, or sums of "
        "errors; nothing of fewer people than the smallest count",
        "holds": _HOLDS,
    },
    "gain": {
        "body/why": "why the site tells nothing, or makes nothing of the community model; empty if it does",
        "body/gain": "how good the site's own model, the community model and what the site makes of it are on its test "
        "rows, the differences, each with its interval, and the weight or line that it chose; nothing where a class "
        "has fewer people than the smallest count",
        "holds": _HOLDS,
    },
    "explain": {
        "body/why": "why the site tells nothing of what the model goes by; empty if it does",
        "body/explained": "such counts for the model as it is and with each input shuffled among the test rows, and "
        "its mean prediction with an input set to a value; nothing of fewer people than the smallest count",
        "holds": _HOLDS,
    },
    "end": {},
}
"""By what was asked: every field of an answer, and what it is."""

FLOWER = "the node itself sends its public key, signatures, heartbeats, and the sizes and times of messages"


def fields_of(answer: Parcel) -> Iterator[str]:
    """The names of an answer's fields."""
    yield from answer.about
    for name in answer.blobs:
        if name == "body":
            yield from (f"body/{each}" for each in body_of(answer))
        else:
            yield name


def check_fields(kind: str, answer: Parcel) -> Parcel:
    """Let an answer pass if all of its fields are listed.

    >>> check_fields("train", Parcel("answer", {"patient": "4711"}))
    Traceback (most recent call last):
    abaton.errors.Refused: a field that is not listed would leave (site): ...
    """
    allowed = {"reason", *FIELDS.get(kind, ())}
    if not allowed.issuperset(fields_of(answer)):
        raise Refused(
            "a field that is not listed would leave",
            where="site",
            remedy="list it in federation.network.messages",
        )
    return answer


def words_for(kind: str, field: str) -> str:
    """What a field is."""
    return _REASON if field == "reason" else FIELDS[kind][field]


# ---- a centre's questions -----------------------------------------------------------------------------------------

_LONGEST, _TASKS = 400, 4096
_SETTINGS = {each.name: type(each.default) for each in fields(TrainSettings)}


def checked(parcel: Parcel) -> Parcel:
    """A question whose values are of the kinds they must be.

    Raises:
        Said: It is not one.
    """
    about, blobs, check = parcel.about, parcel.blobs, _CHECKS.get(parcel.kind, _anything)
    sound = isinstance(about, Mapping) and isinstance(blobs, Mapping) and all(map(_text, blobs))
    sound = sound and all(isinstance(data, bytes) for data in blobs.values())
    if not (sound and _text(about.get("run")) and _text(about.get("terms")) and check(about, blobs)):
        raise Said(UNKNOWN)
    return parcel


def _anything(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    """Of a question without fields of its own nothing more is asked here."""
    return True


def _text(said: object) -> bool:
    return isinstance(said, str) and len(said) <= _LONGEST


def _whole(said: object) -> bool:
    return isinstance(said, int) and not isinstance(said, bool) and -_MOST <= said <= _MOST


def _number(said: object) -> bool:
    return _whole(said) or isinstance(said, float)


def _training(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    plain = _text(about.get("layout")) and _text(about.get("key")) and _whole(about.get("version"))
    return (
        plain
        and _whole(about.get("committed"))
        and _settings(about.get("settings"))
        and _model(about, "model", blobs)
    )


def _models(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    tasks = about.get("tasks")
    if not _text(about.get("layout")) or not isinstance(tasks, list) or len(tasks) > _TASKS:
        return False
    return all(isinstance(one, Mapping) and _model(one, f"model/{i}", blobs) for i, one in enumerate(tasks))


def _one_model(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    return _models(about, blobs) and len(about["tasks"]) == 1


def _scoring(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    return (
        _whole(about.get("committed"))
        and _models(about, blobs)
        and all(_text(one.get("key")) and _signed(one) for one in about["tasks"])
    )


def _signed(one: Mapping[str, Any]) -> bool:
    said = one.get("signed", ["", 0, ""])
    if not isinstance(said, list | tuple) or len(said) != 3:
        return False
    return _text(said[0]) and _whole(said[1]) and _text(said[2])


def _model(about: Mapping[str, Any], blob: str, blobs: Mapping[str, bytes]) -> bool:
    base, steps, made = about.get("base", 0), about.get("steps"), about.get("made")
    if not _text(about.get("model")) or not (base is None or _text(base)) or blob not in blobs:
        return False
    if steps is None:
        return True
    pairs = isinstance(steps, list) and all(
        isinstance(each, list | tuple) and len(each) == 2 and all(map(_whole, each)) for each in steps
    )
    authored = isinstance(made, list | tuple) and len(made) == 2 and _whole(made[0]) and _text(made[1])
    return pairs and authored and _whole(about.get("exact")) and _text(about.get("start"))


def _settings(said: object) -> bool:
    if not isinstance(said, Mapping) or not said.keys() <= _SETTINGS.keys():
        return False
    return all(_setting(_SETTINGS[name], value) for name, value in said.items())


def _setting(kind: type, value: object) -> bool:
    if kind is type(None):
        return value is None or (
            isinstance(value, Mapping)
            and value.keys() == {"loss", "tombstones"}
            and _number(value["loss"])
            and _whole(value["tombstones"])
        )
    if kind is float:
        return _number(value)
    return _whole(value) if kind is int else isinstance(value, kind)


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, bytes]], bool]] = {
    "train": _training,
    "evaluate": _scoring,
    "judge": _models,
    "gain": lambda about, blobs: (
        _one_model(about, blobs) and all(_whole(about.get(key)) for key in ("epochs", "seed", "resamples"))
    ),
    "explain": lambda about, blobs: _one_model(about, blobs),
    "tell": lambda about, blobs: _text(about.get("layout")) and _whole(about.get("committed")),
    "query": lambda about, blobs: _text(about.get("layout")),
}
