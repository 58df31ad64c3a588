"""Model card as data: intended use, training subjects, performance, calibration, limitations, provenance.

All entries come from the run and its study document; small counts are suppressed as in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from abaton.deployment.portable_model import to_portable_model
from abaton.errors import SettingsError
from abaton.federation import COMMUNITY, Run

FORMAT = "abaton.model-card/1"

Section = list[dict[str, Any]]


def make_model_card(run: Run) -> dict[str, Any]:
    """Return the model card of a study run as JSON values, the source of its Markdown and HTML.

    Raises:
        SettingsError: The run is not a study run, or is not finished.
    """
    report = run.report()
    if report["kind"] != "study":
        raise SettingsError(
            f"run '{run.name}' is not a study run", where="model card", remedy="choose a run of 'abaton run'"
        )
    study, model = report["study"], to_portable_model(run)
    rows = [row for row in report["results"]["evaluation"]["rows"] if row["model"] == COMMUNITY]
    return {
        "format": FORMAT,
        "run": run.name,
        "title": study["title"] or study["id"],
        "intended_use": {
            "question": study["question"],
            "purpose": study["purpose"],
            "centre": study["centre"],
            "outcome": study["outcome"],
            "not_for": "decisions about a patient without a clinician; patients who are not eligible for the study; "
            "units or columns other than those below",
        },
        "model": {
            "architecture": report["method"]["model"],
            "columns": list(model.columns),
            "classes": list(model.classes),
            "parameters": sum(layer.weight.size + layer.bias.size for layer in model.layers),
        },
        "cohort": [_cohort(site, cohort) for site, cohort in report["cohort"]["sites"].items()],
        "performance": [_performance(row) for row in rows],
        "calibration": _calibration(run),
        "events_per_parameter": (run.result.get("cohort_description") or {}).get("events_per_parameter"),
        "exact_performance": run.result.get("performance"),
        "internal_external_validation": run.result.get("internal_external_validation"),
        "permutation_importance": _permutation_importance(run),
        "personal_models": (run.result.get("personal_models") or {}).get("rows", []),
        "limitations": [
            *_performance_limitations(rows),
            *_local_benefit_limitations(run),
            *report["privacy"]["limitations"],
        ],
        "privacy": {
            "records": f"{study['mechanism']}d at the site; shared data: {', '.join(study['shared_data'])}",
            "min_cell_count": study["min_cell_count"],
            "anonymity": report["privacy"]["anonymity"],
        },
        "provenance": {
            "study": study["id"],
            "document": study["hash"],
            "model": report["provenance"]["model"],
            "tables": report["provenance"]["tables"],
            "created": report["created"],
            "software": report["provenance"]["versions"],
        },
    }


def _cohort(site: str, cohort: Mapping[str, Any]) -> dict[str, str]:
    stages = {stage["stage"]: stage["subjects"] for stage in cohort["attrition"]}
    return {"site": site, **stages}


def _performance(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": row["group"],
        "subjects": row["subjects"],
        "sites": row["sites"],
        "metrics": row["metrics"],
    }


def _performance_limitations(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a model card's limitations by performance: groups too small, AUROC intervals that include 0.5."""
    evaluated = list(rows)
    suppressed = [row["group"] for row in evaluated if row["metrics"] is None]
    uninformative = [
        row["group"]
        for row in evaluated
        if (auroc := (row["metrics"] or {}).get("auroc"))
        and auroc.get("low") is not None
        and auroc["low"] <= 0.5
    ]
    limitations = []
    if suppressed:
        limitations.append(f"Too few subjects to evaluate the model for: {', '.join(suppressed)}.")
    if uninformative:
        limitations.append(
            f"The confidence interval of the AUROC includes 0.5 for: {', '.join(uninformative)}."
        )
    return limitations


def _calibration(run: Run) -> dict[str, Any]:
    """Return the model card's calibration curve of the community model, and the recalibration line."""
    evaluation = run.result["evaluation"]
    points = evaluation["curves"].get(COMMUNITY, {}).get("calibration", [])
    return {
        "points": [{"predicted": predicted, "observed": proportion} for predicted, proportion in points],
        "recalibration": evaluation.get("recalibration", {}).get(COMMUNITY),
    }


def _permutation_importance(run: Run) -> list[dict[str, Any]]:
    """Return the model card's permutation importance of inputs over all sites, if the study requests it."""
    importance = (run.result.get("interpretability") or {}).get("importance", [])
    return [
        {"input": row["input"], "importance": {key: row[key] for key in ("value", "low", "high")}}
        for row in importance
        if row["grouping"] == "all"
    ]


def _local_benefit_limitations(run: Run) -> list[str]:
    """Return the model card's limitation that names sites at which the local-only model is better."""
    rows = (run.result.get("personal_models") or {}).get("rows", [])
    sites = [
        row["site"]
        for row in rows
        if row["model"] == COMMUNITY
        and row["gain_over_local_only"]["high"] is not None
        and row["gain_over_local_only"]["high"] < 0
    ]
    return (
        [f"The local-only model is better than the community model at: {', '.join(sites)}."] if sites else []
    )
