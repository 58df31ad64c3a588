"""Restricted cubic splines: the basis spans Harrell's, follows from the knots, and is well conditioned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.features.feature_examples import PRESSURE, patient, plan, value

from abaton.controller import Strategy
from abaton.features import (
    FeatureColumn,
    FeatureTable,
    InputKind,
    InputSpec,
    SplineBasis,
    build_features,
    column_statistics,
    expand_splines,
    feature_columns,
    model_columns,
    pool_statistics,
    scale_table,
)
from abaton.federation import Federation
from abaton.models import Examples, logistic
from abaton.training import TrainSettings

AGE = SplineBasis((45.0, 62.0, 79.0))
KNOTS = [AGE, SplineBasis((100.0, 120.0, 140.0, 160.0)), SplineBasis((0.62, 1.0, 1.62), is_log=True),
         SplineBasis((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)), SplineBasis((-5.0, 0.0, 1.0, 2.0, 30.0))]  # fmt: skip


def harrell(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Return the columns of `rms::rcs`, written from the formula in Harrell's book."""
    columns, last, second_last = [x], knots[-1], knots[-2]
    for knot in knots[:-2]:
        column = np.maximum(x - knot, 0) ** 3
        column = column - np.maximum(x - second_last, 0) ** 3 * (last - knot) / (last - second_last)
        column = column + np.maximum(x - last, 0) ** 3 * (second_last - knot) / (last - second_last)
        columns.append(column / (last - knots[0]) ** 2)
    return np.stack(columns, axis=1)


def projection_error(columns: np.ndarray, target: np.ndarray) -> float:
    design = np.column_stack([np.ones(len(columns)), columns])
    fitted = design @ np.linalg.lstsq(design, target, rcond=None)[0]
    return float(np.abs(fitted - target).max() / np.abs(target).max())


@pytest.mark.parametrize("spline", KNOTS, ids=str)
def test_the_columns_span_those_of_harrell(spline):
    x = np.linspace(*spline.cut_range, 500)
    on_scale, knots = (np.log(v) if spline.is_log else v for v in (x, np.array(spline.knots)))
    columns, reference = spline.columns(x), harrell(on_scale, knots)
    assert columns.shape == reference.shape == (500, len(spline.knots) - 1)
    assert projection_error(columns, reference) < 1e-9
    assert projection_error(reference, columns) < 1e-6


@pytest.mark.parametrize("spline", KNOTS, ids=str)
def test_the_fit_equals_that_of_patsys_natural_spline(spline):
    import patsy
    import statsmodels.api as statsmodels

    rng = np.random.default_rng(3)
    low, high = spline.cut_range
    x = rng.uniform(low, high, 3000)
    position = spline.positions(x)
    y = rng.random(3000) < 1 / (1 + np.exp(1 - 2 * np.sin(3 * position)))
    on_scale, knots = (np.log(v) if spline.is_log else v for v in (x, np.array(spline.knots)))
    bounds = {"lower_bound": knots[0], "upper_bound": knots[-1], "knots": knots[1:-1]}
    reference = patsy.dmatrix("cr(x, knots=knots, lower_bound=lower_bound, upper_bound=upper_bound) - 1",
                              {"x": on_scale, **bounds}, return_type="matrix")  # fmt: skip
    ours = statsmodels.add_constant(spline.columns(x))
    fits = [statsmodels.Logit(y, design).fit(disp=0, tol=1e-12).predict() for design in (ours, reference)]
    np.testing.assert_allclose(fits[0], fits[1], atol=1e-6)


@pytest.mark.parametrize("spline", KNOTS, ids=str)
def test_the_columns_are_well_conditioned_where_raw_spline_columns_are_not(spline):
    deviations = np.random.default_rng(1).normal(size=20_000)
    columns = spline.columns(np.array([spline.reference_value(z) for z in deviations]))
    correlation = np.cov(columns.T)
    assert np.abs(columns.mean(axis=0)).max() < 0.1
    assert np.linalg.cond(correlation) < 3
    assert (np.diff(spline.columns(np.linspace(*spline.cut_range, 50))[:, 0]) > 0).all()  # linear, increasing


@given(
    gaps=st.lists(st.floats(0.5, 20), min_size=2, max_size=6),
    first=st.floats(-100, 100),
    far=st.floats(0, 1e6),
)
def test_values_beyond_the_cut_count_as_the_cut(gaps, first, far):
    spline = SplineBasis(tuple(first + np.concatenate([[0.0], np.cumsum(gaps)])))
    low, high = spline.cut_range
    assert low < spline.knots[0] < spline.knots[-1] < high
    inside, outside = np.array([low, high]), np.array([low - far, high + far])
    columns = spline.columns(outside)
    np.testing.assert_allclose(columns, spline.columns(inside))
    assert np.abs(columns).max() < 1e3
    assert np.isnan(spline.columns(np.array([np.nan]))).all()


