"""Messages between the centre and the sites of a study: JSON values, validated on both sides.

No message can contain a row of a table, only sums, suppressed counts, digests and updates. `FIELDS` lists every field
of a reply; each reply is checked against it before it is sent (`check_fields`), and `abaton site join --dry-run` prints
it with the values that the site would send. Requests of the centre are type-checked (`check_request`) before a site
acts on them, so that malformed requests are refused instead of crashing a worker; whether a value is allowed is decided
later by the task contract and the policy.
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

from abaton.anonymity.federated_recoding import CombinationHistogram
from abaton.engines.base import UNKNOWN_MESSAGE, CodedFailureError
from abaton.engines.flower import Message
from abaton.errors import PayloadError, RefusedError
from abaton.features import ColumnMoments, ColumnStatistics, FeatureColumn
from abaton.federation.run import COMMUNITY
from abaton.metrics.classification import BINS, MetricEstimate, ScoreHistogram, bin_scores
from abaton.metrics.regression import RegressionSums, releasable_sums
from abaton.metrics.survival import ConcordanceSums
from abaton.study.evaluation_section import InterpretabilitySection
from abaton.study_run.evaluation import EvaluationGroup, GroupCounts, SiteCounts
from abaton.study_run.interpretability import SiteInterpretability, columns_by_input, grid_points
from abaton.study_run.local_benefit import LOCAL_ONLY, ModelBenefit, SiteBenefit
from abaton.study_run.preparation import SiteSums
from abaton.study_run.preparation_state import CommonScale
from abaton.training import TrainSettings

_BODY = "body"
_SELECTED_KEYS = frozenset(
    {"weight", "intercept", "slope", "epochs", "penalty"}
)  # of personal and local-only models
_MAX_BODY_BYTES = 1 << 26
_MAX_INTEGER = 1 << 53  # larger integers are not exact in JSON
_MAX_FLOAT = sys.float_info.max
_MAX_SQUARABLE = 1e150  # its square is finite

MAX_SUBJECTS = 1 << 34
"""Upper limit of every count of subjects, above the world population."""


def make_message(message_type: str, header: Mapping[str, Any], body: Mapping[str, Any]) -> Message:
    """Return a study message with a JSON body."""
    return Message(message_type, header, {_BODY: json.dumps(body, separators=(",", ":")).encode()})


def message_body(message: Message) -> dict[str, Any]:
    """Return the JSON body of a study message.

    >>> message_body(make_message("ingest", {}, {"k": 5}))
    {'k': 5}
    """
    data = message.attachments.get(_BODY, b"")
    try:
        body = json.loads(data) if len(data) <= _MAX_BODY_BYTES else None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise invalid_reply_error()
    return body


def scale_from_row(row: Mapping[str, Any]) -> CommonScale:
    """Return the common scaling from untrusted JSON values of a message."""
    mean, std = parse_floats(row["label"], length=2)
    return CommonScale(_statistics_from_row(row["columns"]), (mean, std))


def sums_to_row(sums: SiteSums) -> dict[str, Any]:
    """Return a site's sums for scaling as JSON values of a message."""
    return {"columns": _statistics_to_row(sums.columns), "label": list(astuple(sums.label))}


def sums_from_row(row: Mapping[str, Any]) -> SiteSums:
    """Return a site's sums for scaling from untrusted JSON values of a message."""
    return SiteSums(_statistics_from_row(row["columns"]), _moments_from_row(row["label"]))


def counts_to_row(counts: SiteCounts) -> list[Any]:
    """Return a site's evaluation counts as JSON values of a message: counts of non-empty bins, or sums."""
    return [
        [group.name, group.grouping, _group_counts_to_row(group_counts)]
        for group, group_counts in counts.items()
    ]


def counts_from_row(rows: Sequence[Any], cases: int) -> SiteCounts:
    """Return evaluation counts from untrusted message values, for `cases` classes (0: regression, survival)."""
    counts: dict[EvaluationGroup, GroupCounts] = {}
    for name, grouping, group_counts in rows:
        counts[EvaluationGroup(parse_text(name), parse_text(grouping))] = _group_counts_from_row(
            group_counts, cases
        )
    return counts


