"""The report of a run as one page that opens anywhere: the script inside draws the figures, nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from abaton.report.clinical import calibration_figure, forest_figure, roc_figure
from abaton.report.course import AXES, course_figures
from abaton.report.html import document, figures_html, pairs, table, text
from abaton.report.lab_page import activity_html, learners_table, versions_table


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A number with its interval, as figures take it."""

    value: float
    low: float
    high: float


def run_page(report: Mapping[str, Any]) -> str:
    """Turn the report of a run into one HTML document with its figures.

    Args:
        report: What :func:`abaton.report.run.run_report` made.
    """
    title = f"{report['study']['title']}: report of a run"
    figures = run_figures(report)
    sections = [
        ("Question", pairs("The study", _STUDY, report["study"])),
        ("Cohort", _cohort(report["cohort"])),
        ("Privacy", _privacy(report)),
        ("Method", _method(report["method"])),
        ("Results", _results(report, figures)),
        ("How to do it again", _again(report)),
    ]
    return document(
        title, f"Run {report['run']}, {report['status']}, {report['reproduce']['software']}", sections
    )


def run_figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a run, by what they show."""
    results = report["results"]
    evaluation = results["evaluation"]
    lines = [_line(line) for line in evaluation["lines"] if line["measures"]]
    curves = {name: each for name, each in evaluation["curves"].items() if each}
    measure = next((name for line in lines for name in line["measures"]), "auroc")
    made: dict[str, Any] = {}
    if results["course"]["points"]:
        made |= course_figures({"community": results["course"]["points"]}, measure)
    if roc := {name: (each["roc"][0], each["roc"][1]) for name, each in curves.items() if "roc" in each}:
        made["ROC"] = roc_figure(roc, title="ROC curves, subjects that nobody trained on")
    kept = {
        name: [(predicted, _Estimate(**share)) for predicted, share in each["calibration"]]
        for name, each in curves.items()
        if "calibration" in each and not name.endswith(" alone")
    }
    if kept:
        made["calibration"] = calibration_figure(kept, title="Calibration")
    made["models"] = forest_figure(
        [line | {"subset": line["model"]} for line in lines if line["of"] == "all"],
        measure,
        title=f"{measure} of all models, subjects of all sites",
    )
    parts = [line for line in lines if line["model"] == "community"]
    made["by site and group"] = forest_figure(
        parts, measure, title=f"{measure} of the community model, by site and group"
    )
    return made


def _line(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line with its estimates as figures take them; what cannot be told is left out."""
    told = {
        name: _Estimate(**values)
        for name, values in line["measures"].items()
        if all(value is not None for value in values.values())
    }
    return {**line, "measures": told}


def _cohort(cohort: Mapping[str, Any]) -> str:
    stages: list[tuple[object, ...]] = []
    reasons: list[tuple[object, ...]] = []
    for site, told in cohort["sites"].items():
        funnel = {step["stage"]: step["subjects"] for step in told.get("funnel", ())}
        stages.append((site, *(funnel.get(stage, "–") for stage in _STAGES)))
        for step in told.get("funnel", ()):
            reasons += [(site, step["stage"], each["reason"], each["subjects"]) for each in step["left_out"]]
        reasons += [
            (site, "records set aside", each["reason"], each["count"]) for each in told.get("set_aside", ())
        ]
        reasons += [(site, "remark", each, "–") for each in told.get("remarks", ())]
    made = table("Subjects by site", ("site", *_STAGES), stages)
    if cohort["left_out"]:
        made += table("Sites that were left out", ("site", "why"), cohort["left_out"].items())
    heads = ("site", "where", "what", "how many")
    return made + (table("Who was left out, and what was found", heads, reasons) if reasons else "")