def test_an_input_with_a_spline_is_imputed_first_and_scaled_by_its_knots():
    spec = plan(PRESSURE.model_copy(update={"spline": (100.0, 120.0, 140.0), "missing_indicator": True}))
    columns = feature_columns(spec)
    assert [column.name for column in columns] == ["pressure", "pressure missing"]
    assert model_columns(columns) == ("pressure", "pressure'", "pressure missing")
    readings = {"a": 95.0, "b": 130.0, "c": 155.0, "d": None}
    records = [patient(who) for who in readings]
    records += [value(who, number) for who, number in readings.items() if number is not None]
    table = build_features(spec, records).table
    assert table.x.shape == (4, 2)
    scaled = scale_table(table, pool_statistics([column_statistics(table)]))
    spline = SplineBasis((100.0, 120.0, 140.0))
    mean = np.mean([95.0, 130.0, 155.0])
    expected = spline.columns(np.array([95.0, 130.0, 155.0, mean]))
    np.testing.assert_allclose(scaled.x[:, :2], expected, rtol=1e-6)
    np.testing.assert_array_equal(scaled.x[:, 2], [0, 0, 0, 1])
    assert scaled.columns == model_columns(columns)


def test_rows_without_splines_are_not_changed():
    x = np.ones((2, 2))
    assert expand_splines(x, [None, None]) is x
    assert model_columns([FeatureColumn("a", "a")]) == ("a",)


def test_a_spline_on_a_log_scale_cuts_negative_values():
    spline = SplineBasis((0.62, 1.0, 1.62), is_log=True)
    assert np.isfinite(spline.columns(np.array([-1.0, 0.0, 999.0]))).all()


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"spline": (120.0, 100.0, 140.0)}, "do not increase"),
        ({"spline": (100.0, 100.0, 140.0)}, "do not increase"),
        ({"spline": (100.0, 120.0)}, "has 2 knots"),
        ({"spline": tuple(map(float, range(8)))}, "has 8 knots"),
        ({"spline": (100.0, 100.001, 140.0)}, "almost coincide"),
        ({"spline": (0.0, 1.0, 2.0), "scale": "log"}, "not positive"),
        ({"scale": "log"}, "has no 'spline'"),
    ],
)
def test_bad_knots_are_refused(keys, what):
    with pytest.raises(ValidationError, match=what):
        InputSpec.model_validate({**PRESSURE.model_dump(exclude_defaults=True), **keys})


def test_a_category_has_no_spline():
    with pytest.raises(ValidationError, match="'spline' is not a key of kind 'category'"):
        InputSpec(name="sex", kind=InputKind.CATEGORY, view="patients", column="sex",
                  categories=[{"name": "f", "values": ["female"]}], spline=(1.0, 2.0, 3.0))  # fmt: skip


def test_a_federated_spline_model_comes_within_a_hundredth_of_the_pooled_fit(tmp_path):
    from sklearn import linear_model as linear
    from sklearn import metrics

    rng = np.random.default_rng(11)
    spec = plan(PRESSURE.model_copy(update={"spline": (112.0, 139.0, 166.0)}))
    columns = (*feature_columns(spec), FeatureColumn("age", "age", True, True, AGE))

    def draw(count, age_mean):
        age = rng.normal(age_mean, 10, count)
        pressure = rng.normal(138 + 0.35 * (age - 60), 15)
        logit = -3 + 0.05 * (age - 62) + 0.9 * ((pressure - 136) / 15) ** 2 - 0.5 * ((age - 62) / 10) ** 2
        x = np.stack([pressure, age], axis=1)
        x[rng.random(x.shape) < 0.05] = np.nan
        y = (rng.random(count) < 1 / (1 + np.exp(-logit))).astype(np.int64)
        return FeatureTable(columns, x, y, ("no", "yes"), tuple(f"{age_mean}-{i}" for i in range(count)))

    tables = {
        f"site{mean}": draw(count, mean) for mean, count in ((56, 500), (62, 400), (66, 300), (60, 350))
    }
    common = pool_statistics(column_statistics(table) for table in tables.values())
    scaled = {name: scale_table(table, common) for name, table in tables.items()}
    test = scale_table(draw(6000, 61), common)
    sites = {name: Examples(table.x, table.y) for name, table in scaled.items()}
    settings = TrainSettings(epochs=3, batch_size=16, learning_rate=0.1, momentum=0.5)
    federation = Federation(logistic(features=4), sites, Strategy(rounds=40, training=settings))
    run = federation.run("splines", store=tmp_path)
    pooled_x, pooled_y = (np.concatenate([getattr(table, key) for table in scaled.values()]) for key in "xy")
    reference = linear.LogisticRegression(C=np.inf, max_iter=1000).fit(pooled_x, pooled_y)
    straight = linear.LogisticRegression(C=np.inf, max_iter=1000).fit(pooled_x[:, ::2], pooled_y)
    community, pooled, without_splines = (
        metrics.roc_auc_score(test.y, probabilities[:, 1])
        for probabilities in (
            run.predict(test.x),
            reference.predict_proba(test.x),
            straight.predict_proba(test.x[:, ::2]),
        )
    )
    assert abs(community - pooled) < 0.01
    assert pooled - without_splines > 0.1  # the effect is curved: a straight line would prove nothing
