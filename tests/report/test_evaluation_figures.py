"""Evaluation figures contain the given values, and at most a hundred points of a curve."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from abaton.metrics.classification import ScoreHistogram, count_scores, evaluate_classifier
from abaton.report import calibration_figure, forest_figure, model_colours, roc_figure


def counts(seed: int = 0) -> ScoreHistogram:
    rng = np.random.default_rng(seed)
    ill = rng.integers(0, 2, 5000)
    return count_scores(np.clip(rng.normal(0.4 + 0.2 * ill, 0.15), 0, 1), ill)


COLOURS = model_colours(["community", "local_only"])


def test_the_roc_curve_keeps_its_area_and_shows_no_single_subject() -> None:
    histogram = counts()
    figure = roc_figure({"community": histogram.curve()}, COLOURS)
    curve = figure["data"][1]
    assert len(curve["x"]) <= 102
    assert (
        abs(np.trapezoid(curve["y"], curve["x"]) - evaluate_classifier(histogram, resamples=0)["auroc"].value)
        < 5e-3
    )
    assert [row[0] for row in figure["table"]["rows"]] == [i / 10 for i in range(11)]


def test_calibration_shows_each_group_with_its_interval() -> None:
    groups = [(predicted, asdict(share)) for predicted, share in counts().calibration(8)]
    trace = calibration_figure({"community": groups}, COLOURS)["data"][1]
    assert trace["x"] == [predicted for predicted, _ in groups]
    assert trace["error_y"]["array"][0] == groups[0][1]["high"] - groups[0][1]["value"]


def test_the_forest_plot_omits_missing_estimates_and_its_table_lists_them() -> None:
    def row(model: str, group: str, metrics: dict | None) -> dict:
        return {"model": model, "group": group, "subjects": "9", "sites": 1, "metrics": metrics}

    good, nothing = ({"value": v, "low": v, "high": v} for v in (0.8, None))
    rows = [row("community", "kos", {"auroc": good}), row("community", "troy", {"auroc": nothing}),
            row("local_only", "kos", {"auroc": good}), row("local_only", "tiny", None)]  # fmt: skip
    figure = forest_figure(rows, "auroc", COLOURS)
    assert [(trace["name"], trace["y"]) for trace in figure["data"]] == [
        ("community", ["kos"]),
        ("local_only", ["kos"]),
    ]
    assert [line[-1] for line in figure["table"]["rows"]][1::2] == ["not estimable", "too few"]


def test_a_model_has_one_colour() -> None:
    roc = roc_figure({"local_only": counts().curve(), "community": counts().curve()}, COLOURS)
    metrics = {"auroc": {"value": 1, "low": 1, "high": 1}}
    rows = [{"model": m, "group": m, "subjects": "9", "sites": 1, "metrics": metrics} for m in COLOURS]
    forest = forest_figure(rows, "auroc", COLOURS)
    assert {trace["name"]: trace["line"]["color"] for trace in roc["data"][1:]} == COLOURS
    assert {trace["name"]: trace["marker"]["color"] for trace in forest["data"]} == COLOURS
