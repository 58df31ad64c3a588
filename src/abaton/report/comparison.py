"""Runs side by side as plain data: what was set differently, what came out, and when each was as good as the others.

Every function is pure: the reports of the runs in, a comparison out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.errors import SettingsError
from abaton.report.course import AXES, less_is_better
from abaton.report.lab_run import flat

FORMAT = "abaton.comparison/1"


def comparison(reports: Sequence[Mapping[str, Any]], measure: str | None = None) -> dict[str, Any]:
    """Compare runs of the same task, ready for JSON; the page and the table are made from exactly this.

    Args:
        reports: What :func:`abaton.report.report_of` made of each run.
        measure: By what they are compared; the main measure of the first if not given.

    Raises:
        SettingsError: The runs cannot be compared, or none of them has the measure.
    """
    _check(reports)
    measure = _measure(reports, measure)
    target = _target(reports, measure)
    labels = [_label(i) for i in range(len(reports))]
    return {
        "format": FORMAT,
        "task": _task(reports[0]),
        "measure": measure,
        "runs": [
            {"label": label, "run": each["run"], "created": each["created"], "status": each["status"]}
            for label, each in zip(labels, reports, strict=True)
        ],
        "differences": differences(reports),
        "remarks": _remarks(reports),
        "target": target,
        "results": [_result(each, measure, target) for each in reports],
        "curves": {
            each["run"]: [
                {**{axis: point[axis] for axis in AXES}, measure: point.get(measure)}
                for point in each["results"]["course"]["points"]
            ]
            for each in reports
        },
        "reproduce": {
            each["run"]: {
                key: each["reproduce"].get(key) for key in ("versions", "engine", "seed", "layout", "model")
            }
            for each in reports
        },
    }


def differences(reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings in which runs differ: what is the same for all is left out.

    >>> one = {"run": "a", "kind": "lab", "method": {"seed": 1, "rate": 0.1}, "reproduce": {"engine": "virtual"}}
    >>> differences([one, {**one, "run": "b", "method": {"seed": 2, "rate": 0.1}}])
    [{'setting': 'seed', 'values': {'a': 1, 'b': 2}}]
    """
    settings = [_settings(each) for each in reports]
    names = dict.fromkeys(name for mine in settings for name in mine)
    made = []
    for name in names:
        values = [mine.get(name) for mine in settings]
        if any(value != values[0] for value in values[1:]):
            runs = (each["run"] for each in reports)
            made.append({"setting": name, "values": dict(zip(runs, values, strict=True))})
    return made


def _settings(report: Mapping[str, Any]) -> dict[str, Any]:
    about = report["reproduce"]
    made = flat(report["method"]) | {"engine": about.get("engine")}
    made |= {f"version of {name}": value for name, value in about.get("versions", {}).items()}
    if report["kind"] == "study":
        made |= {"seed": about["seed"], "study document": about["study_hash"][:12]}
        made |= {f"table of {site}": digest[:12] for site, digest in about["tables"].items()}
    elif about.get("partition"):
        made["partition"] = about["partition"][:12]
    return made


def _task(report: Mapping[str, Any]) -> dict[str, str]:
    """What a run was to learn: runs are comparable if and only if this is the same."""
    if report["kind"] == "study":
        about = report["study"]
        return {
            "kind": "study",
            "study": str(about["id"]),
            "outcome": str(about["outcome"]),
            "task": str(report["method"]["task"]),
        }
    recipe = report["reproduce"]["recipe"]
    made = {"kind": "lab", "experiment": str(recipe["name"])}
    if "task" in recipe["settings"]:
        made["data"] = str(recipe["settings"]["task"]["data"])
    return made


