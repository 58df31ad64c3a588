"""The model card as data: what a model is for, whom it was learned from, how good it is, and what it does not promise.

Everything in it comes from the run and its study document; small numbers stay masked as they are in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from abaton.errors import SettingsError
from abaton.federation import COMMUNITY, Run
from abaton.deployment.portable_model import usable

FORMAT = "abaton.model-card/1"

Section = list[dict[str, Any]]


def card_of(run: Run) -> dict[str, Any]:
    """The model card of a study's run, as plain data; the texts are made from exactly this.

    Raises:
        SettingsError: The run is no study's, or has not ended.
    """
    told = run.report()
    if told["kind"] != "study":
        raise SettingsError(
            f"run '{run.name}' is no study's", where="model card", remedy="choose a run of 'abaton run'"
        )
    study, made = told["study"], usable(run)
    lines = [line for line in told["results"]["evaluation"]["lines"] if line["model"] == COMMUNITY]
    return {
        "format": FORMAT,
        "run": run.name,
        "title": study["title"] or study["id"],
        "intended_use": {
            "question": study["question"],
            "purpose": study["purpose"],
            "asked_by": study["centre"],
            "learns": study["outcome"],
            "not_for": "deciding about a person without a clinician; people who the study would not have taken; "
            "other units or other columns than those below",
        },
        "model": {
            "network": told["method"]["network"],
            "columns": list(made.columns),
            "classes": list(made.classes),
            "parameters": sum(layer.weight.size + layer.bias.size for layer in made.layers),
        },
        "cohort": [_cohort(site, each) for site, each in told["cohort"]["sites"].items()],
        "performance": [_performance(line) for line in lines],
        "calibration": _calibration(run),
        "goes_by": _goes_by(run),
        "personal": (run.result.get("personal") or {}).get("lines", []),
        "limits": [*_weak(lines), *_worse(run), *told["privacy"]["limits"]],
        "privacy": {
            "records": f"{study['mechanism']}d where they live; what travels: {', '.join(study['shares'])}",
            "smallest_count": study["smallest_count"],
            "anonymity": told["privacy"]["anonymity"],
        },
        "provenance": {
            "study": study["id"],
            "document": study["hash"],
            "model": told["reproduce"]["model"],
            "tables": told["reproduce"]["tables"],
            "made": told["created"],
            "software": told["reproduce"]["versions"],
        },
    }


def _cohort(site: str, told: Mapping[str, Any]) -> dict[str, str]:
    stages = {each["stage"]: each["subjects"] for each in told["funnel"]}
    return {"site": site, **stages}


def _performance(line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": line["subset"],
        "people": line["subjects"],
        "sites": line["sites"],
        "measures": line["measures"],
    }


def _weak(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the performance itself warns of: groups too small to judge, intervals that reach chance."""
    given = list(lines)
    untold = [line["subset"] for line in given if line["measures"] is None]
    chance = [
        line["subset"]
        for line in given
        if (auroc := (line["measures"] or {}).get("auroc"))
        and auroc.get("low") is not None
        and auroc["low"] <= 0.5
    ]
    found = []
    if untold:
        found.append(f"Too few people to judge the model for: {', '.join(untold)}.")
    if chance:
        found.append(f"The interval of the AUROC reaches chance (.5) for: {', '.join(chance)}.")
    return found


def _calibration(run: Run) -> dict[str, Any]:
    """How predicted chances compare with what happened, and by which line they can be corrected."""
    evaluation = run.result["evaluation"]
    points = evaluation["curves"].get(COMMUNITY, {}).get("calibration", [])
    line = evaluation.get("recalibration", {}).get(COMMUNITY)
    return {
        "points": [{"predicted": predicted, "happened": share} for predicted, share in points],
        "correction": None if line is None else {"intercept": line[0], "slope": line[1]},
    }


def _goes_by(run: Run) -> list[dict[str, Any]]:
    """The inputs by how much worse the model is without them, if the study asked for it."""
    told = (run.result.get("explanation") or {}).get("importance", [])
    return [
        {"input": each["input"], "loses": {key: each[key] for key in ("value", "low", "high")}}
        for each in told
        if each["of"] == "all"
    ]


def _worse(run: Run) -> list[str]:
    """Where the community model is worse than the model that a site has of its own rows."""
    lines = (run.result.get("personal") or {}).get("lines", [])
    sites = [
        line["site"]
        for line in lines
        if line["model"] == COMMUNITY and line["gain"]["high"] is not None and line["gain"]["high"] < 0
    ]
    return (
        [f"The site's own model is better than the community model at: {', '.join(sites)}."] if sites else []
    )
