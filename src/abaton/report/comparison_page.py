"""Runs side by side as one page that opens anywhere: first what was set differently, then what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.report.course import course_figures
from abaton.report.html import document, figures_html, table, text

Row = tuple[object, ...]


def comparison_page(made: Mapping[str, Any]) -> str:
    """Turn a comparison into one HTML document with overlaid curves.

    Args:
        made: What :func:`abaton.report.comparison.comparison` made.
    """
    heads, rows = difference_rows(made)
    settings = table("Settings in which the runs differ", heads, rows) if rows else _SAME
    remarks = "".join(f"<li>{text(remark)}</li>" for remark in made["remarks"])
    sections = [
        ("Runs", table("Which run is which", *run_rows(made)) + (f"<ul>{remarks}</ul>" if remarks else "")),
        ("What was set differently", settings),
        ("Results", table(f"The last community model, by {made['measure']}", *result_rows(made))),
        ("Curves", figures_html(comparison_figures(made))),
        (
            f"When each reached {made['measure']} {made['target']:.4g}, which all did",
            table("First version that was as good", *reached_rows(made)),
        ),
        ("How to do it again", _again(made)),
    ]
    names = ", ".join(each["run"] for each in made["runs"])
    return document(f"{len(made['runs'])} runs compared", names, sections)


def comparison_figures(made: Mapping[str, Any]) -> dict[str, Any]:
    """The measure of all runs against rounds, time and bytes."""
    labels = _labels(made)
    curves = {f"{labels[run]}: {run}": points for run, points in made["curves"].items()}
    return course_figures(curves, made["measure"])


def run_rows(made: Mapping[str, Any]) -> tuple[Sequence[str], list[Row]]:
    """Which run is which."""
    rows: list[Row] = [
        (each["label"], each["run"], each["created"][:19], each["status"]) for each in made["runs"]
    ]
    return ("letter", "run", "created", "status"), rows


def difference_rows(made: Mapping[str, Any]) -> tuple[Sequence[str], list[Row]]:
    """The settings in which runs differ, a column for each run."""
    runs = [each["run"] for each in made["runs"]]
    rows: list[Row] = [
        (line["setting"], *(_said(line["values"][run]) for run in runs)) for line in made["differences"]
    ]
    return ("setting", *(each["label"] for each in made["runs"])), rows


def result_rows(made: Mapping[str, Any]) -> tuple[Sequence[str], list[Row]]:
    """What came out, a line for each run."""
    labels = _labels(made)
    rows: list[Row] = [
        (labels[line["run"]], _with_interval(line), line["best"], line["versions"], line["seconds"],
         line["updates"], line["failed"], line["bytes"])
        for line in made["results"]
    ]  # fmt: skip
    return ("letter", made["measure"], "best", "versions", "seconds", "updates", "failed", "bytes"), rows


def reached_rows(made: Mapping[str, Any]) -> tuple[Sequence[str], list[Row]]:
    """When each run was first as good as the worst run at its best."""
    labels = _labels(made)
    rows: list[Row] = [
        (labels[line["run"]], line["reached"]["version"], line["reached"]["at"], line["reached"]["bytes"])
        for line in made["results"]
    ]
    return ("letter", "version", "seconds", "bytes"), rows


def _labels(made: Mapping[str, Any]) -> dict[str, str]:
    return {each["run"]: each["label"] for each in made["runs"]}


def _said(value: object) -> str:
    return "–" if value is None else str(value)


def _with_interval(line: Mapping[str, Any]) -> str:
    told = f"{line['measure']:.4f}"
    if line["interval"] is None:
        return told
    low, high = line["interval"]
    return f"{told} ({low:.3f} to {high:.3f})"


def _again(made: Mapping[str, Any]) -> str:
    runs = " ".join(each["run"] for each in made["runs"])
    rows: list[Row] = [
        (run, about["engine"], str(about["seed"]), about["layout"][:16], about["model"])
        for run, about in made["reproduce"].items()
    ]
    heads = ("run", "engine", "seed", "layout", "community model")
    command = f"abaton compare {runs} --measure {made['measure']} -o compare.html"
    words = "Each run's own report says how to make the run again."
    return f"<p><code>{text(command)}</code></p><p>{words}</p>{table('Fingerprints', heads, rows)}"


_SAME = "<p>Nothing: the runs have the same settings, data and versions.</p>"
