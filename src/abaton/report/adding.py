"""One set of functions for totals, differences and nested settings: reports, dashboard and command line use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
