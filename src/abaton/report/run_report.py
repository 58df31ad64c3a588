"""The report of a run as plain data: question, cohort, privacy, method, results, and how to do it again.

The report of an experiment of the lab as plain data, in the same parts as that of a study.

The report of any run: of a study or of the lab, as plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.errors import SettingsError
from abaton.report.findings import finding, site_gains
from abaton.report.learner_figures import activity_figures
from abaton.report.run_tables import flat, origin
from abaton.report.training_curves import AXES, Event, course
from abaton.store import Activity, ModelRow, RunRow

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


LAB_FORMAT = "abaton.lab-report/1"

SIMULATED = (
    "Everything ran in one place under a simulated clock: times say how long it would have taken on the machines of "
    "the recipe, not how long it took here."
)
REAL = "Times are real ones, of the machines that it ran on: made again, they and the order of updates may differ."
ONE_SEED = (
    "One run is one seed. Differences between single runs may be chance: repeat with other seeds first."
)
"""What the numbers do not promise, in plain words."""


def lab_report(row: RunRow, models: Sequence[ModelRow], events: Iterable[Event]) -> dict[str, Any]:
    """Everything there is to tell of an experiment, ready for JSON; the page is made from exactly this.

    Args:
        row: The run.
        models: The versions of its community model.
        events: Its journal.

    Raises:
        SettingsError: The run has not ended.
    """
    recipe, result = row.recipe, row.result
    if not result:
        raise SettingsError(
            f"run '{row.run}' has not ended",
            where="report",
            remedy=f"bring it to its end with run('{row.run}') in its program"
            if recipe["name"] == "python"
            else f"bring it to its end with 'abaton resume {row.run}'",
        )
    settings = recipe["settings"]
    went = course(models, events, result.get("progress", ()))
    spent = [model.metrics["epsilon"] for model in models if "epsilon" in model.metrics]
    last = went["points"][-1] if went["points"] else {}
    return {
        "format": LAB_FORMAT,
        "kind": "lab",
        "run": row.run,
        "created": row.created,
        "status": row.status,
        "question": _question(recipe["name"], settings),
        "cohort": {"partition": recipe.get("partition"), "learners": went["learners"]},
        "privacy": {
            "budget": settings.get("epsilon"),
            "spent": spent[-1] if spent else None,
            "limits": [SIMULATED if row.engine == "virtual" else REAL, ONE_SEED],
        },
        "method": flat(settings),
        "results": {
            **{
                key: result[key]
                for key in ("reason", "version", "seconds", "updates", "bytes_up", "bytes_down")
            },
            "measures": {name: last.get(name) for name in went["measures"]},
            "course": went,
        },
        "reproduce": {
            **origin(row),
            "recipe": {"name": recipe["name"], "settings": settings},
            "program": _program(recipe["name"], settings, row.engine),
        },
    }


def _question(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    if name == "policy":
        task, world = settings["task"], settings["world"]
        return {
            "title": f"{settings['policy']} on {task['data']}",
            "question": f"How good does the community model of {world['learners']} learners become under "
            f"{settings['policy']}, when sizes are {world['sizes']} and classes {world['classes']}?",
        }
    sites = settings.get("sites")
    return {
        "title": f"A federation of {sites} sites" if sites else f"Experiment '{name}'",
        "question": "How good does the community model become?",
    }


def _program(name: str, settings: Mapping[str, Any], engine: str) -> str | None:
    """A program that makes the run again; under the simulated clock, to the same digest. None for one of your own."""
    if name != "policy":
        return None
    where = "" if engine == "virtual" else f", engine={engine!r}"
    return (
        "from pathlib import Path\n"
        "from abaton.lab import build\n\n"
        f"recipe = {{'name': {name!r}, 'settings': {dict(settings)!r}}}\n"
        f'run = build(recipe).run(store=Path("again"){where})\n'
        'print(run.result["digest"])\n'
    )


def report_of(
    row: RunRow, models: Sequence[ModelRow], events: Iterable[Event], did: Activity | None = None
) -> dict[str, Any]:
    """Everything there is to tell of a run, ready for JSON.

    Args:
        row: The run.
        models: The versions of its community model.
        events: Its journal.
        did: What its learners did, for the figures of it; without it there are none.

    Raises:
        SettingsError: The run has not ended.
    """
    if "study" in row.recipe and "told" in row.recipe:
        made = run_report(row, events, models)
    else:
        made = lab_report(row, models, events)
    words = AXES["at"] if row.engine == "virtual" else AXES["wall"]
    return {**made, "figures": {} if did is None else activity_figures(did, words=words)}
