"""Tables of a report: column names and rows, totals and setting differences from the report's data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.report.evaluation_figures import format_estimate
from abaton.report.training_curves import metric_label
from abaton.store import RunRow

Row = tuple[object, ...]
Table = tuple[Sequence[str], list[Row]]
"""Column names and rows of a table; the first cell of a row names it."""


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings of a run by their dotted keys, for a table.

    >>> flatten({"seed": 3, "task": {"data": "digits"}, "bad": {}})
    {'seed': 3, 'task.data': 'digits'}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differing_settings(settings: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings that differ between runs, for a table.

    >>> differing_settings({"a": {"seed": 1, "rate": 0.1}, "b": {"seed": 2, "rate": 0.1}})
    [{'setting': 'seed', 'values': {'a': 1, 'b': 2}}]
    """
    names = dict.fromkeys(name for values in settings.values() for name in values)
    rows: list[dict[str, Any]] = [
        {"setting": name, "values": {run: values.get(name) for run, values in settings.items()}}
        for name in names
    ]
    return [row for row in rows if len({repr(value) for value in row["values"].values()}) > 1]


def setting_rows(differences: Iterable[Mapping[str, Any]], runs: Sequence[str]) -> list[Row]:
    """Return differing settings as rows of a table with one column per run."""
    return [
        (row["setting"], *("–" if (value := row["values"][run]) is None else str(value) for run in runs))
        for row in differences
    ]


def sum_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of each numeric field over rows of a run's table.

    >>> sum_rows([{"site": "kos", "bytes": 3}, {"site": "troy", "bytes": 4, "failed": 1}])
    {'bytes': 7, 'failed': 1}
    """
    sums: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                sums[name] = sums.get(name, 0) + value
    return sums


def compression_ratio(traffic: Mapping[str, int], direction: str) -> float:
    """Return the ratio of uncompressed to sent bytes for the traffic table; `direction` is 'up' or 'down'."""
    uncompressed = traffic["uncompressed" if direction == "up" else "uncompressed_down"]
    return uncompressed / max(traffic[f"bytes_{direction}"], 1)


def run_origin(row: RunRow) -> dict[str, Any]:
    """Return the provenance of a run for a table: software, engine, seed, digests."""
    recipe, study = row.recipe, row.recipe.get("study") or {}
    return {
        "versions": recipe.get("software_versions", {}),
        "engine": row.engine,
        "seed": recipe.get("settings", {}).get("seed"),
        "study_hash": study.get("hash"),
        "tables": recipe.get("tables", {}),
        "partition": (recipe.get("partition") or {}).get("digest"),
        "data": recipe.get("data"),
        "layout": row.layout,
        "model": (row.result or {}).get("digest"),
    }


def method_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a run for a table; a run built from Python objects has them in its manifest.

    >>> manifest = {"strategy": {"training.learning_rate": "0.1"}}
    >>> method_settings({"name": "python", "settings": {"sites": 2}, "manifest": manifest})
    {'sites': 2, 'training.learning_rate': '0.1'}
    """
    settings = flatten(recipe.get("settings", {}))
    if (
        recipe.get("name") == "strategy" or "method" in recipe
    ):  # the settings of experiments and studies are complete
        return settings
    manifest = recipe.get("manifest", {})
    strategy = {name: value for name, value in manifest.get("strategy", {}).items() if name != "type"}
    others = {
        name: manifest[name] for name in ("codec", "downlink", "model", "machines") if manifest.get(name)
    }
    if "initial_model" in manifest:
        others["initial model"] = manifest["initial_model"][:12]
    return settings | strategy | flatten(others)


