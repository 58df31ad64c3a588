"""Incomplete follow-up: excluding non-cases biases the risk; weights correct it, and what remains is refused."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest
from tests.features.feature_examples import condition as diagnosis
from tests.features.feature_examples import patient, plan, visit

from abaton.features import (
    Aggregation,
    Category,
    FollowUpSpec,
    IndexDate,
    InputKind,
    InputSpec,
    LabelKind,
    LabelSpec,
    MissingReason,
    build_features,
    column_statistics,
    scale_table,
)
from abaton.features.builder import MAX_RISK_RATIO
from abaton.features.labels import MAX_CENSORING_WEIGHT, censoring_weights, kaplan_meier_risk

SEX = InputSpec(
    name="sex",
    kind=InputKind.CATEGORY,
    view="patients",
    column="sex",
    categories=(Category(name="f", values=("female",)),),
)
START = date(2020, 1, 1)
FOLLOW_UP = FollowUpSpec(view="visits", date_column="date")
EVENT = LabelSpec(
    name="ill",
    kind=LabelKind.EVENT,
    view="codes",
    date_column="date",
    outcome_window="P365D",
    follow_up=FOLLOW_UP,
)
TIME = EVENT.model_copy(update={"kind": LabelKind.TIME})
INDEX = IndexDate(view="visits", column="date", aggregation=Aggregation.EARLIEST)


def population(lost_fraction: float, *, count: int = 1500, risk: float = 0.2, seed: int = 0):
    """Return records of subjects with a known risk within a year, of whom a fraction is lost at a random time."""
    rng = np.random.default_rng(seed)
    times = rng.exponential(-365 / np.log(1 - risk), count)
    lost = np.where(rng.random(count) < lost_fraction, rng.uniform(1, 365, count), 500)
    records = []
    for i, (event, end) in enumerate(zip(times.astype(int) + 1, lost.astype(int), strict=True)):
        who = f"p{i:04}"
        last = min(int(end), int(event)) if event <= end else int(end)
        records += [patient(who, gender="female"), visit(who, START.isoformat())]
        records.append(visit(who, (START + timedelta(days=last)).isoformat()))
        if event <= end:
            records.append(diagnosis(who, "1", when=(START + timedelta(days=int(event))).isoformat()))
    return records


def build(label, lost_fraction, **more):
    return build_features(plan(SEX, label=label, index_date=INDEX), population(lost_fraction, **more))


def test_weights_give_the_true_risk_where_excluding_the_censored_is_biased():
    weighted, naive = [], []
    for seed in range(4):
        result = build(EVENT, 0.5, seed=seed)
        table = result.table
        assert table is not None
        assert table.weights is not None
        assert MissingReason.CENSORED in {issue.reason for issue in result.report.issues}
        assert table.weights.sum() == pytest.approx(1500)
        assert np.unique(table.weights[table.y == 0]).size == 1, "all complete non-cases weigh the same"
        assert 1 <= table.weights.min() < table.weights.max() < MAX_CENSORING_WEIGHT
        weighted.append(np.average(table.y, weights=table.weights))
        naive.append(table.y.mean())
        assert table.unweighted_risk_ratio == pytest.approx(naive[-1] / weighted[-1])
    assert np.mean(naive) > 1.2 * 0.2
    assert np.mean(weighted) == pytest.approx(0.2, abs=0.015)  # 2.5 standard errors of 6,000 subjects


def test_rows_keep_their_weights():
    table = build(EVENT, 0.5, count=300).table
    weight_of = dict(zip(table.subjects, table.weights, strict=True))
    removed = frozenset(table.subjects[::3])
    for part in (table.without(removed), scale_table(table.without(removed), column_statistics(table))):
        assert removed.isdisjoint(part.subjects)
        assert [weight_of[subject] for subject in part.subjects] == part.weights.tolist()


def test_weights_equal_those_of_lifelines_with_events_before_censoring():
    import lifelines

    rng = np.random.default_rng(3)
    for size in (2, 5, 30, 300):
        for _ in range(25):
            days = rng.integers(1, 30, size).astype(float)
            state = rng.integers(0, 3, size)  # event, censored, complete
            days[state == 2] = 30.0
            weights = censoring_weights(
                list(zip(days, state == 0, strict=True)), (state == 1).tolist(), np.inf
            )
            moved = days - 0.5 * (state == 0)
            curve = lifelines.KaplanMeierFitter().fit(moved, state == 1)
            known = state != 1
            probability = curve.survival_function_at_times(moved).to_numpy()
            assert weights[~known].tolist() == [0.0] * int((~known).sum())
            assert weights[known] == pytest.approx(1 / probability[known], rel=1e-12)
            if (state == 2).any():
                times = zip(days, state == 0, strict=True)
                assert weights.sum() == pytest.approx(size)
                assert weights[state == 0].sum() / size == pytest.approx(kaplan_meier_risk(times), abs=1e-12)


def test_a_label_whose_truncated_weights_bias_the_risk_is_refused():
    result = build(EVENT, 0.95)
    assert result.table is None
    (issue,) = [issue for issue in result.report.issues if issue.is_fatal]
    assert issue.reason is MissingReason.SHORT_FOLLOW_UP
    assert "survival" in issue.remedy
    assert "10 %" in issue.remedy
    assert MAX_RISK_RATIO == 1.1  # as the remedy says


def test_the_survival_label_of_the_same_records_has_the_true_risk():
    estimates, naive = [], []
    for seed in range(4):
        table = build(TIME, 0.5, seed=seed).table
        assert table is not None
        days, events = table.y[:, 0], table.y[:, 1] == 1
        estimates.append(kaplan_meier_risk(zip(days, events, strict=True)))
        naive.append(events.sum() / (events.sum() + (days >= 365).sum()))
    assert np.mean(estimates) == pytest.approx(0.2, abs=0.015)  # 2.5 standard errors of 6,000 subjects
    assert np.mean(naive) > 0.23  # excluding the censored biases the risk


def test_little_incomplete_follow_up_is_tolerated_and_counted():
    result = build(EVENT, 0.05)
    assert result.table is not None
    reasons = {issue.reason for issue in result.report.issues}
    assert MissingReason.CENSORED in reasons
    assert result.table.y.mean() == pytest.approx(0.2, rel=0.1)


def test_follow_up_is_not_checked_without_labels():
    records = population(0.5, count=50)
    assert build_features(plan(SEX, label=EVENT, index_date=INDEX), records, labelled=False).table is not None


def test_the_risk_equals_that_of_lifelines():
    import lifelines

    rng = np.random.default_rng(5)
    for size in (1, 2, 10, 200):
        for _ in range(25):
            days, events = rng.integers(0, 30, size).astype(float), rng.random(size) < rng.random()
            curve = lifelines.KaplanMeierFitter().fit(days, events).survival_function_
            expected = 1 - float(curve.iloc[-1, 0])
            assert kaplan_meier_risk(zip(days, events, strict=True)) == pytest.approx(expected, abs=1e-12)
