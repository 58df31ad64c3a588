"""The report of an experiment of the lab as plain data, in the same parts as that of a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.errors import SettingsError
from abaton.report.adding import flat, origin
from abaton.report.course import Event, course
from abaton.store import ModelRow, RunRow

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
