"""Report of a study run or a lab experiment as JSON values: question, cohort, privacy, method, results, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.errors import SettingsError
from abaton.report.cohort_flow import complete_cohorts
from abaton.report.findings import local_benefits, main_finding
from abaton.report.learner_figures import activity_figures
from abaton.report.run_tables import method_settings, run_origin
from abaton.report.training_curves import AXES, Event, training_progress
from abaton.store import ModelRow, RunRow, VisibleActivity

RUN_FORMAT = "abaton.run-report/1"

LIMITATIONS = (
    "Counts of subjects below the minimum cell count are suppressed, with complementary suppression.",
    "Model updates contain no rows, but are computed from subjects' data: without differential privacy there is no "
    "guarantee against inference from updates.",
    "Validation weighting discloses every site's model to the other sites.",
    "The sums for scaling are statistics of each site's subjects; the research centre receives them.",
    "Confidence intervals cover the sampling of test subjects; they do not extend to other hospitals.",
    "A person with records at two sites counts at both: pseudonyms are per site, so duplicates cannot be linked.",
)
"""Limitations of the numbers."""

_OPTIONAL_RESULTS = (
    "interpretability",
    "personal_models",
    "cohort_description",
    "performance",
    "internal_external_validation",
)

BUDGET_LIMITATION = (
    "The privacy budget covers the updates that sites sent. The sums for scaling, the released counts of subjects, the "
    "evaluation counts and the local benefit of each site contain no noise."
)
"""Limitation of a privacy budget."""


def make_run_report(
    row: RunRow, events: Iterable[tuple[str, Mapping[str, Any]]], models: Sequence[ModelRow] = ()
) -> dict[str, Any]:
    """Return the report of a study run as JSON values, the source of its page.

    Args:
        row: The run.
        events: Its journal.
        models: The versions of its community model.

    Raises:
        SettingsError: The run is not a study run, or is not finished.
    """
    recipe, result = row.recipe, row.result
    if "study" not in recipe or "cohort_reports" not in recipe:
        raise SettingsError(
            f"run '{row.run}' is not a study run", where="report", remedy="choose a run of 'abaton run'"
        )
    if not result or "evaluation" not in result:
        raise SettingsError(
            f"run '{row.run}' is not finished",
            where="report",
            remedy=f"resume it with 'abaton resume {row.run}'",
        )
    confidence_level = recipe["method"]["evaluation"].get("confidence_level", 0.95)
    settings, journal, budget = recipe["settings"], list(events), recipe["method"].get("privacy")
    return {
        "format": RUN_FORMAT,
        "kind": "study",
        "run": row.run,
        "created": row.created,
        "status": row.status,
        "study": recipe["study"],
        "cohort": {
            "sites": complete_cohorts(recipe["cohort_reports"], result),
            "excluded_sites": recipe["excluded_sites"],
        },
        "privacy": {
            "anonymity": recipe["anonymity"],
            "cohorts": recipe["cohorts"],
            "changes": cohort_changes(journal),
            "limitations": [*LIMITATIONS, *([BUDGET_LIMITATION] if budget else [])],
            "epsilon_spent": _spent_epsilon(models) if budget else None,
        },
        "method": recipe["method"],
        "finding": main_finding(recipe["study"], result["evaluation"], confidence_level),
        "local_benefit": local_benefits(result["evaluation"]),
        "results": {
            **{
                key: result[key]
                for key in ("reason", "version", "seconds", "evaluation", "progress", "traffic")
            },
            "robustness": _robustness(result),
            **{key: result[key] for key in _OPTIONAL_RESULTS if key in result},
            "training": _visible_progress(training_progress(models, journal, result["progress"])),
        },
        "provenance": {
            "software": f"abaton {recipe['software_versions']['abaton']}",
            **run_origin(row),
            "now": settings["now"],
            "baselines": settings["baselines"],
            "document": settings.get("study", ""),
        },
    }


def _robustness(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the robustness setting of the run's report, and what it altered; no counts if nothing is capped."""
    counts = ("clipped_updates", "capped_updates", "capped_evaluations")
    setting = result.get("robustness", "none")
    return {"setting": setting, **({key: result[key] for key in counts} if setting == "capped" else {})}


def _spent_epsilon(models: Sequence[ModelRow]) -> float | None:
    """Return the privacy budget in the run's report that was spent: epsilon of the last version."""
    spent = [model.metrics["epsilon"] for model in models if "epsilon" in model.metrics]
    return spent[-1] if spent else None


def _visible_progress(progress: dict[str, Any]) -> dict[str, Any]:
    """Return the run report's training progress without fields that reveal a site's number of subjects."""
    suppressed = ("examples", "steps")
    return {
        **progress,
        "learners": [
            {key: value for key, value in row.items() if key not in suppressed}
            for row in progress["learners"]
        ],
    }


