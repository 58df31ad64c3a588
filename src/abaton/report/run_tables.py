"""What the tables of a report show: pure functions from the report's data to heads and rows.

One set of functions for totals, differences and nested settings: reports, dashboard and command line use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.report.evaluation_figures import told
from abaton.report.training_curves import measure_name
from abaton.store import RunRow

Row = tuple[object, ...]
Table = tuple[Sequence[str], list[Row]]
"""What a table shows: its heads, and its rows; the first cell of a row names it."""


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings with their whole names, so that they fit into a table of two columns.

    >>> flat({"seed": 3, "task": {"data": "digits"}, "bad": {}})
    {'seed': 3, 'task.data': 'digits'}
    """
    made: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            made |= flat(value, f"{before}{key}.")
        else:
            made[f"{before}{key}"] = value
    return made


def differing(settings: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings in which runs differ: what is the same for all is left out.

    >>> differing({"a": {"seed": 1, "rate": 0.1}, "b": {"seed": 2, "rate": 0.1}})
    [{'setting': 'seed', 'values': {'a': 1, 'b': 2}}]
    """
    names = dict.fromkeys(name for mine in settings.values() for name in mine)
    lines: list[dict[str, Any]] = [
        {"setting": name, "values": {run: mine.get(name) for run, mine in settings.items()}} for name in names
    ]
    return [line for line in lines if len({repr(value) for value in line["values"].values()}) > 1]


def setting_rows(differences: Iterable[Mapping[str, Any]], runs: Sequence[str]) -> list[Row]:
    """Settings in which runs differ as rows of a table, a column for each run."""
    return [
        (line["setting"], *("–" if (value := line["values"][run]) is None else str(value) for run in runs))
        for line in differences
    ]


def totals(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of whatever some lines count.

    >>> totals([{"site": "kos", "bytes": 3}, {"site": "troy", "bytes": 4, "failed": 1}])
    {'bytes': 7, 'failed': 1}
    """
    made: dict[str, Any] = {}
    for line in lines:
        for name, value in line.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                made[name] = made.get(name, 0) + value
    return made


def times_smaller(traffic: Mapping[str, int], way: str) -> float:
    """How many times smaller what was sent is than plain numbers would be; `way` is 'up' or 'down'."""
    plain = traffic["uncompressed" if way == "up" else "uncompressed_down"]
    return plain / max(traffic[f"bytes_{way}"], 1)


def origin(row: RunRow) -> dict[str, Any]:
    """What a run was made of besides its settings: software, engine, seed, fingerprints."""
    recipe, study = row.recipe, row.recipe.get("study") or {}
    return {
        "versions": recipe.get("versions", {}),
        "engine": row.engine,
        "seed": recipe.get("settings", {}).get("seed"),
        "study_hash": study.get("hash"),
        "tables": recipe.get("tables", {}),
        "partition": (recipe.get("partition") or {}).get("digest"),
        "layout": row.layout,
        "model": (row.result or {}).get("digest"),
    }


def settings_of(method: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was set for a run, by its whole name; fingerprints by their beginning.

    Args:
        method: How it was trained, nested or not.
        about: What :func:`origin` tells.
    """
    made = flat(method) | {"engine": about.get("engine"), "seed": about.get("seed")}
    made |= {f"version of {name}": value for name, value in about.get("versions", {}).items()}
    marks = {"study document": about.get("study_hash"), "partition": about.get("partition")}
    marks |= {f"table of {site}": digest for site, digest in about.get("tables", {}).items()}
    made |= {name: mark[:12] for name, mark in marks.items() if mark}
    return {name: value for name, value in made.items() if value is not None}


STAGES = ("read", "eligible", "consented", "kept", "rows")
"""The stages that people's records go through at a site, in order."""

_TABLES = ("pacing", "robust", "server", "privacy", "personal", "parts")
_LEARNERS = {
    "learner": "learner",
    "group": "group",
    "examples": "examples",
    "updates": "updates",
    "steps": "steps",
    "bytes": "bytes up",
    "down": "bytes down",
    "scored": "models scored",
    "failed": "tasks failed",
    "last": "last heard, s",
}


def stage_table(sites: Mapping[str, Mapping[str, Any]]) -> Table:
    """How many subjects each site has at every stage."""
    rows: list[Row] = []
    for site, said in sites.items():
        funnel = {step["stage"]: step["subjects"] for step in said.get("funnel", ())}
        rows.append((site, *(funnel.get(stage, "–") for stage in STAGES)))
    return ("site", *STAGES), rows


def reason_table(sites: Mapping[str, Mapping[str, Any]]) -> Table:
    """Who was left out at which site and why, and what was found in the records."""
    rows: list[Row] = []
    for site, said in sites.items():
        for step in said.get("funnel", ()):
            left = [(each["reason"].replace("_", " "), each["subjects"]) for each in step["left_out"]]
            rows += [(site, step["stage"], *each) for each in left]
        rows += [
            (site, "records set aside", each["reason"], each["count"]) for each in said.get("set_aside", ())
        ]
        rows += [(site, "remark", each, "–") for each in said.get("remarks", ())]
    return ("site", "where", "what", "how many"), rows


def method_table(method: Mapping[str, Any]) -> Table:
    """How a study's community model was trained; what was not set is left out."""
    named = {name: method[name] for name in _TABLES if method.get(name)}
    named |= {f"weighting {i}": part for i, part in enumerate(method.get("weighting") or (), 1)}
    known = {"policy": method["policy"], **named, "training": method["training"]}
    rows: list[Row] = [
        *((name, str(method[name])) for name in ("task", "network", "codec")),
        ("downlink", str(method["downlink"] or "versions as they are")),
        *((name, str(method[name])) for name in ("rounds", "finishing", "validation")),
        *((f"{name}: {key}", str(value)) for name, part in known.items() for key, value in part.items()
          if value is not None or name not in ("policy", "training")),
        ("test share", str(method["evaluation"]["test"])),
    ]  # fmt: skip
    return ("what", "value"), rows


def measure_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """All measures of every model over all sites, and of the community model by site and group."""
    names = list(dict.fromkeys(name for line in lines for name in line["measures"] or ()))
    rows: list[Row] = [
        (line["model"], line["subset"], line["subjects"], line["sites"],
         *(told(line["measures"], n) for n in names))
        for line in lines
        if line["of"] == "all" or line["model"] == "community"
    ]  # fmt: skip
    return ("model", "subjects of", "people", "sites", *map(measure_name, names)), rows


def traffic_table(traffic: Mapping[str, Mapping[str, int]], way: str) -> Table:
    """What crossed one way (`up` or `down`), and how much smaller it was than plain numbers."""
    what = "updates" if way == "up" else "models"
    rows: list[Row] = [
        (name, each[what], each[f"bytes_{way}"], times_smaller(each, way)) for name, each in traffic.items()
    ]
    return ("site", what, "bytes", "times smaller than uncompressed"), rows


def learner_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """What each learner did; what the report does not tell of learners is left out."""
    heads = [head for head in _LEARNERS if not lines or head in lines[0]]
    rows: list[Row] = [tuple("–" if line[head] == "" else line[head] for head in heads) for line in lines]
    return [_LEARNERS[head] for head in heads], rows


def cohort_table(changes: Sequence[Mapping[str, Any]]) -> Table:
    """The cohorts that each site's updates were trained on, one after the other."""
    rows: list[Row] = [
        (each["site"], each["cohort"][:16], each["updates"], each["first"], each["last"]) for each in changes
    ]
    return ("site", "cohort", "updates", "first task", "last task"), rows
