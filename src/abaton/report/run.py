"""The report of a run as plain data: question, cohort, privacy, method, results, and how to do it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.errors import SettingsError
from abaton.report.adding import origin
from abaton.report.course import course
from abaton.report.findings import finding, site_gains
from abaton.store import ModelRow, RunRow

RUN_FORMAT = "abaton.run-report/1"

LIMITS = (
    "Counts of people below the smallest count are masked, and so is what would give them away.",
    "Updates of a model carry no rows, but they are made from people's data: without noise for privacy there is no "
    "guarantee against whoever studies them.",
    "Weighting by validation shows every site's model to the other sites.",
    "Sums that scale the columns are statistics about each site's people; the research centre sees them.",
    "Intervals say how far the result may be off by chance in who was tested; they say nothing about other hospitals.",
)
"""What the numbers do not promise, in plain words."""

BUDGET = (
    "The privacy budget covers the updates that sites sent. The sums that scale the columns, the numbers of people "
    "that sites tell, the counts by which the model is judged and what each site gains carry no noise."
)
"""What a privacy budget does not promise."""


def run_report(
    row: RunRow, events: Iterable[tuple[str, Mapping[str, Any]]], models: Sequence[ModelRow] = ()
) -> dict[str, Any]:
    """Everything there is to tell of a run of a study, ready for JSON; the page is made from exactly this.

    Args:
        row: The run.
        events: Its journal.
        models: The versions of its community model.

    Raises:
        SettingsError: The run is not one of a study, or has not ended.
    """
    recipe, result = row.recipe, row.result
    if "study" not in recipe or "told" not in recipe:
        raise SettingsError(
            f"run '{row.run}' is not one of a study", where="report", remedy="choose a run of 'abaton run'"
        )
    if not result or "evaluation" not in result:
        raise SettingsError(
            f"run '{row.run}' has not ended",
            where="report",
            remedy=f"bring it to its end with 'abaton resume {row.run}'",
        )
    level = recipe["method"]["evaluation"].get("confidence", 0.95)
    settings, told, budget = recipe["settings"], list(events), recipe["method"].get("privacy")
    return {
        "format": RUN_FORMAT,
        "kind": "study",
        "run": row.run,
        "created": row.created,
        "status": row.status,
        "study": recipe["study"],
        "cohort": {"sites": recipe["told"], "left_out": recipe["left_out"]},
        "privacy": {
            "anonymity": recipe["anonymity"],
            "cohorts": recipe["cohorts"],
            "changes": cohort_changes(told),
            "limits": [*LIMITS, *([BUDGET] if budget else [])],
            "spent": _spent(models) if budget else None,
        },
        "method": recipe["method"],
        "finding": finding(recipe["study"], result["evaluation"], level),
        "gains": site_gains(result["evaluation"]),
        "results": {
            **{
                key: result[key]
                for key in ("reason", "version", "seconds", "evaluation", "progress", "traffic")
            },
            **{key: result[key] for key in ("explanation", "personal") if key in result},
            "course": _course(course(models, told, result["progress"])),
        },
        "reproduce": {
            "software": f"abaton {recipe['versions']['abaton']}",
            **origin(row),
            "moment": settings["now"],
            "baselines": settings["baselines"],
            "document": settings.get("study", ""),
        },
    }


def _spent(models: Sequence[ModelRow]) -> float | None:
    """How much of the privacy budget the run has spent: epsilon as the last version tells it."""
    told = [each.metrics["epsilon"] for each in models if "epsilon" in each.metrics]
    return told[-1] if told else None


def _course(made: dict[str, Any]) -> dict[str, Any]:
    """How it went, without what would tell how many people a site has: their number may be masked elsewhere."""
    hidden = ("examples", "steps")
    return {
        **made,
        "learners": [{key: v for key, v in line.items() if key not in hidden} for line in made["learners"]],
    }


def cohort_changes(events: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """For each site the cohorts that its updates were trained on, one after the other.

    >>> cohort_changes([("Arrived", {"at": 1.0, "learner": "a", "task": "t1", "cohort": "x"}),
    ...                 ("Arrived", {"at": 2.0, "learner": "a", "task": "t2", "cohort": "x"})])
    [{'site': 'a', 'cohort': 'x', 'updates': 2, 'from': 1.0, 'to': 2.0, 'first': 't1', 'last': 't2'}]
    """
    made: list[dict[str, Any]] = []
    latest: dict[str, dict[str, Any]] = {}
    for kind, body in events:
        if kind != "Arrived" or not body.get("cohort"):
            continue
        site, task, at = body["learner"], body["task"], body["at"]
        line = latest.get(site)
        if line is None or line["cohort"] != body["cohort"]:
            line = {"site": site, "cohort": body["cohort"], "updates": 0, "from": at, "to": at, "first": task}
            latest[site] = line
            made.append(line)
        line |= {"updates": line["updates"] + 1, "to": at, "last": task}
    return sorted(made, key=lambda each: (each["site"], each["from"]))