def _privacy(report: Mapping[str, Any]) -> str:
    privacy, study = report["privacy"], report["study"]
    made = pairs("How records were protected before anything was learned", _PROTECTION, study)
    if privacy["anonymity"] is not None:
        made += pairs("Anonymity over the union of all sites", _ANONYMITY, privacy["anonymity"])
    made += table("What people were told", ("statement", "words"), study["statements"].items())
    rows = [
        (each["site"], each["cohort"][:16], each["updates"], each["first"], each["last"])
        for each in privacy["changes"]
    ]
    heads = ("site", "cohort", "updates", "first task", "last task")
    made += table("Cohorts that were trained on; a new one means that somebody is out since", heads, rows)
    return made + "<ul>" + "".join(f"<li>{text(limit)}</li>" for limit in privacy["limits"]) + "</ul>"


def _method(method: Mapping[str, Any]) -> str:
    policy = {key: value for key, value in method["policy"].items() if value is not None}
    training = {key: value for key, value in method["training"].items() if value is not None}
    rows = [
        *((name, method[name]) for name in ("task", "network", "codec", "rounds", "finishing", "validation")),
        *((f"policy: {key}", value) for key, value in policy.items()),
        *((f"training: {key}", value) for key, value in training.items()),
        ("test share", method["evaluation"]["test"]),
    ]
    return table("How the community model was trained", ("what", "value"), [(n, str(v)) for n, v in rows])


def _results(report: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    results = report["results"]
    lines = results["evaluation"]["lines"]
    names = list(dict.fromkeys(name for line in lines for name in line["measures"] or ()))
    rows = [
        (line["model"], line["subset"], line["subjects"], *(_told(line["measures"], n) for n in names))
        for line in lines
        if line["of"] == "all" or line["model"] == "community"
    ]
    made = table("Measures with their intervals", ("model", "subjects of", "number", *names), rows)
    sent = [
        (name, each["updates"], each["bytes_up"], each["uncompressed"] / max(each["bytes_up"], 1))
        for name, each in results["traffic"].items()
    ]
    made += table("What was sent", ("site", "updates", "bytes", "times smaller than uncompressed"), sent)
    drawn = {name.replace(" ", "-"): figure for name, figure in figures.items()}
    course = {name: drawn.pop(name) for name in AXES if name in drawn}
    made += figures_html(course) + "".join(figures_html({name: each}) for name, each in drawn.items())
    return made + learners_table(results["course"]["learners"]) + activity_html(report.get("figures", {}))


def _told(measures: Mapping[str, Any] | None, name: str) -> str:
    if measures is None:
        return "too few"
    each = measures.get(name)
    if each is None or each["value"] is None:
        return "–"
    if each["low"] is None:
        return f"{each['value']:.3f}"
    return f"{each['value']:.3f} ({each['low']:.3f} to {each['high']:.3f})"


def _again(report: Mapping[str, Any]) -> str:
    about = report["reproduce"]
    flag = " --baselines" if about["baselines"] else ""
    command = (
        f"abaton run study.toml --sites SITE.toml … --engine {about['engine']} --seed {about['seed']}{flag}"
    )
    made = pairs("Versions, seeds and fingerprints", _AGAIN, {**about, "seed": str(about["seed"])})
    made += table("Tables by their fingerprints", ("site", "SHA-256"), about["tables"].items())
    made += versions_table(about["versions"])
    inside = f"<summary>The study document</summary><pre><code>{text(about['document'])}</code></pre>"
    return f"<p><code>{text(command)}</code></p><details>{inside}</details>{made}"


_STAGES = ("read", "eligible", "consented", "kept", "rows")
_STUDY = {
    "title": "title",
    "question": "question",
    "purpose": "purpose",
    "legal_basis": "legal basis",
    "centre": "research centre",
    "outcome": "what is foretold",
    "hash": "fingerprint of the document",
}
_PROTECTION = {
    "shares": "what leaves a site",
    "mechanism": "identities",
    "dates": "dates",
    "smallest_count": "smallest count that is told",
}
_ANONYMITY = {
    "k": "everybody hides among at least",
    "columns": "quasi-identifiers",
    "levels": "level of each (0 is the value itself)",
    "records": "subjects of all sites",
    "left_out": "subjects left out for it",
    "loss": "loss",
}
_AGAIN = {
    "software": "software",
    "engine": "engine",
    "seed": "seed",
    "moment": "moment of the consents",
    "study_hash": "study document",
    "layout": "layout of the model",
    "model": "community model",
}
