"""What the tables of a report show: pure functions from the report's data to heads and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.report.adding import Row, Table, times_smaller
from abaton.report.evaluation_figures import told
from abaton.report.curves import measure_name

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
