"""Reports as HTML pages that need no network, rendered from templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from abaton.report import performance_tables, privacy_report, run_tables
from abaton.report.cohort_flow import cohort_flow_data, noise_text
from abaton.report.evaluation_figures import calibration_figure, forest_figure, model_colours, roc_figure
from abaton.report.experiment_figures import partition_figure
from abaton.report.html_renderer import PageAssets, page
from abaton.report.interpretability_figures import make_interpretability_figures
from abaton.report.learner_figures import TITLES
from abaton.report.performance_tables import NOT_RELEASED, performance_figures
from abaton.report.run_comparison import (
    comparison_figures,
    difference_rows,
    digest_rows,
    result_rows,
    run_rows,
    target_rows,
)
from abaton.report.training_curves import Figure, metric_label, progress_figures
from abaton.report.tripod_checklist import checklist_table


def render_report(report: Mapping[str, Any], assets: PageAssets | None = None) -> str:
    """Render the report page of any run as one HTML document; style and scripts embedded, or linked by `assets`."""
    return (render_run_report if report["kind"] == "study" else render_lab_report)(report, assets)


def render_run_report(report: Mapping[str, Any], assets: PageAssets | None = None) -> str:
    """Render the report page of a study run as one HTML document, findings first, technical details last.

    Args:
        report: Report from :func:`abaton.report.run_report.make_run_report`.
        assets: Style and scripts; embedded by default.
    """
    interpretability = make_interpretability_figures(report["results"])
    if report["results"].get("performance"):
        interpretability.pop("decision", None)  # the exact curve with its band is shown instead
    sections = [report["results"].get(key, {}) for key in ("interpretability", "personal_models")]
    return page(
        "run.html",
        figures={**run_figures(report), **interpretability, **report.get("figures", {})},
        assets=assets,
        report={"finding": None, "local_benefit": [], **report},
        interpretability=interpretability,
        missing_sites={
            site: reason for section in sections for site, reason in section.get("excluded_sites", {}).items()
        },
        flow=cohort_flow_data(report["cohort"]["sites"]),
        noise=noise_text(report["cohort"]["sites"]),
        colours=colours_of(report["results"]["evaluation"]),
        tables=run_tables,
        exact=performance_tables,
        checklist=checklist_table(report["results"]),
        not_released=NOT_RELEASED,
        titles=TITLES,
    )


def colours_of(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Return the colour of every model of a run on its report page, local-only models included."""
    local_only = [
        f"{site} (local only)" for site in (evaluation.get("local_benefit") or {"sites": ()})["sites"]
    ]
    return model_colours([*local_only, *(row["model"] for row in evaluation["rows"])])


def run_figures(report: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures of a study run's report page by name."""
    results, evaluation = report["results"], report["results"]["evaluation"]
    evaluated = [row for row in evaluation["rows"] if row["metrics"]]
    curves = {name: curve for name, curve in evaluation["curves"].items() if curve}
    metric = next((name for row in evaluated for name in row["metrics"]), "auroc")
    colours = colours_of(evaluation)
    figures: dict[str, Figure] = {}
    if results["training"]["points"]:
        figures |= progress_figures({"community": results["training"]["points"]}, metric)
    if roc := {name: tuple(curve["roc"]) for name, curve in curves.items() if "roc" in curve}:
        figures["roc"] = roc_figure(roc, colours)
    calibration = {
        name: curve["calibration"]
        for name, curve in curves.items()
        if "calibration" in curve and not name.endswith(" (local only)")
    }
    if calibration:
        figures["calibration"] = calibration_figure(calibration, colours)
    overall = [row | {"group": row["model"]} for row in evaluation["rows"] if row["grouping"] == "all"]
    figures["models"] = forest_figure(overall, metric, colours)
    community = [row for row in evaluation["rows"] if row["model"] == "community"]
    figures["groups"] = forest_figure(community, metric, colours, show_counts=True)
    return {**figures, **performance_figures(results.get("performance"))}


def render_lab_report(report: Mapping[str, Any], assets: PageAssets | None = None) -> str:
    """Render the report page of a lab experiment as one HTML document.

    Args:
        report: Report from :func:`abaton.report.run_report.make_lab_report`.
        assets: Style and scripts; embedded by default.
    """
    progress, partition = report["results"]["training"], report["cohort"]["partition"]
    figures: dict[str, Figure] = {}
    if progress["main_metric"] is not None:
        figures |= progress_figures({"community": progress["points"]}, progress["main_metric"])
    if partition is not None:
        groups = {learner["learner"]: learner["group"] for learner in partition["learners"]}
        partition_plot = partition_figure(partition["learners"], partition["classes"], groups=groups)
        column_names = ("learner", "group", "examples", "classes")
        rows = [tuple(learner[name] for name in column_names) for learner in partition["learners"]]
        figures["partition"] = _from_plotly(partition_plot, {"columns": column_names, "rows": rows})
    figures |= report.get("figures", {})
    return page("lab.html", figures=figures, assets=assets, report=report, tables=run_tables, titles=TITLES)


def render_comparison(comparison: Mapping[str, Any]) -> str:
    """Render the comparison page of runs as one HTML document.

    Args:
        comparison: Comparison from :func:`abaton.report.run_comparison.compare_runs`.
    """
    column_names, rows = result_rows(comparison)
    return page(
        "comparison.html",
        figures=comparison_figures(comparison),
        comparison=comparison,
        runs=run_rows(comparison),
        differences=difference_rows(comparison),
        results=([metric_label(name) for name in column_names], rows),
        reached=target_rows(comparison),
        digests=digest_rows(comparison),
    )


def render_privacy_report(report: Mapping[str, Any]) -> str:
    """Render a privacy report as a page without scripts, for reading, printing and signing.

    Args:
        report: Report from :func:`abaton.report.privacy_report.make_privacy_report`.
    """
    return page("privacy.html", report=report, tables=privacy_report)


def render_figures(title: str, figures: Sequence[Any]) -> str:
    """Render a page of Plotly figures with embedded scripts."""
    return page(
        "figures.html",
        figures={f"f{i}": _from_plotly(figure) for i, figure in enumerate(figures)},
        title=title,
    )


def _from_plotly(figure: Any, table: Mapping[str, Any] | None = None) -> Figure:
    """Return a Plotly figure of a report page as JSON values, with its title separate, without its template."""
    content = json.loads(figure.to_json())
    layout = {"margin": {"l": 8, "r": 12, "t": 40, "b": 8}, **content["layout"]}
    del layout["template"]
    heading = layout.pop("title", {}).get("text", "")
    return {"data": content["data"], "layout": layout, "heading": heading, "table": table}