def benefit_to_row(benefit: SiteBenefit) -> dict[str, Any]:
    """Return a site's local benefit as JSON values: metrics and differences of every model, or the reason."""
    benefits = None
    if benefit.benefits is not None:
        benefits = {name: model_benefit.to_row() for name, model_benefit in benefit.benefits.items()}
    return {"reason": benefit.reason, "benefits": benefits}


def benefit_from_row(row: Mapping[str, Any], methods: Sequence[str]) -> SiteBenefit:
    """Return a site's local benefit from untrusted JSON values: local-only, community and personal models only."""
    benefits, reason = row["benefits"], parse_text(row["reason"])
    if benefits is None:
        return SiteBenefit(None, reason)
    if not isinstance(benefits, dict) or list(benefits) not in (
        [LOCAL_ONLY, COMMUNITY],
        [LOCAL_ONLY, COMMUNITY, *methods],
    ):
        raise invalid_reply_error()
    if set(benefits[LOCAL_ONLY]["selected"]) not in ({"epochs"}, {"penalty"}):
        raise invalid_reply_error()
    return SiteBenefit({name: _model_benefit_from_row(benefit) for name, benefit in benefits.items()}, reason)


def _model_benefit_from_row(row: Mapping[str, Any]) -> ModelBenefit:
    selected = row["selected"]
    if not isinstance(selected, dict) or not selected.keys() <= _SELECTED_KEYS:
        raise invalid_reply_error()
    value, over_local_only, over_community = (
        _estimate_from_row(row[name]) for name in ("value", "gain_over_local_only", "gain_over_community")
    )
    parameters = {name: parse_floats([parameter], length=1)[0] for name, parameter in selected.items()}
    return ModelBenefit(value, over_local_only, over_community, parameters)


def _estimate_from_row(row: object) -> MetricEstimate:
    if not isinstance(row, list) or len(row) != 3:
        raise invalid_reply_error()
    return MetricEstimate(
        *(math.nan if value is None else parse_floats([value], length=1)[0] for value in row)
    )


def interpretability_to_row(result: SiteInterpretability) -> dict[str, Any]:
    """Return a site's interpretability counts as JSON values of a message."""
    return {
        "subjects": result.subjects,
        "counts": counts_to_row(result.counts),
        "permuted": {
            name: [_group_counts_to_row(counts) for counts in repeats]
            for name, repeats in result.permuted.items()
        },
        "means": {name: [list(point) for point in points] for name, points in result.means.items()},
    }


def interpretability_from_row(
    row: Mapping[str, Any], section: InterpretabilitySection, columns: Sequence[FeatureColumn], cases: int
) -> SiteInterpretability:
    """Return interpretability counts from untrusted message values: exactly the requested inputs and points."""
    inputs = list(columns_by_input(columns)) if section.permutation_repeats else []
    points = {name: len(grid_points(section, name, columns)) for name in section.partial_dependence}
    counts, subjects = counts_from_row(row["counts"], cases), parse_count(row["subjects"], MAX_SUBJECTS)
    if list(row["permuted"]) != inputs or list(row["means"]) != list(points) or not counts or not subjects:
        raise invalid_reply_error()
    if any(len(repeats) != section.permutation_repeats for repeats in row["permuted"].values()):
        raise invalid_reply_error()
    if any(len(row["means"][name]) != size for name, size in points.items()):
        raise invalid_reply_error()
    return SiteInterpretability(
        subjects,
        counts,
        {
            name: [_group_counts_from_row(repeat, cases) for repeat in repeats]
            for name, repeats in row["permuted"].items()
        },
        {
            name: [parse_floats(point, length=max(cases, 1)) for point in row["means"][name]]
            for name in points
        },
    )


def _group_counts_from_row(row: Any, cases: int) -> GroupCounts:
    if not cases and isinstance(row, list) and len(row) == len(fields(ConcordanceSums)):
        return _parse_concordance_sums(parse_floats(row, length=len(fields(ConcordanceSums))))
    if not cases:
        return _parse_regression_sums(parse_floats(row, length=len(fields(RegressionSums))))
    if not isinstance(row, list) or len(row) != cases:
        raise invalid_reply_error()
    return [_score_histogram_from_row(histogram) for histogram in row]


