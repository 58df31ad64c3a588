"""The dashboard's pages: what each of them shows; its form is a template's, and every value in it is escaped.

What a page's script draws, as JSON: figures and tables of one run, or one metric of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from jinja2 import Environment

from abaton import __version__
from abaton.dashboard.access import Right
from abaton.dashboard.middleware import Caller
from abaton.governance import Chain, StudyCensus
from abaton.report import (
    AXES,
    TITLES,
    Table,
    activity_figures,
    differing,
    letter,
    metric_figure,
    metric_names,
    origin,
    payload_figure,
    setting_rows,
    settings_of,
    short,
)
from abaton.report.cohort_flow import cohort_flow
from abaton.report.findings import finding, site_gains
from abaton.report.html_renderer import environment, size, style_marks
from abaton.report.pages import colours_of
from abaton.report.run_comparison import lettered
from abaton.report.run_tables import Row
from abaton.report.training_curves import measure_name
from abaton.store import (
    EventLine,
    Head,
    LearnerLine,
    RunLine,
    RunRow,
    Store,
    activity,
    codec_of,
    events_of,
    points,
    quartiles,
    tells_weights,
)

MOST_COMPARED = 8
_SMALL = ("weights", "staleness", "cycles", "payloads")
_PURPOSES = {"collect": "collecting", "disclose": "sending", "use": "training"}
_LOCAL = ("study", "sites", "now")  # settings of a study's run that are documents and paths


@dataclass(frozen=True, slots=True)
class Checked:
    """The last check of the audit chain: when, over how many entries, and where it was found wrong."""

    at: str
    length: int
    faults: tuple[tuple[int, str], ...]


@cache
def templates() -> Environment:
    """The dashboard's templates beside those that it shares with the reports."""
    made = environment("abaton.dashboard")
    made.filters |= {"shown": shown_metric, "quoted": _quoted}
    made.globals |= {"version": __version__, "plotly_marks": style_marks()}
    return made


def _quoted(name: str) -> str:
    return quote(name, safe="")


@dataclass(frozen=True, slots=True)
class Frame:
    """What every page has around it: where the pages are, and who looks."""

    base: str
    caller: Caller | None

    def page(self, template: str, *, here: str = "", **values: Any) -> str:
        """A whole page."""
        known = {"base": self.base, "viewer": self.caller, "here": here}
        return templates().get_template(template).render(**known, **values)

    def may(self, right: Right) -> bool:
        """Whether whoever looks may do more than that."""
        return self.caller is not None and self.caller.person.may(right)

    def place(self, run: str) -> str:
        """Where a run's page is."""
        return f"{self.base}/runs/{_quoted(run)}"


