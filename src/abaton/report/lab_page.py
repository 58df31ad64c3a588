"""The report of an experiment of the lab as one page that opens anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.report.course import course_figures
from abaton.report.html import document, figures_html, pairs, table, text
from abaton.report.learners import TITLES
from abaton.report.partition import partition_figure


def lab_page(report: Mapping[str, Any]) -> str:
    """Turn the report of an experiment into one HTML document with its figures.

    Args:
        report: What :func:`abaton.report.lab_run.lab_report` made.
    """
    title = f"{report['question']['title']}: report of a run"
    sections = [
        ("Question", f"<p>{text(report['question']['question'])}</p>"),
        ("Cohort", _cohort(report["cohort"])),
        ("Privacy", _privacy(report["privacy"])),
        ("Method", table("Settings", ("setting", "value"), _words(report["method"]))),
        ("Results", _results(report["results"]) + activity_html(report.get("figures", {}))),
        ("How to do it again", _again(report["reproduce"])),
    ]
    return document(title, f"Run {report['run']}, {report['status']}, of {report['created'][:19]}", sections)


def lab_figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an experiment, by what they show."""
    went = report["results"]["course"]
    if went["main"] is None:
        return {}
    return course_figures({report["run"]: went["points"]}, went["main"])


def learners_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """What each learner did; what the report does not tell of learners is left out."""
    heads = [head for head in _LEARNERS if not lines or head in lines[0]]
    rows = [tuple(line[head] if head != "group" else line[head] or "–" for head in heads) for line in lines]
    return table("What each learner did", tuple(_LEARNERS[head] for head in heads), rows)


def activity_html(figures: Mapping[str, Any]) -> str:
    """What learners did, drawn as the dashboard draws it, with the numbers as tables."""
    import plotly.graph_objects as go

    made = ""
    for name, drawn in figures.items():
        title, words = TITLES[name]
        numbers = drawn["table"]
        figure = go.Figure(drawn["data"], {"height": 340, **drawn["layout"]}).update_layout(
            template="plotly_white", margin={"l": 60, "r": 20, "t": 30, "b": 50}
        )
        made += f"<h3>{text(title)}</h3><p>{text(words)}</p>{figures_html({name: figure})}"
        made += f"<details><summary>The numbers of “{text(title)}”</summary>"
        made += table(title, numbers["heads"], numbers["rows"]) + "</details>"
    return made


def _words(method: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, "–" if value is None else str(value)) for name, value in method.items()]


def _cohort(cohort: Mapping[str, Any]) -> str:
    partition = cohort["partition"]
    if partition is None:
        rows = [(line["learner"], line["group"] or "–", line["examples"]) for line in cohort["learners"]]
        return table("Examples by learner", ("learner", "group", "examples to train on"), rows)
    heads = ("learner", "group", "examples", "classes")
    rows = [tuple(line[head] for head in heads) for line in partition["learners"]]
    groups = {line["learner"]: line["group"] for line in partition["learners"]}
    drawn = partition_figure(
        partition["learners"], partition["classes"], title=partition["form"], groups=groups
    )
    made = table(f"Who holds what: {partition['form']}", heads, rows)
    return made + figures_html({"partition": drawn})


def _privacy(privacy: Mapping[str, Any]) -> str:
    made = "<p>There was no budget of differential privacy.</p>"
    if privacy["budget"] is not None:
        names = {"budget": "epsilon that each learner may spend", "spent": "epsilon that was spent"}
        made = pairs("Budget of differential privacy", names, privacy)
    return made + "<ul>" + "".join(f"<li>{text(limit)}</li>" for limit in privacy["limits"]) + "</ul>"


def _results(results: Mapping[str, Any]) -> str:
    went = results["course"]
    made = pairs("How it ended", _ENDED, results)
    if results["measures"]:
        made += table(
            "The last community model, on examples that nobody trained on",
            ("measure", "value"),
            results["measures"].items(),
        )
        drawn = course_figures({"community": went["points"]}, went["main"])
        made += figures_html({f"course-{axis}": figure for axis, figure in drawn.items()})
    else:
        made += "<p>The versions of this run's community model were not judged.</p>"
    return made + learners_table(went["learners"])


def _again(about: Mapping[str, Any]) -> str:
    same = ", the one below" if about["engine"] == "virtual" else ""
    if about["program"] is None:
        made = "<p>The program that made the run makes it again, with the same data, under another name.</p>"
    else:
        made = f"<p>This program makes the run again, and prints the digest of its community model{same}.</p>"
        made += f"<pre><code>{text(about['program'])}</code></pre>"
    made += pairs("Seeds and fingerprints", _AGAIN, {**about, "seed": str(about["seed"])})
    return made + versions_table(about["versions"])


def versions_table(versions: Mapping[str, str]) -> str:
    """The versions of what a run's bits may depend on; nothing for runs that did not keep them."""
    return table("Versions", ("software", "version"), versions.items()) if versions else ""


_LEARNERS = {
    "learner": "learner",
    "group": "group",
    "examples": "examples",
    "updates": "updates",
    "steps": "steps",
    "bytes": "bytes",
    "scored": "models scored",
    "failed": "tasks failed",
    "last": "last heard, s",
}
_ENDED = {
    "reason": "why",
    "version": "versions of the community model",
    "seconds": "seconds by the run's clock",
    "updates": "updates",
    "bytes_up": "bytes that learners sent",
}
_AGAIN = {
    "engine": "engine",
    "seed": "seed",
    "partition": "partition",
    "layout": "layout of the model",
    "model": "community model",
}