def _parse_concordance_sums(sums: Sequence[float]) -> ConcordanceSums:
    """Return concordance sums of a message if consistent: at most all pairs are concordant, at most all exist."""
    subjects, events, concordant, pairs, concordant_squared, product, pairs_squared = sums
    max_pairs = subjects * subjects
    is_consistent = 0 <= concordant <= pairs <= max_pairs
    is_consistent = (
        is_consistent and 0 <= concordant_squared <= product <= pairs_squared <= subjects * max_pairs
    )
    if not is_consistent or events > subjects:
        raise invalid_reply_error()
    return ConcordanceSums(
        parse_count(subjects, MAX_SUBJECTS),
        parse_count(events),
        concordant,
        pairs,
        concordant_squared,
        product,
        pairs_squared,
    )


def _parse_regression_sums(sums: Sequence[float]) -> RegressionSums:
    """Return sums of errors and values from a message if each fits the next higher power (Cauchy-Schwarz)."""
    parsed = releasable_sums(RegressionSums(parse_count(sums[0], MAX_SUBJECTS), *sums[1:]))
    n, squares, fourth, fourths = parsed.subjects, parsed.squares, parsed.fourth, parsed.fourths
    even_sums = parsed.absolute, parsed.squared, fourth, squares, fourths, parsed.squared_squares
    if any(value < 0 for value in even_sums) or parsed.squared > _MAX_SQUARABLE:
        raise invalid_reply_error()
    bounds = (
        (parsed.absolute, n, parsed.squared), (parsed.squared, n, fourth), (parsed.total, n, squares),
        (squares, n, fourths), (parsed.cubes, squares, fourths), (parsed.squared_values, fourth, squares),
        (parsed.squared_squares, fourth, fourths),
    )  # fmt: skip
    if any(_max_sum(one, other) * (1 + 1e-6) < abs(value) for value, one, other in bounds):
        raise invalid_reply_error()
    return parsed


def _max_sum(count: float, squared_sum: float) -> float:
    """Return the largest plausible sum in a message: of `count` values with the given sum of squares."""
    return math.sqrt(max(0.0, count)) * math.sqrt(squared_sum)


def parse_floats(values: object, *, length: int) -> list[float]:
    """Return a list of `length` finite numbers from an untrusted study message."""
    if not isinstance(values, list) or len(values) != length:
        raise invalid_reply_error()
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX_FLOAT:
            raise invalid_reply_error()
    return [float(value) for value in values]


