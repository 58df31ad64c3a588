"""Reports as pages that open anywhere: what a page says is the report's data, its form is a template's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from abaton.report import privacy_report, run_tables
from abaton.report.cohort_flow import cohort_flow
from abaton.report.evaluation_figures import calibration_figure, forest_figure, model_colours, roc_figure
from abaton.report.experiment_figures import partition_figure
from abaton.report.html_renderer import Assets, page
from abaton.report.interpretability_figures import explaining_figures
from abaton.report.learner_figures import TITLES
from abaton.report.run_comparison import (
    comparison_figures,
    difference_rows,
    fingerprint_rows,
    reached_rows,
    result_rows,
    run_rows,
)
from abaton.report.training_curves import Figure, course_figures, measure_name


def page_of(report: Mapping[str, Any], assets: Assets | None = None) -> str:
    """The report of a run as one HTML document; a server may link style and scripts instead of having them inside."""
    return (run_page if report["kind"] == "study" else lab_page)(report, assets)


def run_page(report: Mapping[str, Any], assets: Assets | None = None) -> str:
    """Turn the report of a study's run into one HTML document: the finding first, the machine's details last.

    Args:
        report: What :func:`abaton.report.run_report.run_report` made.
        assets: Style and scripts; carried inside if not given.
    """
    explained = explaining_figures(report["results"])
    told = [report["results"].get(part, {}) for part in ("explanation", "personal")]
    return page(
        "run.html",
        figures={**run_figures(report), **explained, **report.get("figures", {})},
        assets=assets,
        report={"finding": None, "gains": [], **report},
        explained=explained,
        quiet={site: why for each in told for site, why in each.get("left_out", {}).items()},
        flow=cohort_flow(report["cohort"]["sites"]),
        colours=colours_of(report["results"]["evaluation"]),
        tables=run_tables,
        titles=TITLES,
    )


def colours_of(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """The colour of every model of a run, those of the sites alone included."""
    own = [f"{site} alone" for site in (evaluation.get("gains") or {"sites": ()})["sites"]]
    return model_colours([*own, *(line["model"] for line in evaluation["lines"])])


def run_figures(report: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of a study's run, by what they show."""
    results, evaluation = report["results"], report["results"]["evaluation"]
    lines = [line for line in evaluation["lines"] if line["measures"]]
    curves = {name: each for name, each in evaluation["curves"].items() if each}
    measure = next((name for line in lines for name in line["measures"]), "auroc")
    colours = colours_of(evaluation)
    made: dict[str, Figure] = {}
    if results["course"]["points"]:
        made |= course_figures({"community": results["course"]["points"]}, measure)
    if roc := {name: tuple(each["roc"]) for name, each in curves.items() if "roc" in each}:
        made["roc"] = roc_figure(roc, colours)
    kept = {
        name: each["calibration"]
        for name, each in curves.items()
        if "calibration" in each and not name.endswith(" alone")
    }
    if kept:
        made["calibration"] = calibration_figure(kept, colours)
    every = [line | {"subset": line["model"]} for line in evaluation["lines"] if line["of"] == "all"]
    made["models"] = forest_figure(every, measure, colours)
    parts = [line for line in evaluation["lines"] if line["model"] == "community"]
    made["groups"] = forest_figure(parts, measure, colours, counted=True)
    return made


def lab_page(report: Mapping[str, Any], assets: Assets | None = None) -> str:
    """Turn the report of an experiment into one HTML document with its figures.

    Args:
        report: What :func:`abaton.report.run_report.lab_report` made.
        assets: Style and scripts; carried inside if not given.
    """
    went, partition = report["results"]["course"], report["cohort"]["partition"]
    figures: dict[str, Figure] = {}
    if went["main"] is not None:
        figures |= course_figures({"community": went["points"]}, went["main"])
    if partition is not None:
        groups = {line["learner"]: line["group"] for line in partition["learners"]}
        drawn = partition_figure(partition["learners"], partition["classes"], groups=groups)
        heads = ("learner", "group", "examples", "classes")
        rows = [tuple(line[head] for head in heads) for line in partition["learners"]]
        figures["partition"] = _plain(drawn, {"heads": heads, "rows": rows})
    figures |= report.get("figures", {})
    return page("lab.html", figures=figures, assets=assets, report=report, tables=run_tables, titles=TITLES)


def comparison_page(made: Mapping[str, Any]) -> str:
    """Turn a comparison into one HTML document with overlaid curves.

    Args:
        made: What :func:`abaton.report.run_comparison.comparison` made.
    """
    heads, lines = result_rows(made)
    return page(
        "comparison.html",
        figures=comparison_figures(made),
        made=made,
        runs=run_rows(made),
        differences=difference_rows(made),
        results=([measure_name(head) for head in heads], lines),
        reached=reached_rows(made),
        fingerprints=fingerprint_rows(made),
    )


def privacy_page(report: Mapping[str, Any]) -> str:
    """Turn a privacy report into a page a data-protection officer can read, print and sign: no script is on it.

    Args:
        report: What :func:`abaton.report.privacy_report.privacy_report` made.
    """
    return page("privacy.html", report=report, tables=privacy_report)


def figures_page(title: str, figures: Sequence[Any]) -> str:
    """Figures of Plotly's one under the other, on a page that carries its own script and needs no network."""
    return page(
        "figures.html", figures={f"f{i}": _plain(each) for i, each in enumerate(figures)}, title=title
    )


def _plain(figure: Any, table: Mapping[str, Any] | None = None) -> Figure:
    """A figure of Plotly's as plain data: its title apart, its colours left to the page."""
    made = json.loads(figure.to_json())
    layout = {"margin": {"l": 8, "r": 12, "t": 40, "b": 8}, **made["layout"]}
    del layout["template"]
    heading = layout.pop("title", {}).get("text", "")
    return {"data": made["data"], "layout": layout, "heading": heading, "table": table}