def cohort_changes(events: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return for each site of a run report the cohorts of its updates, in order.

    >>> cohort_changes([("update_received", {"timestamp": 1.0, "learner": "a", "task": "t1", "cohort": "x"}),
    ...                 ("update_received", {"timestamp": 2.0, "learner": "a", "task": "t2", "cohort": "x"})])
    [{'site': 'a', 'cohort': 'x', 'updates': 2, 'from': 1.0, 'to': 2.0, 'first': 't1', 'last': 't2'}]
    """
    rows: list[dict[str, Any]] = []
    latest: dict[str, dict[str, Any]] = {}
    for event_type, body in events:
        if event_type != "update_received" or not body.get("cohort"):
            continue
        site, task, timestamp = body["learner"], body["task"], body["timestamp"]
        row = latest.get(site)
        if row is None or row["cohort"] != body["cohort"]:
            row = {
                "site": site,
                "cohort": body["cohort"],
                "updates": 0,
                "from": timestamp,
                "to": timestamp,
                "first": task,
            }
            latest[site] = row
            rows.append(row)
        row |= {"updates": row["updates"] + 1, "to": timestamp, "last": task}
    return sorted(rows, key=lambda change: (change["site"], change["from"]))


LAB_FORMAT = "abaton.lab-report/1"

SIMULATED_TIME = (
    "Times are simulated: they are those of the machine profiles in the recipe, not of this machine."
)
REAL_TIME = "Times are wall-clock times: in another run, times and the order of updates may differ."
ONE_SEED = "A run has one seed. Differences between single runs may be random: repeat with other seeds."
"""Limitations of the numbers."""


def make_lab_report(row: RunRow, models: Sequence[ModelRow], events: Iterable[Event]) -> dict[str, Any]:
    """Return the report of a lab experiment as JSON values, the source of its page.

    Args:
        row: The run.
        models: The versions of its community model.
        events: Its journal.

    Raises:
        SettingsError: The run is not finished.
    """
    recipe, result = row.recipe, row.result
    if not result:
        raise SettingsError(
            f"run '{row.run}' is not finished",
            where="report",
            remedy=f"resume it with run('{row.run}') in its program"
            if recipe["name"] == "python"
            else f"resume it with 'abaton resume {row.run}'",
        )
    settings = recipe["settings"]
    progress = training_progress(models, events, result.get("progress", ()))
    spent = [model.metrics["epsilon"] for model in models if "epsilon" in model.metrics]
    last = progress["points"][-1] if progress["points"] else {}
    return {
        "format": LAB_FORMAT,
        "kind": "lab",
        "run": row.run,
        "created": row.created,
        "status": row.status,
        "question": _question(recipe["name"], settings),
        "cohort": {"partition": recipe.get("partition"), "learners": progress["learners"]},
        "privacy": {
            "budget": settings.get("epsilon"),
            "epsilon_spent": spent[-1] if spent else None,
            "limitations": [SIMULATED_TIME if row.engine == "virtual" else REAL_TIME, ONE_SEED],
        },
        "method": method_settings(recipe),
        "results": {
            **{
                key: result[key]
                for key in ("reason", "version", "seconds", "updates", "bytes_up", "bytes_down")
            },
            "robustness": _robustness(result),
            "metrics": {name: last.get(name) for name in progress["metrics"]},
            "training": progress,
        },
        "provenance": {
            **run_origin(row),
            "recipe": {"name": recipe["name"], "settings": settings},
            "program": _program(recipe["name"], settings, row.engine),
        },
    }


def _question(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    if name == "strategy":
        task, environment = settings["task"], settings["environment"]
        return {
            "title": f"{settings['strategy']} on {task['data']}",
            "question": f"How accurate is the community model of {environment['learners']} learners with "
            f"{settings['strategy']}, when sizes are {environment['sizes']} and classes {environment['classes']}?",
        }
    sites = settings.get("sites")
    return {
        "title": f"A federation of {sites} sites" if sites else f"Experiment '{name}'",
        "question": "How accurate is the community model?",
    }


def _program(name: str, settings: Mapping[str, Any], engine: str) -> str | None:
    """Return the report's program that repeats the run with the same digest; `None` for user-defined runs."""
    if name != "strategy":
        return None
    engine_argument = "" if engine == "virtual" else f", engine={engine!r}"
    return (
        "from pathlib import Path\n"
        "from abaton.lab import build_from_recipe\n\n"
        f"recipe = {{'name': {name!r}, 'settings': {dict(settings)!r}}}\n"
        f'run = build_from_recipe(recipe).run(store=Path("repeated"){engine_argument})\n'
        'print(run.result["digest"])\n'
    )


def make_report(
    row: RunRow, models: Sequence[ModelRow], events: Iterable[Event], activity: VisibleActivity | None = None
) -> dict[str, Any]:
    """Return the report of any run, study or lab experiment, as JSON values.

    Args:
        row: The run.
        models: The versions of its community model.
        events: Its journal.
        activity: Activity of its learners; without it the report has no figures of learners.

    Raises:
        SettingsError: The run is not finished.
    """
    if "study" in row.recipe and "cohort_reports" in row.recipe:
        report = make_run_report(row, events, models)
    else:
        report = make_lab_report(row, models, events)
    time_label = AXES["timestamp"] if row.engine == "virtual" else AXES["wall_time"]
    return {
        **report,
        "figures": {} if activity is None else activity_figures(activity, time_label=time_label),
    }