def parse_count(value: object, limit: int = _MAX_INTEGER) -> int:
    """Return a non-negative integer up to a limit from an untrusted study message."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limit or value % 1:
        raise invalid_reply_error()
    return int(value)


def parse_text(value: object, max_length: int = 400) -> str:
    """Return a line of text from an untrusted study message: no control characters, up to a length."""
    if not isinstance(value, str) or len(value) > max_length or not value.isprintable():
        raise invalid_reply_error()
    return value


def invalid_reply_error() -> PayloadError:
    """Return the error for an invalid reply message of a site."""
    return PayloadError(
        "a reply is invalid", where="network", remedy="check that the site runs the same version of Abaton"
    )


def _statistics_to_row(statistics: ColumnStatistics) -> dict[str, list[float]]:
    return {name: list(astuple(moments)) for name, moments in statistics.columns.items()}


def _statistics_from_row(row: object) -> ColumnStatistics:
    if not isinstance(row, dict):
        raise invalid_reply_error()
    return ColumnStatistics({parse_text(name): _moments_from_row(moments) for name, moments in row.items()})


def _moments_from_row(row: object) -> ColumnMoments:
    count, total, squared_sum = parse_floats(row, length=3)
    if not 0 <= squared_sum <= _MAX_SQUARABLE or _max_sum(count, squared_sum) * (1 + 1e-6) < abs(total):
        raise invalid_reply_error()
    return ColumnMoments(parse_count(count, MAX_SUBJECTS), total, squared_sum)


def _group_counts_to_row(group_counts: GroupCounts) -> list[Any]:
    if isinstance(group_counts, RegressionSums | ConcordanceSums):
        return [0.0 if math.isnan(value) else value for value in astuple(group_counts)]
    rows = []
    for counts in group_counts:
        indices = np.flatnonzero(counts.cases + counts.controls)
        rows.append([[int(i), int(counts.cases[i]), int(counts.controls[i])] for i in indices])
    return rows


def _score_histogram_from_row(rows: object) -> ScoreHistogram:
    if not isinstance(rows, list) or len(rows) > BINS:
        raise invalid_reply_error()
    cases, controls = np.zeros(BINS), np.zeros(BINS)
    for row in rows:
        index, case_count, control_count = (
            parse_count(value, MAX_SUBJECTS) for value in parse_floats(row, length=3)
        )
        if index >= BINS:
            raise invalid_reply_error()
        cases[index], controls[index] = case_count, control_count
    return ScoreHistogram(bin_scores(), cases, controls)


# ---- cohort reports and histograms of a site ----------------------------------------------------------------------

TextLine = Annotated[str, AfterValidator(parse_text)]
SubjectCount = Annotated[int, Field(ge=0, le=MAX_SUBJECTS)]
ReleasedNumber = Annotated[float, Field(ge=-MAX_SUBJECTS, le=MAX_SUBJECTS)]
_MAX_ROWS = 1000


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _ReleasedModel(_StrictModel):
    values: dict[TextLine, ReleasedNumber] = Field(max_length=_MAX_ROWS)
    sd: ReleasedNumber = Field(ge=0)
    suppressed: list[TextLine] = Field(max_length=_MAX_ROWS)


class _CohortModel(_StrictModel):
    counts: _ReleasedModel | None
    threshold: SubjectCount
    remarks: list[TextLine] = Field(max_length=_MAX_ROWS)


def parse_cohort(report: object) -> Mapping[str, Any]:
    """Return a site's released cohort from untrusted JSON values of a message; an empty one stays empty.

    >>> parse_cohort({})
    {}
    """
    if report == {}:
        return {}
    try:
        return _CohortModel.model_validate(report).model_dump()
    except ValidationError:
        raise invalid_reply_error() from None


class _SensitiveModel(_StrictModel):
    values: list[TextLine | None]
    triples: list[tuple[SubjectCount, SubjectCount, SubjectCount]]
    unknown_subjects: list[SubjectCount]
    value_totals: list[SubjectCount]


class _HistogramModel(_StrictModel):
    base: list[SubjectCount]
    chains: list[list[tuple[list[TextLine | None], SubjectCount]]]
    is_listed: list[bool]
    cells: list[list[SubjectCount]]
    counts: list[SubjectCount]
    subjects: list[SubjectCount]
    sensitive: list[_SensitiveModel]
    suppressed: SubjectCount


def parse_histogram(row: object) -> CombinationHistogram:
    """Return a site's combination histogram from untrusted message values; all counts are plausible."""
    try:
        _HistogramModel.model_validate_json(json.dumps(row))
    except (TypeError, ValueError):
        raise invalid_reply_error() from None
    assert isinstance(row, dict)
    return CombinationHistogram.from_row(row)


# ---- every field of a reply ---------------------------------------------------------------------------------------

_REASON = "a failure code from a fixed list, never the text of an error"
_HELD_MODELS = (
    "digests of the community models that the site has cached, so that only differences are sent to it"
)
_COHORT = "a keyed digest of the subjects used, which identifies no subject"