def _check(reports: Sequence[Mapping[str, Any]]) -> None:
    names = [each["run"] for each in reports]
    if len(names) < 2:
        raise SettingsError(
            "one run cannot be compared", where="compare", remedy="name at least two; see 'abaton runs'"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingsError(
            f"run '{twice}' is named twice", where="compare", remedy="name each run once; see 'abaton runs'"
        )
    first = _task(reports[0])
    for each in reports[1:]:
        task = _task(each)
        for key in dict.fromkeys((*first, *task)):
            if first.get(key) != task.get(key):
                raise SettingsError(
                    f"run '{names[0]}' and run '{each['run']}' cannot be compared: {key} is "
                    f"'{first.get(key, 'none')}' in one and '{task.get(key, 'none')}' in the other",
                    where="compare",
                    remedy="choose runs that learn the same",
                )


def _measure(reports: Sequence[Mapping[str, Any]], asked: str | None) -> str:
    courses = [each["results"]["course"] for each in reports]
    shared = [name for name in courses[0]["measures"] if all(name in went["measures"] for went in courses)]
    if asked is None and courses[0]["main"] in shared:
        return str(courses[0]["main"])
    if asked in shared:
        return str(asked)
    what = "the runs share no measure" if asked is None else f"not all of the runs have the measure '{asked}'"
    raise SettingsError(
        what,
        where="compare",
        remedy=f"they share {', '.join(shared)}" if shared else "choose runs that were judged alike",
    )


def _target(reports: Sequence[Mapping[str, Any]], measure: str) -> float:
    """What every run has reached at some time: the best value of the one that is worst."""
    best, worst = (min, max) if less_is_better(measure) else (max, min)
    return float(worst(best(_values(each, measure)) for each in reports))


def _values(report: Mapping[str, Any], measure: str) -> list[float]:
    points = report["results"]["course"]["points"]
    return [point[measure] for point in points if point.get(measure) is not None]


def _result(report: Mapping[str, Any], measure: str, target: float) -> dict[str, Any]:
    results = report["results"]
    points = [point for point in results["course"]["points"] if point.get(measure) is not None]
    sign = -1 if less_is_better(measure) else 1
    reached = next(point for point in points if sign * point[measure] >= sign * target)
    lines = results["course"]["learners"]
    return {
        "run": report["run"],
        "measure": points[-1][measure],
        "interval": _interval(report, measure),
        "best": (max if sign > 0 else min)(point[measure] for point in points),
        "versions": results["version"],
        "seconds": results["seconds"],
        "updates": sum(line["updates"] for line in lines),
        "bytes": sum(line["bytes"] for line in lines),
        "failed": sum(line["failed"] for line in lines),
        "reached": {axis: reached[axis] for axis in AXES},
    }


def _interval(report: Mapping[str, Any], measure: str) -> list[float] | None:
    """The interval of a study's community model over the subjects that nobody trained on."""
    for line in report["results"].get("evaluation", {}).get("lines", ()):
        if line["model"] == "community" and line["of"] == "all" and line["measures"]:
            found = line["measures"].get(measure)
            if found and found["low"] is not None:
                return [found["low"], found["high"]]
    return None


def _remarks(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    made = []
    if reports[0]["kind"] == "study":
        tables = [each["reproduce"]["tables"] for each in reports]
        if any(each != tables[0] for each in tables):
            made.append(
                "The sites' tables differ: other records or consents, so results may differ for that."
            )
    else:
        dealt = [each["reproduce"]["partition"] for each in reports]
        if any(each != dealt[0] for each in dealt):
            made.append("The data were dealt differently, so results may differ for that.")
    clocks = {each["reproduce"]["engine"] for each in reports}
    if len(clocks) > 1:
        made.append("The engines' clocks differ: simulated seconds and real ones cannot be compared.")
    ended = [each["run"] for each in reports if each["status"] != "finished"]
    made += [f"Run {name} did not finish." for name in ended]
    return made


def _label(place: int) -> str:
    """A, B, ... Z, AA: short enough for a column.

    >>> _label(0), _label(27)
    ('A', 'AB')
    """
    return (_label(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)
