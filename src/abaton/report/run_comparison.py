"""Comparison of runs as JSON values: differing settings, results, and when each run reached a common target.

Runs of different studies, outcomes or data are refused. Times and bytes are compared at a target that every run
reached: the best value of the worst run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.errors import SettingsError
from abaton.report.run_tables import Row, Table, differing_settings, setting_rows, settings_of, sum_rows
from abaton.report.training_curves import CURVE_AXES, Figure, is_error_metric, progress_figures

FORMAT = "abaton.comparison/1"


def compare_runs(reports: Sequence[Mapping[str, Any]], metric: str | None = None) -> dict[str, Any]:
    """Return a comparison of runs of the same task as JSON values, the source of its page and tables.

    Args:
        reports: Report of each run from :func:`abaton.report.make_report`.
        metric: Metric by which runs are compared; by default the main metric of the first run.

    Raises:
        SettingsError: The runs cannot be compared, or do not share the metric.
    """
    _check(reports)
    metric = _select_metric(reports, metric)
    target = _target(reports, metric)
    labels = [run_label(i) for i in range(len(reports))]
    return {
        "format": FORMAT,
        "task": _task(reports[0]),
        "metric": metric,
        "runs": [
            {"label": label, "run": report["run"], "created": report["created"], "status": report["status"]}
            for label, report in zip(labels, reports, strict=True)
        ],
        "differences": differing_settings(
            {report["run"]: settings_of(report["method"], report["provenance"]) for report in reports}
        ),
        "remarks": _remarks(reports),
        "target": target,
        "results": [_result(report, metric, target) for report in reports],
        "curves": {
            report["run"]: [
                {**{axis: point[axis] for axis in CURVE_AXES}, metric: point.get(metric)}
                for point in report["results"]["training"]["points"]
            ]
            for report in reports
        },
        "provenance": {
            report["run"]: {
                key: report["provenance"].get(key)
                for key in ("versions", "engine", "seed", "layout", "model")
            }
            for report in reports
        },
    }


def _task(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the task of a run; a comparison requires that it is equal for all runs."""
    if report["kind"] == "study":
        study = report["study"]
        return {
            "kind": "study",
            "study": str(study["id"]),
            "outcome": str(study["outcome"]),
            "task": str(report["method"]["task"]),
        }
    recipe = report["provenance"]["recipe"]
    task = {"kind": "lab", "experiment": str(recipe["name"])}
    if "task" in recipe["settings"]:
        task["data"] = str(recipe["settings"]["task"]["data"])
    return task


def _check(reports: Sequence[Mapping[str, Any]]) -> None:
    names = [report["run"] for report in reports]
    if len(names) < 2:
        raise SettingsError(
            "fewer than two runs are given", where="compare", remedy="give at least two; see 'abaton runs'"
        )
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise SettingsError(
            f"run '{repeated}' is given twice",
            where="compare",
            remedy="give each run once; see 'abaton runs'",
        )
    first = _task(reports[0])
    for report in reports[1:]:
        task = _task(report)
        for key in dict.fromkeys((*first, *task)):
            if first.get(key) != task.get(key):
                raise SettingsError(
                    f"run '{names[0]}' and run '{report['run']}' cannot be compared: {key} is "
                    f"'{first.get(key, 'none')}' in one and '{task.get(key, 'none')}' in the other",
                    where="compare",
                    remedy="choose runs of the same task",
                )
        if difference := _data_difference(reports[0]["provenance"], report["provenance"]):
            raise SettingsError(
                f"run '{names[0]}' and run '{report['run']}' cannot be compared: {difference}",
                where="compare",
                remedy="run both on the same sites and test examples, in one store",
            )


def _data_difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return how the examples of two runs to compare differ; empty if they are equal.

    Runs of one lab experiment have the same data set; their partitions may differ, for instance by the seed.
    """
    one, two = first.get("data"), other.get("data")
    if first.get("partition") or other.get("partition") or (one is None and two is None):
        return ""
    if one is None or two is None:
        return "only one has digests of its examples"
    if one["test"] != two["test"]:
        return "the test examples differ"
    if differing := sorted({*one["sites"]} ^ {*two["sites"]}):
        return f"only one has the site '{differing[0]}'"
    changed = [name for name, digest in one["sites"].items() if two["sites"][name] != digest]
    return f"the examples of site '{changed[0]}' differ" if changed else ""


def _select_metric(reports: Sequence[Mapping[str, Any]], requested: str | None) -> str:
    progress = [report["results"]["training"] for report in reports]
    shared = [
        name
        for name in progress[0]["metrics"]
        if all(name in run_progress["metrics"] for run_progress in progress)
    ]
    if requested is None and progress[0]["main_metric"] in shared:
        return str(progress[0]["main_metric"])
    if requested in shared:
        return str(requested)
    problem = (
        "the runs have no common metric"
        if requested is None
        else f"not all runs have the metric '{requested}'"
    )
    raise SettingsError(
        problem,
        where="compare",
        remedy=f"use {', '.join(shared)}" if shared else "choose runs with the same metrics",
    )


def _target(reports: Sequence[Mapping[str, Any]], metric: str) -> float:
    """Return the comparison's target, which every run reached: the best value of the worst run."""
    best, worst = (min, max) if is_error_metric(metric) else (max, min)
    return float(worst(best(_values(report, metric)) for report in reports))


def _values(report: Mapping[str, Any], metric: str) -> list[float]:
    points = report["results"]["training"]["points"]
    return [point[metric] for point in points if point.get(metric) is not None]