FIELDS: Mapping[str, Mapping[str, str]] = {
    "introduce": {
        "site": "the site's id",
        "group": "the learner group of the site; empty",
        "examples": "number of training subjects",
        "labels": "number of validation rows of each class; empty unless the level is exact",
        "held_models": _HELD_MODELS,
    },
    "ingest": {
        "body/cohort_report": "counts of subjects with a legal basis by stage and by reason, at the disclosure level",
        "body/problem": "why the site cannot take part; empty if it can",
        "body/min_cell_count": "the smallest count of subjects that the site releases",
        "body/k": "the k of k-anonymity that the site requires",
        "body/histogram": "number of subjects with each combination of quasi-identifiers, generalised so that each has "
        "at least min_cell_count subjects; of all rarer combinations only the total",
    },
    "split": {
        "body/problem": "why the site cannot take part; empty if it can",
        "body/sums": "of each scaled column: the number of values, their sum, the sum of their squares",
    },
    "scale": {
        "body/table": "a keyed digest of the site's table",
        "body/cohort": _COHORT,
        "body/min_cell_count": "the smallest count of subjects that the site releases",
    },
    "train": {
        "task_id": "the id of the task, as received",
        "steps": "number of batches trained",
        "loss": "the mean loss on the training rows; empty unless the level is exact, and with differential privacy",
        "counts": "at level exact, counts of correct and wrong predictions on the site's validation rows, small "
        "classes suppressed, with the loss if the study weights by it; empty at other levels",
        "examples": "number of training subjects",
        "cohort": _COHORT,
        "signature": "the site's public signing key, and its signature of the trained model",
        "held_models": _HELD_MODELS,
        "update": "the encoded update of the model; running statistics of normalisation layers without loss",
    },
    "evaluate": {
        "counts_list": "for each model, counts of correct and wrong predictions on the site's validation rows, or the "
        "sum of losses: with noise and within the privacy budget, or at level exact with small classes suppressed",
        "held_models": _HELD_MODELS,
    },
    "progress": {"held_models": _HELD_MODELS},
    "evaluate_test": {
        "body/counts": "for each model, groups of cases and controls among the test rows by predicted probability, or "
        "sums of errors and of powers of the outcome (third and fourth powers from 50 subjects); of a class none below "
        "three times min_cell_count cases or controls",
        "held_models": _HELD_MODELS,
    },
    "local_benefit": {
        "body/reason": "why the site releases no comparison, or has no personal models; empty otherwise",
        "body/benefits": "metrics of the local-only, community and personal models on the site's test rows, their "
        "differences, each with its interval, and the selected parameters; nothing if a class has fewer than "
        "min_cell_count subjects",
        "held_models": _HELD_MODELS,
    },
    "interpretability": {
        "body/reason": "why the site releases no interpretability counts; empty otherwise",
        "body/interpretability": "evaluation counts of the model as it is and with each input permuted among the test "
        "rows, and its mean prediction with an input set to a value; nothing about fewer than min_cell_count subjects",
        "held_models": _HELD_MODELS,
    },
    "finish": {},
}
"""Description of every field of a reply, by message type."""

FLOWER = "the node itself sends its public key, signatures, heartbeats, and the sizes and times of messages"


def field_names(reply: Message) -> Iterator[str]:
    """Yield the names of the fields of a site's reply message."""
    yield from reply.header
    for name in reply.attachments:
        if name == "body":
            yield from (f"body/{field}" for field in message_body(reply))
        else:
            yield name


def check_fields(message_type: str, reply: Message) -> Message:
    """Return a site's reply message if all of its fields are listed.

    >>> check_fields("train", Message("reply", {"patient": "4711"}))
    Traceback (most recent call last):
    abaton.errors.RefusedError: the reply has a field that is not listed (site): ...
    """
    allowed = {"reason", *FIELDS.get(message_type, ())}
    if not allowed.issuperset(field_names(reply)):
        raise RefusedError(
            "the reply has a field that is not listed",
            where="site",
            remedy="list it in abaton.study_run.messages",
        )
    return reply


def describe_field(message_type: str, field: str) -> str:
    """Return the description of a field of a study message."""
    return _REASON if field == "reason" else FIELDS[message_type][field]


# ---- requests of the centre ---------------------------------------------------------------------------------------

_MAX_TEXT, _MAX_TASKS = 400, 4096
_SETTING_TYPES = {setting.name: type(setting.default) for setting in fields(TrainSettings)}


def check_request(message: Message) -> Message:
    """Return a request message of the centre whose values have the expected types.

    Raises:
        CodedFailureError: A value has another type.
    """
    header, attachments = message.header, message.attachments
    check = _CHECKS.get(message.message_type, _is_any_request)
    is_valid = (
        isinstance(header, Mapping) and isinstance(attachments, Mapping) and all(map(_is_text, attachments))
    )
    is_valid = is_valid and all(isinstance(data, bytes) for data in attachments.values())
    is_valid = is_valid and _is_text(header.get("run")) and _is_text(header.get("study_hash"))
    if not (is_valid and check(header, attachments)):
        raise CodedFailureError(UNKNOWN_MESSAGE)
    return message