def shown_metric(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """The one number that stands for all: the area under the curve if there is one, else the first.

    >>> shown_metric({"loss": 0.4, "auroc": 0.8}), shown_metric({})
    (('auroc', 0.8), None)
    """
    if "auroc" in metrics:
        return "auroc", metrics["auroc"]
    return next(iter(metrics.items()), None)


def runs_page(frame: Frame, lines: Sequence[RunLine], total: int, after: int) -> str:
    """The list of runs."""
    return frame.page("runs.html", here="/", lines=lines, total=total, after=after, most=MOST_COMPARED)


def run_page(frame: Frame, row: RunRow, state: Head, notice: str = "") -> str:
    """One run: how far it has come, and everything that can be drawn of it."""
    study = row.recipe.get("study")
    title = study.get("title") if isinstance(study, Mapping) else None
    return frame.page(
        "watch.html",
        row=row,
        state=state,
        notice=notice,
        place=frame.place(row.run),
        title=title or row.recipe.get("name", ""),
        codec=codec_of(row.recipe),
        axes=[name for name in AXES if row.engine == "virtual" or name != "at"],
        titles=TITLES,
        small=[name for name in _SMALL if name != "weights" or tells_weights(row.recipe)],
        operates=frame.may(Right.OPERATE),
        **_found(row),
    )


def _found(row: RunRow) -> dict[str, Any]:
    """What a study's run found, what each site gains, the groups and the funnel: as the report says it."""
    evaluation = (row.result or {}).get("evaluation", {})
    lines = evaluation.get("lines", ())
    found = finding(row.recipe.get("study") or {}, evaluation)
    return {
        "found": found,
        "gains": site_gains(evaluation),
        "groups": [
            line for line in lines if line["model"] == "community" and line["of"] not in ("all", "site")
        ],
        "flow": cohort_flow(row.recipe.get("told", {})) if found else [],
        "colours": colours_of(evaluation) if lines else {},
        "has_report": "digest" in (row.result or {}),
    }


def log_page(
    frame: Frame, row: RunRow, lines: Sequence[EventLine], kinds: Mapping[str, int], asked: Mapping[str, Any]
) -> str:
    """The events of a run, with filters."""
    older = ""
    if len(lines) == asked["most"]:
        filters = [*(("kind", kind) for kind in asked["kinds"]), ("learner", asked["learner"])]
        older = urlencode([*filters, ("before", lines[-1].sequence)])
    shown: dict[str, Any] = {"events": event_table(lines), "kinds": kinds, "asked": asked, "older": older}
    return frame.page("log.html", row=row, place=frame.place(row.run), **shown)


def compare_page(
    frame: Frame, rows: Sequence[RunRow], heads: Sequence[Head], known: Sequence[RunLine]
) -> str:
    """Several runs side by side: how they went, one metric over time, and the settings in which they differ."""
    names = [row.run for row in rows]
    letters = [letter(place) for place in range(len(names))]
    differ = differing({row.run: _settings(row) for row in rows})
    return frame.page(
        "compare.html",
        here="/compare",
        names=names,
        letters=letters,
        known=known,
        most=MOST_COMPARED,
        query=urlencode([("run", name) for name in names]),
        went=_went(letters, heads),
        axes=list(AXES),
        differing=setting_rows(differ, names),
    )


def _settings(row: RunRow) -> dict[str, Any]:
    """A run's settings; documents and paths of sites are left out."""
    given = {key: value for key, value in row.recipe.get("settings", {}).items() if key not in _LOCAL}
    return settings_of({**given, **row.recipe.get("method", {})}, origin(row))


def _went(letters: Sequence[str], heads: Sequence[Head]) -> Table:
    measured = dict.fromkeys(name for state in heads for name in state.metrics)
    rows: list[Row] = [
        *((measure_name(name), *(_told(state.metrics.get(name)) for state in heads)) for name in measured),
        ("status", *(state.status for state in heads)),
        ("versions", *(state.version for state in heads)),
        ("updates", *(state.updates for state in heads)),
        ("bytes sent", *(state.bytes for state in heads)),
        ("seconds of the engine's clock", *(state.at for state in heads)),
        ("seconds of wall-clock time", *(state.wall for state in heads)),
    ]
    return ("what", *letters), rows


def _told(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def governance_page(
    frame: Frame, studies: Sequence[StudyCensus], chain: Chain | None, checked: Checked | None
) -> str:
    """Governance in numbers; nobody can be found in it. Without a database it says so."""
    return frame.page(
        "governance.html",
        here="/governance",
        sections=_census(studies),
        chain=chain,
        checked=checked,
        controls=frame.may(Right.CONTROL),
    )


def _census(studies: Sequence[StudyCensus]) -> list[tuple[str, str, Table]]:
    """For each section its title, its caption or what is said instead of a table, and the table."""
    if not studies:
        return [("Studies", "No study is published.", ((), []))]
    listed: list[Row] = [
        (s.study, s.title, s.version, "open" if s.is_open else "closed", s.published[:10], s.ends[:10] or "–")
        for s in studies
    ]
    consents: list[Row] = [(s.study, s.in_force, s.expired, s.withdrawn, s.other) for s in studies]
    pending: list[Row] = [
        (s.study, s.pending, "–" if s.oldest_days is None else f"{s.oldest_days} days") for s in studies
    ]
    cohorts: list[Row] = [
        (s.study, _PURPOSES.get(each.purpose, each.purpose), each.people, each.at[:10])
        for s in studies
        for each in s.cohorts
    ]
    taken = "newest cohorts" if cohorts else "No cohort was taken yet."
    return [
        ("Studies", "published studies", (("study", "title", "version", "state", "since", "until"), listed)),
        ("Consents", "consents today, in ranges",
         (("study", "in force", "expired", "withdrawn", "other"), consents)),
        ("Withdrawals", "withdrawals under way", (("study", "people", "oldest since"), pending)),
        ("Cohorts", taken, (("study", "for", "people", "taken"), cohorts)),
    ]  # fmt: skip


def learner_table(lines: Sequence[LearnerLine]) -> Table:
    """The learners of a run; a column of which nothing may be told is left out."""
    columns: dict[str, list[object]] = {
        "learner": [e.learner for e in lines],
        "now": [e.state for e in lines],
        "group": [e.group or "–" for e in lines],
        "examples": [e.examples for e in lines],
        "commits": [e.commits for e in lines],
        "sent": [size(e.bytes) for e in lines],
        "steps": [e.steps for e in lines],
        "weight": [e.weight for e in lines],
        "staleness": [e.staleness for e in lines],
        "training s": [e.training for e in lines],
        "uploading s": [e.uploading for e in lines],
        "waiting s": [e.waiting for e in lines],
        "failed": [e.failed for e in lines],
    }
    told = {head: cells for head, cells in columns.items() if any(cell is not None for cell in cells)}
    cells = (["–" if cell is None else cell for cell in cells] for cells in told.values())
    return list(told), list(zip(*cells, strict=True))


def event_table(lines: Sequence[EventLine]) -> Table:
    """Events of the journal."""
    rows: list[Row] = [
        (f"{e.sequence}", e.at, e.kind, e.learner or "–",
         ", ".join(f"{name} {value}" for name, value in e.detail.items()) or "–")
        for e in lines
    ]  # fmt: skip
    return ("event", "second", "kind", "learner", "what"), rows


def table_part(caption: str, made: Table) -> str:
    """A table alone, for the page's script to put in its place."""
    parts: Any = templates().get_template("parts.html").module
    return str(parts.tabled(caption, made))


def run_figures(store: Store, run: str, axis: str, metric: str, *, first: bool = False) -> bytes:
    """Everything that a run's page draws.

    Args:
        store: Where the run is.
        run: Its name.
        axis: How to count, one of :data:`abaton.report.AXES`.
        metric: What to show of the community model; the first that was measured if it was not.
        first: Whether the timeline shows the beginning instead of the newest.
    """
    simulated = store.run(run).engine == "virtual"
    versions = points(store, run)
    names = metric_names(versions)
    chosen = metric if metric in names else (names or [""])[0]
    by_wall = axis == "wall"
    did = activity(store, run, wall=by_wall, first=first)
    made: dict[str, Any] = activity_figures(did, words=AXES["wall" if by_wall or not simulated else "at"])
    if chosen:
        made["metric"] = metric_figure({run: versions}, chosen, axis, simulated=simulated)
    few = did.total != len(did.lines)
    words = f"the {len(did.lines)} busiest of {did.total:,} learners" if few else f"{did.total} learners"
    tables = {
        "learners": table_part(words, learner_table(did.lines)),
        "events": table_part("the newest events", event_table(events_of(store, run, most=8))),
    }
    return orjson.dumps({"figures": made, "tables": tables, "metrics": names, "metric": chosen})


def compared_figures(store: Store, runs: Sequence[str], axis: str, metric: str) -> bytes:
    """One metric of several runs, and the sizes of their updates by codec; a run is a letter, as on its page."""
    versions = {run: points(store, run) for run in runs}
    names = list(dict.fromkeys(name for each in versions.values() for name in metric_names(each)))
    chosen = metric if metric in names else (names or [""])[0]
    rows = {run: store.run(run) for run in runs}
    sizes = []
    for place, (run, row) in enumerate(rows.items()):
        label = f"{letter(place)}: {short(codec_of(row.recipe))}"
        sizes += [replace(each, name=label) for each in quartiles(store, run, "size", by_learner=False)]
    simulated = all(row.engine == "virtual" for row in rows.values())
    made: dict[str, Any] = {"payloads": payload_figure(sizes, None)}
    if chosen:
        curves = {f"{letter(i)}: {short(run)}": each for i, (run, each) in enumerate(versions.items())}
        made["metric"] = lettered(metric_figure(curves, chosen, axis, simulated=simulated))
    return orjson.dumps({"figures": made, "tables": {}, "metrics": names, "metric": chosen})