def _result(report: Mapping[str, Any], metric: str, target: float) -> dict[str, Any]:
    results = report["results"]
    points = [point for point in results["training"]["points"] if point.get(metric) is not None]
    sign = -1 if is_error_metric(metric) else 1
    reached = next(point for point in points if sign * point[metric] >= sign * target)
    totals = sum_rows(results["training"]["learners"])
    return {
        "run": report["run"],
        "value": points[-1][metric],
        "interval": _interval(report, metric),
        "best": (max if sign > 0 else min)(point[metric] for point in points),
        "versions": results["version"],
        "seconds": results["seconds"],
        **{key: totals.get(key, 0) for key in ("updates", "failed")},
        "bytes_up": totals.get("bytes", 0),
        "bytes_down": totals.get("downlink_bytes", 0),
        "reached": {field: reached[field] for field in (*CURVE_AXES, "bytes_up", "bytes_down")},
    }


def _interval(report: Mapping[str, Any], metric: str) -> list[float] | None:
    """Return the confidence interval of a compared run's community model on all test subjects."""
    for row in report["results"].get("evaluation", {}).get("rows", ()):
        if row["model"] == "community" and row["grouping"] == "all" and row["metrics"]:
            estimate = row["metrics"].get(metric)
            if estimate and estimate["low"] is not None:
                return [estimate["low"], estimate["high"]]
    return None


def _remarks(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    remarks = []
    if reports[0]["kind"] == "study":
        tables = [report["provenance"]["tables"] for report in reports]
        if any(report != tables[0] for report in tables):
            remarks.append(
                "Not comparable: the sites' tables differ (other records or consents), so that the models were trained "
                "and evaluated on other subjects."
            )
    else:
        partitions = [report["provenance"]["partition"] for report in reports]
        if any(report != partitions[0] for report in partitions):
            remarks.append("The partitions differ; results may differ for this reason.")
    clocks = {report["provenance"]["engine"] for report in reports}
    if len(clocks) > 1:
        remarks.append("The engines differ: simulated and wall-clock times are not comparable.")
    unfinished = [report["run"] for report in reports if report["status"] != "finished"]
    remarks += [f"Run {name} did not finish." for name in unfinished]
    return remarks


def run_label(index: int) -> str:
    """Return the label of a run in a comparison: A, B, … Z, AA.

    >>> run_label(0), run_label(27)
    ('A', 'AB')
    """
    return (run_label(index // 26 - 1) if index >= 26 else "") + chr(ord("A") + index % 26)


def comparison_figures(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison's figures: the metric of all runs against rounds, time and bytes."""
    labels = _labels(comparison)
    curves = {f"{labels[run]}: {shorten_name(run)}": points for run, points in comparison["curves"].items()}
    return {
        axis: shorten_run_column(figure)
        for axis, figure in progress_figures(curves, comparison["metric"]).items()
    }


def shorten_run_column(figure: Figure) -> Figure:
    """Return a comparison figure whose table shows only a run's label, to fit a narrow screen."""
    table = figure["table"]
    return figure | {"table": table | {"rows": [(row[0].split(":")[0], *row[1:]) for row in table["rows"]]}}


def run_rows(comparison: Mapping[str, Any]) -> Table:
    """Return labels, names, dates and status of the compared runs."""
    rows: list[Row] = [
        (run["label"], run["run"], run["created"][:19], run["status"]) for run in comparison["runs"]
    ]
    return ("label", "run", "created", "status"), rows


def difference_rows(comparison: Mapping[str, Any]) -> Table:
    """Return the comparison's differing settings with one column per run."""
    return ("setting", *_labels(comparison).values()), setting_rows(
        comparison["differences"], list(_labels(comparison))
    )


def result_rows(comparison: Mapping[str, Any]) -> Table:
    """Return the comparison's results with one row per run."""
    labels = _labels(comparison)
    rows: list[Row] = [
        (labels[result["run"]], _with_interval(result), result["best"], result["versions"], result["seconds"],
         result["updates"], result["failed"], result["bytes_up"], result["bytes_down"])
        for result in comparison["results"]
    ]  # fmt: skip
    columns = ("best", "versions", "seconds", "updates", "failed", "bytes up", "bytes down")
    return ("label", comparison["metric"], *columns), rows


def target_rows(comparison: Mapping[str, Any]) -> Table:
    """Return when each compared run first reached the target."""
    labels = _labels(comparison)
    rows: list[Row] = [
        (
            labels[result["run"]],
            result["reached"]["version"],
            result["reached"]["timestamp"],
            result["reached"]["bytes_up"],
            result["reached"]["bytes_down"],
        )
        for result in comparison["results"]
    ]
    return ("label", "version", "seconds", "bytes up", "bytes down"), rows


def digest_rows(comparison: Mapping[str, Any]) -> Table:
    """Return engine, seed and digests of each compared run."""
    rows: list[Row] = [
        (run, provenance["engine"], str(provenance["seed"]), provenance["layout"][:16], provenance["model"])
        for run, provenance in comparison["provenance"].items()
    ]
    return ("run", "engine", "seed", "layout", "community model"), rows


def _labels(comparison: Mapping[str, Any]) -> dict[str, str]:
    return {run["run"]: run["label"] for run in comparison["runs"]}


def shorten_name(name: str) -> str:
    """Return a run's name for a legend of the comparison, without its middle, since names differ at their ends.

    >>> shorten_name("heart-failure-six-hospitals-20261117-121120-dde4")
    'heart-failu…121120-dde4'
    """
    return name if len(name) <= 24 else f"{name[:11]}…{name[-11:]}"


def _with_interval(result: Mapping[str, Any]) -> str:
    value = f"{result['value']:.4f}"
    if result["interval"] is None:
        return value
    low, high = result["interval"]
    return f"{value} ({low:.3f} to {high:.3f})"
