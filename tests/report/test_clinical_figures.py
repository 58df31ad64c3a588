"""The clinical figures hold the numbers they were given, and no more of a curve than a hundred steps."""

from __future__ import annotations

import numpy as np

from abaton.learning.clinical import Estimate, ScoreCounts, count_scores, judge
from abaton.report import calibration_figure, forest_figure, roc_figure


def counts(seed: int = 0) -> ScoreCounts:
    rng = np.random.default_rng(seed)
    ill = rng.integers(0, 2, 5000)
    return count_scores(np.clip(rng.normal(0.4 + 0.2 * ill, 0.15), 0, 1), ill)


def test_the_roc_curve_keeps_its_area_and_shows_no_single_subject() -> None:
    found = counts()
    curve = roc_figure({"community": found.curve()}).data[1]
    assert len(curve.x) <= 102
    assert abs(np.trapezoid(curve.y, curve.x) - judge(found, resamples=0)["auroc"].value) < 5e-3


def test_calibration_shows_each_group_with_its_interval() -> None:
    groups = counts().calibration(8)
    drawn = calibration_figure({"community": groups}).data[1]
    assert list(drawn.x) == [predicted for predicted, _ in groups]
    assert drawn.error_y.array[0] == groups[0][1].high - groups[0][1].value


def test_the_forest_leaves_out_what_is_not_a_number() -> None:
    nothing = Estimate(float("nan"), float("nan"), float("nan"))
    rows = [
        {"model": "community", "subset": "kos", "measures": {"auroc": Estimate(0.8, 0.7, 0.9)}},
        {"model": "community", "subset": "troy", "measures": {"auroc": nothing}},
        {"model": "alone", "subset": "kos", "measures": {"auroc": Estimate(0.6, 0.5, 0.7)}},
    ]
    figure = forest_figure(rows, "auroc")
    assert [trace.name for trace in figure.data] == ["community", "alone"]
    assert list(figure.data[0].y) == ["kos"]
    assert figure.layout.yaxis.categoryarray == ("troy", "kos")
