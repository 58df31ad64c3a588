"""Runs side by side as plain data: what was set differently, the results, and when each was as good as the others.

Every function is pure: the reports of the runs in, a comparison out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.errors import SettingsError
from abaton.report.run_tables import Row, Table, differing, setting_rows, settings_of, totals
from abaton.report.training_curves import COURSE_AXES, Figure, course_figures, less_is_better

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
    labels = [letter(i) for i in range(len(reports))]
    return {
        "format": FORMAT,
        "task": _task(reports[0]),
        "measure": measure,
        "runs": [
            {"label": label, "run": each["run"], "created": each["created"], "status": each["status"]}
            for label, each in zip(labels, reports, strict=True)
        ],
        "differences": differing(
            {each["run"]: settings_of(each["method"], each["reproduce"]) for each in reports}
        ),
        "remarks": _remarks(reports),
        "target": target,
        "results": [_result(each, measure, target) for each in reports],
        "curves": {
            each["run"]: [
                {**{axis: point[axis] for axis in COURSE_AXES}, measure: point.get(measure)}
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
    summed = totals(results["course"]["learners"])
    return {
        "run": report["run"],
        "measure": points[-1][measure],
        "interval": _interval(report, measure),
        "best": (max if sign > 0 else min)(point[measure] for point in points),
        "versions": results["version"],
        "seconds": results["seconds"],
        **{key: summed.get(key, 0) for key in ("updates", "bytes", "failed")},
        "reached": {axis: reached[axis] for axis in COURSE_AXES},
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


def letter(place: int) -> str:
    """By what a run is called beside others: A, B, ... Z, AA; short enough for a column.

    >>> letter(0), letter(27)
    ('A', 'AB')
    """
    return (letter(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def comparison_figures(made: Mapping[str, Any]) -> dict[str, Any]:
    """The measure of all runs against rounds, time and bytes."""
    labels = _labels(made)
    curves = {f"{labels[run]}: {short(run)}": points for run, points in made["curves"].items()}
    return {axis: lettered(each) for axis, each in course_figures(curves, made["measure"]).items()}


def lettered(figure: Figure) -> Figure:
    """A figure of several runs in whose table the letter alone says which run it is, so that it fits a phone."""
    table = figure["table"]
    return figure | {"table": table | {"rows": [(row[0].split(":")[0], *row[1:]) for row in table["rows"]]}}


def run_rows(made: Mapping[str, Any]) -> Table:
    """Which run is which."""
    rows: list[Row] = [
        (each["label"], each["run"], each["created"][:19], each["status"]) for each in made["runs"]
    ]
    return ("letter", "run", "created", "status"), rows


def difference_rows(made: Mapping[str, Any]) -> Table:
    """The settings in which runs differ, a column for each run."""
    return ("setting", *_labels(made).values()), setting_rows(made["differences"], list(_labels(made)))


def result_rows(made: Mapping[str, Any]) -> Table:
    """The results, a line for each run."""
    labels = _labels(made)
    rows: list[Row] = [
        (labels[line["run"]], _with_interval(line), line["best"], line["versions"], line["seconds"],
         line["updates"], line["failed"], line["bytes"])
        for line in made["results"]
    ]  # fmt: skip
    return ("letter", made["measure"], "best", "versions", "seconds", "updates", "failed", "bytes"), rows


def reached_rows(made: Mapping[str, Any]) -> Table:
    """When each run was first as good as the worst run at its best."""
    labels = _labels(made)
    rows: list[Row] = [
        (labels[line["run"]], line["reached"]["version"], line["reached"]["at"], line["reached"]["bytes"])
        for line in made["results"]
    ]
    return ("letter", "version", "seconds", "bytes"), rows


def fingerprint_rows(made: Mapping[str, Any]) -> Table:
    """By what each run is known to be the same when it is made again."""
    rows: list[Row] = [
        (run, about["engine"], str(about["seed"]), about["layout"][:16], about["model"])
        for run, about in made["reproduce"].items()
    ]
    return ("run", "engine", "seed", "layout", "community model"), rows


def _labels(made: Mapping[str, Any]) -> dict[str, str]:
    return {each["run"]: each["label"] for each in made["runs"]}


def short(name: str) -> str:
    """A name that fits into a legend: its middle is left out, since names differ at their ends.

    >>> short("heart-failure-four-hospitals-20261117-121120-dde4")
    'heart-failu…121120-dde4'
    """
    return name if len(name) <= 24 else f"{name[:11]}…{name[-11:]}"


def _with_interval(line: Mapping[str, Any]) -> str:
    told = f"{line['measure']:.4f}"
    if line["interval"] is None:
        return told
    low, high = line["interval"]
    return f"{told} ({low:.3f} to {high:.3f})"