def _is_any_request(header: Mapping[str, Any], attachments: Mapping[str, bytes]) -> bool:
    """Accept a request message without fields of its own."""
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MAX_INTEGER <= value <= _MAX_INTEGER


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _is_train_request(header: Mapping[str, Any], attachments: Mapping[str, bytes]) -> bool:
    has_ids = _is_text(header.get("layout")) and _is_text(header.get("task_id"))
    return (
        has_ids
        and _is_integer(header.get("version"))
        and _is_integer(header.get("committed_steps"))
        and _are_train_settings(header.get("settings"))
        and _is_model_reference(header, "model", attachments)
    )


def _has_models(header: Mapping[str, Any], attachments: Mapping[str, bytes]) -> bool:
    evaluations = header.get("evaluations")
    if (
        not _is_text(header.get("layout"))
        or not isinstance(evaluations, list)
        or len(evaluations) > _MAX_TASKS
    ):
        return False
    return all(
        isinstance(evaluation, Mapping) and _is_model_reference(evaluation, f"model/{i}", attachments)
        for i, evaluation in enumerate(evaluations)
    )


def _has_one_model(header: Mapping[str, Any], attachments: Mapping[str, bytes]) -> bool:
    return _has_models(header, attachments) and len(header["evaluations"]) == 1


def _is_evaluate_request(header: Mapping[str, Any], attachments: Mapping[str, bytes]) -> bool:
    return (
        _is_integer(header.get("committed_steps"))
        and _has_models(header, attachments)
        and all(
            _is_text(evaluation.get("task_id")) and _has_valid_signature_fields(evaluation)
            for evaluation in header["evaluations"]
        )
    )


def _has_valid_signature_fields(evaluation: Mapping[str, Any]) -> bool:
    signed_model = evaluation.get("signed_model", ["", 0, ""])
    if not isinstance(signed_model, list | tuple) or len(signed_model) != 3:
        return False
    return _is_text(signed_model[0]) and _is_integer(signed_model[1]) and _is_text(signed_model[2])


def _is_model_reference(
    reference: Mapping[str, Any], attachment: str, attachments: Mapping[str, bytes]
) -> bool:
    base, deltas, trained_by = reference.get("base", 0), reference.get("deltas"), reference.get("trained_by")
    if (
        not _is_text(reference.get("model"))
        or not (base is None or _is_text(base))
        or attachment not in attachments
    ):
        return False
    if deltas is None:
        return True
    has_deltas = isinstance(deltas, list) and all(
        isinstance(delta, list | tuple) and len(delta) == 2 and all(map(_is_integer, delta))
        for delta in deltas
    )
    has_author = (
        isinstance(trained_by, list | tuple)
        and len(trained_by) == 2
        and _is_integer(trained_by[0])
        and _is_text(trained_by[1])
    )
    return (
        has_deltas
        and has_author
        and _is_integer(reference.get("exact_bytes"))
        and _is_text(reference.get("start"))
    )


def _are_train_settings(settings: object) -> bool:
    if not isinstance(settings, Mapping) or not settings.keys() <= _SETTING_TYPES.keys():
        return False
    return all(_is_setting(_SETTING_TYPES[name], value) for name, value in settings.items())


def _is_setting(setting_type: type, value: object) -> bool:
    if setting_type is type(None):
        return value is None or (
            isinstance(value, Mapping)
            and value.keys() == {"loss", "tombstones"}
            and _is_number(value["loss"])
            and _is_integer(value["tombstones"])
        )
    if setting_type is float:
        return _is_number(value)
    return _is_integer(value) if setting_type is int else isinstance(value, setting_type)


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, bytes]], bool]] = {
    "train": _is_train_request,
    "evaluate": _is_evaluate_request,
    "evaluate_test": _has_models,
    "local_benefit": lambda header, attachments: (
        _has_one_model(header, attachments)
        and all(_is_integer(header.get(key)) for key in ("epochs", "seed", "bootstrap_resamples"))
    ),
    "interpretability": lambda header, attachments: _has_one_model(header, attachments),
    "progress": lambda header, attachments: (
        _is_text(header.get("layout")) and _is_integer(header.get("committed_steps"))
    ),
    "introduce": lambda header, attachments: _is_text(header.get("layout")),
}