def settings_of(method: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a run by their dotted keys for a table; digests are shortened.

    Args:
        method: Training settings, nested or not.
        origin: Result of :func:`run_origin`.
    """
    settings = flatten(method) | {"engine": origin.get("engine"), "seed": origin.get("seed")}
    settings |= {f"version of {name}": value for name, value in origin.get("versions", {}).items()}
    digests = {"study document": origin.get("study_hash"), "partition": origin.get("partition")}
    digests |= {f"table of {site}": digest for site, digest in origin.get("tables", {}).items()}
    settings |= {name: value[:12] for name, value in digests.items() if value}
    return {name: value for name, value in settings.items() if value is not None}


STAGES = ("consented", "retained", "rows", "anonymous", "in_force", "evaluated")
"""Stages of the attrition that sites release, in order."""

_COMPONENTS = ("scheduler", "robust_aggregation", "server_optimiser", "privacy", "personal_layers", "plugins")
_LEARNER_COLUMNS = {
    "learner": "learner",
    "group": "group",
    "examples": "examples",
    "updates": "updates",
    "steps": "steps",
    "bytes": "bytes up",
    "downlink_bytes": "bytes down",
    "evaluations": "evaluations",
    "failed": "tasks failed",
    "last_seen": "last event, s",
}


def stage_table(sites: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the run's table of the number of subjects of each site at every stage."""
    rows: list[Row] = []
    for site, released in sites.items():
        attrition = {step["stage"]: step["subjects"] for step in released.get("attrition", ())}
        rows.append((site, *(attrition.get(stage, "–") for stage in STAGES)))
    return ("site", *(stage.replace("_", " ") for stage in STAGES)), rows


def reason_table(sites: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the run's table of reasons for exclusions at each site, and remarks."""
    rows: list[Row] = []
    for site, released in sites.items():
        for step in released.get("attrition", ()):
            excluded = [(entry["reason"].replace("_", " "), entry["subjects"]) for entry in step["excluded"]]
            rows += [(site, step["stage"].replace("_", " "), *entry) for entry in excluded]
        rows += [(site, "remark", entry, "–") for entry in released.get("remarks", ())]
    return ("site", "stage", "reason", "count"), rows


def method_table(method: Mapping[str, Any]) -> Table:
    """Return the run's table of training settings of a study; unset ones are omitted."""
    components = {name: method[name] for name in _COMPONENTS if method.get(name)}
    components |= {f"weighting {i}": section for i, section in enumerate(method.get("weighting") or (), 1)}
    sections = {"strategy": method["strategy"], **components, "training": method["training"]}
    rows: list[Row] = [
        *((name, str(method[name])) for name in ("task", "model", "codec")),
        ("downlink", str(method["downlink"] or "full models")),
        *((name, str(method[name])) for name in ("rounds", "final_rounds", "validation_fraction")),
        *((f"{name}: {key}", str(value)) for name, section in sections.items() for key, value in section.items()
          if value is not None or name not in ("strategy", "training")),
        ("test fraction", str(method["evaluation"]["test_fraction"])),
    ]  # fmt: skip
    return ("setting", "value"), rows


def metric_table(evaluated: Sequence[Mapping[str, Any]]) -> Table:
    """Return the run's table of metrics of every model over all sites, the community model's by site and group."""
    names = list(dict.fromkeys(name for row in evaluated for name in row["metrics"] or ()))
    rows: list[Row] = [
        (row["model"], row["group"], row["subjects"], row["sites"],
         *(format_estimate(row["metrics"], n) for n in names))
        for row in evaluated
        if row["grouping"] == "all" or row["model"] == "community"
    ]  # fmt: skip
    return ("model", "group", "subjects", "sites", *map(metric_label, names)), rows


def traffic_table(traffic: Mapping[str, Mapping[str, int]], direction: str) -> Table:
    """Return the run's table of traffic in one direction (`up` or `down`) with compression ratios."""
    label = "updates" if direction == "up" else "models"
    rows: list[Row] = [
        (name, site[label], site[f"bytes_{direction}"], compression_ratio(site, direction))
        for name, site in traffic.items()
    ]
    return ("site", label, "bytes", "compression ratio"), rows


def learner_table(learners: Sequence[Mapping[str, Any]]) -> Table:
    """Return the run's table of the activity of each learner, without fields that the report suppresses."""
    fields = [field for field in _LEARNER_COLUMNS if not learners or field in learners[0]]
    rows: list[Row] = [
        tuple("–" if learner[field] == "" else learner[field] for field in fields) for learner in learners
    ]
    return [_LEARNER_COLUMNS[field] for field in fields], rows


def robustness_table(robustness: Mapping[str, Any]) -> Table:
    """Return the run's table of the robustness setting and of what it altered."""
    labels = {
        "setting": "robustness",
        "clipped_updates": "updates clipped to the norm bound",
        "capped_updates": "updates with capped examples",
        "capped_evaluations": "models with capped counts of an evaluator",
    }
    return ("fact", "value"), [(label, robustness[key]) for key, label in labels.items() if key in robustness]


def cohort_table(changes: Sequence[Mapping[str, Any]]) -> Table:
    """Return the run's table of the cohorts of each site's updates, in order."""
    rows: list[Row] = [
        (change["site"], change["cohort"][:16], change["updates"], change["first"], change["last"])
        for change in changes
    ]
    return ("site", "cohort", "updates", "first task", "last task"), rows
