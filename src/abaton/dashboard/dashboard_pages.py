"""Pages of the dashboard, and their figures and tables as JSON.

Subject counts are shown as ranges as wide as `min_cell_count`, because two exact counts on consecutive days reveal a
single withdrawal.
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
from abaton.dashboard.access import AccessRight
from abaton.dashboard.middleware import DashboardCaller
from abaton.governance import AuditSummary, StudyCounts
from abaton.report import (
    AXES,
    TITLES,
    Table,
    activity_figures,
    differing_settings,
    method_settings,
    metric_figure,
    metric_names,
    payload_figure,
    run_label,
    run_origin,
    setting_rows,
    settings_of,
    shorten_name,
)
from abaton.report.cohort_flow import cohort_flow_data, complete_cohorts
from abaton.report.findings import local_benefits, main_finding
from abaton.report.html_renderer import environment, format_bytes, plotly_style_markers
from abaton.report.pages import colours_of
from abaton.report.run_comparison import shorten_run_column
from abaton.report.run_tables import Row
from abaton.report.training_curves import metric_label
from abaton.store import (
    EventRow,
    LearnerActivity,
    RunHead,
    RunRow,
    RunSummary,
    Store,
    latest_events,
    metric_points,
    quartiles,
    recipe_codec,
    visible_activity,
    weights_visible,
)

MAX_COMPARED = 8
_SMALL_FIGURES = ("weights", "staleness", "cycles", "payloads")
_PURPOSES = {"collect": "collecting", "disclose": "sending", "use": "training"}
_DOCUMENT_SETTINGS = ("study", "sites", "now")  # documents and paths are not compared


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """Last verification of the audit log: time, number of entries, faults."""

    timestamp: str
    length: int
    faults: tuple[tuple[int, str], ...]


@cache
def templates() -> Environment:
    """Return the templates of the dashboard's pages and of the reports."""
    jinja = environment("abaton.dashboard")
    jinja.filters |= {"main_metric": main_metric, "quote_path": _quote_path}
    jinja.globals |= {"version": __version__, "plotly_markers": plotly_style_markers()}
    return jinja


def _quote_path(name: str) -> str:
    return quote(name, safe="")


@dataclass(frozen=True, slots=True)
class PageFrame:
    """Context of every page: base URL and caller."""

    base: str
    caller: DashboardCaller | None

    def page(self, template: str, *, current_page: str = "", **values: Any) -> str:
        """Return a rendered page of the dashboard."""
        context = {"base": self.base, "viewer": self.caller, "current_page": current_page}
        return templates().get_template(template).render(**context, **values)

    def may(self, right: AccessRight) -> bool:
        """Return whether the viewer of a dashboard page has an access right."""
        return self.caller is not None and self.caller.user.may(right)

    def run_url(self, run: str) -> str:
        """Return the URL of a run's page on the dashboard."""
        return f"{self.base}/runs/{_quote_path(run)}"


def main_metric(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the metric shown on a dashboard page: AUROC if it was measured, else the first metric.

    >>> main_metric({"loss": 0.4, "auroc": 0.8}), main_metric({})
    (('auroc', 0.8), None)
    """
    if "auroc" in metrics:
        return "auroc", metrics["auroc"]
    return next(iter(metrics.items()), None)


def render_runs(frame: PageFrame, summaries: Sequence[RunSummary], total: int, after: int) -> str:
    """Render the dashboard page with the list of runs."""
    return frame.page(
        "runs.html", current_page="/", runs=summaries, total=total, after=after, max_compared=MAX_COMPARED
    )


def render_run(frame: PageFrame, row: RunRow, state: RunHead, notice: str = "") -> str:
    """Render the dashboard page of a run with its state and figures."""
    study = row.recipe.get("study")
    title = study.get("title") if isinstance(study, Mapping) else None
    return frame.page(
        "live_run.html",
        row=row,
        state=state,
        notice=notice,
        run_url=frame.run_url(row.run),
        title=title or row.recipe.get("name", ""),
        codec=recipe_codec(row.recipe),
        axes=[name for name in AXES if row.engine == "virtual" or name != "timestamp"],
        titles=TITLES,
        small_figures=[name for name in _SMALL_FIGURES if name != "weights" or weights_visible(row.recipe)],
        may_operate=frame.may(AccessRight.OPERATE),
        **_findings(row),
    )


def _findings(row: RunRow) -> dict[str, Any]:
    """Return finding, local benefit, groups and attrition of a study run for its dashboard page."""
    evaluation = (row.result or {}).get("evaluation", {})
    rows = evaluation.get("rows", ())
    method = row.recipe.get("method", {}).get("evaluation", {})
    level = method.get("confidence_level", 0.95)
    finding = main_finding(row.recipe.get("study") or {}, evaluation, level)
    return {
        "finding": finding,
        "local_benefit": local_benefits(evaluation),
        "groups": [
            group
            for group in rows
            if group["model"] == "community" and group["grouping"] not in ("all", "site")
        ],
        "flow": cohort_flow_data(complete_cohorts(row.recipe.get("cohort_reports", {}), row.result))
        if finding
        else [],
        "colours": colours_of(evaluation) if rows else {},
        "has_report": "digest" in (row.result or {}),
    }


def render_log(
    frame: PageFrame,
    row: RunRow,
    events: Sequence[EventRow],
    event_types: Mapping[str, int],
    query: Mapping[str, Any],
) -> str:
    """Render the dashboard page of a run's events, with filters."""
    older = ""
    if len(events) == query["limit"]:
        filters = [*(("type", event_type) for event_type in query["types"]), ("learner", query["learner"])]
        older = urlencode([*filters, ("before", events[-1].sequence)])
    shown: dict[str, Any] = {
        "events": event_table(events),
        "event_types": event_types,
        "query": query,
        "older": older,
    }
    return frame.page("log.html", row=row, run_url=frame.run_url(row.run), **shown)


def render_compare(
    frame: PageFrame, rows: Sequence[RunRow], states: Sequence[RunHead], known: Sequence[RunSummary]
) -> str:
    """Render the dashboard page that compares runs: states, one metric over time, differing settings."""
    names = [row.run for row in rows]
    labels = [run_label(index) for index in range(len(names))]
    differences = differing_settings({row.run: _settings(row) for row in rows})
    return frame.page(
        "compare.html",
        current_page="/compare",
        names=names,
        labels=labels,
        runs=known,
        max_compared=MAX_COMPARED,
        query=urlencode([("run", name) for name in names]),
        states=_state_table(labels, states),
        axes=list(AXES),
        differences=setting_rows(differences, names),
    )


def _settings(row: RunRow) -> dict[str, Any]:
    """Return a run's settings for a dashboard page, without documents and paths."""
    settings = {
        key: value for key, value in row.recipe.get("settings", {}).items() if key not in _DOCUMENT_SETTINGS
    }
    method = {**method_settings({**row.recipe, "settings": settings}), **row.recipe.get("method", {})}
    return settings_of(method, run_origin(row))


def _state_table(labels: Sequence[str], states: Sequence[RunHead]) -> Table:
    metrics = dict.fromkeys(name for state in states for name in state.metrics)
    rows: list[Row] = [
        *(
            (metric_label(name), *(_format_metric(state.metrics.get(name)) for state in states))
            for name in metrics
        ),
        ("status", *(state.status for state in states)),
        ("versions", *(state.version for state in states)),
        ("updates", *(state.updates for state in states)),
        ("bytes sent", *(state.bytes for state in states)),
        ("engine time (s)", *(state.timestamp for state in states)),
        ("wall-clock time (s)", *(state.wall_time for state in states)),
    ]
    return ("state", *labels), rows


def _format_metric(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def render_governance(
    frame: PageFrame, studies: Sequence[StudyCounts], chain: AuditSummary | None, checked: AuditCheck | None
) -> str:
    """Render the dashboard page of studies, consents, withdrawals and cohorts as ranges of counts."""
    return frame.page(
        "governance.html",
        current_page="/governance",
        sections=_governance_sections(studies),
        audit_log=chain,
        checked=checked,
        may_control=frame.may(AccessRight.CONTROL),
    )


def _governance_sections(studies: Sequence[StudyCounts]) -> list[tuple[str, str, Table]]:
    """Return title, caption or text, and table of each section of the dashboard's governance page."""
    if not studies:
        return [("Studies", "No study is published.", ((), []))]
    study_rows: list[Row] = [
        (
            study.study,
            study.title,
            study.version,
            "open" if study.is_open else "closed",
            study.published[:10],
            study.ends[:10] or "–",
        )
        for study in studies
    ]
    consents: list[Row] = [
        (study.study, study.in_force, study.expired, study.withdrawn, study.other) for study in studies
    ]
    pending: list[Row] = [
        (
            study.study,
            study.pending,
            "–" if study.oldest_pending_days is None else f"{study.oldest_pending_days} days",
        )
        for study in studies
    ]
    cohorts: list[Row] = [
        (study.study, _PURPOSES.get(cohort.purpose, cohort.purpose), cohort.subjects, cohort.taken_at[:10])
        for study in studies
        for cohort in study.cohorts
    ]
    cohort_caption = "latest cohorts" if cohorts else "There is no cohort yet."
    return [
        ("Studies", "published studies", (("study", "title", "version", "state", "published", "ends"), study_rows)),
        ("Consents", "consents, as ranges of counts",
         (("study", "in force", "expired", "withdrawn", "other"), consents)),
        ("Withdrawals", "pending withdrawals", (("study", "subjects", "oldest"), pending)),
        ("Cohorts", cohort_caption, (("study", "purpose", "subjects", "date"), cohorts)),
    ]  # fmt: skip


def learner_table(learners: Sequence[LearnerActivity]) -> Table:
    """Return the learners of a run for its dashboard page, without suppressed columns."""
    columns: dict[str, list[object]] = {
        "learner": [learner.learner for learner in learners],
        "state": [learner.state for learner in learners],
        "group": [learner.group or "–" for learner in learners],
        "examples": [learner.examples for learner in learners],
        "commits": [learner.commits for learner in learners],
        "sent": [format_bytes(learner.bytes) for learner in learners],
        "steps": [learner.steps for learner in learners],
        "weight": [learner.weight for learner in learners],
        "staleness": [learner.staleness for learner in learners],
        "training (s)": [learner.training_seconds for learner in learners],
        "uploading (s)": [learner.upload_seconds for learner in learners],
        "waiting (s)": [learner.waiting_seconds for learner in learners],
        "failures": [learner.failures for learner in learners],
    }
    visible = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    cells = (["–" if cell is None else cell for cell in cells] for cells in visible.values())
    return list(visible), list(zip(*cells, strict=True))


def event_table(events: Sequence[EventRow]) -> Table:
    """Return events of the journal as a table of a dashboard page."""
    rows: list[Row] = [
        (f"{event.sequence}", event.timestamp, event.type, event.learner or "–",
         ", ".join(f"{name} {value}" for name, value in event.detail.items()) or "–")
        for event in events
    ]  # fmt: skip
    return ("event", "time (s)", "type", "learner", "detail"), rows


def render_table(caption: str, data: Table) -> str:
    """Render the HTML of a table for the dashboard page's script."""
    components: Any = templates().get_template("components.html").module
    return str(components.data_table(caption, data))


def run_figures(store: Store, run: str, axis: str, metric: str, *, first: bool = False) -> bytes:
    """Return the figures and tables of a run's dashboard page as JSON.

    Args:
        store: Store of the run.
        run: Name of the run.
        axis: One of :data:`abaton.report.AXES`.
        metric: Metric to show; the first measured one if it was not measured.
        first: Whether the timeline shows the first interval instead of the latest.
    """
    is_simulated = store.run(run).engine == "virtual"
    versions = metric_points(store, run)
    names = metric_names(versions)
    selected = metric if metric in names else (names or [""])[0]
    use_wall_time = axis == "wall_time"
    activity = visible_activity(store, run, wall_time=use_wall_time, first=first)
    figures: dict[str, Any] = activity_figures(
        activity, time_label=AXES["wall_time" if use_wall_time or not is_simulated else "timestamp"]
    )
    if selected:
        figures["metric"] = metric_figure({run: versions}, selected, axis, is_simulated=is_simulated)
    is_truncated = activity.total != len(activity.learners)
    caption = (
        f"the {len(activity.learners)} most active of {activity.total:,} learners"
        if is_truncated
        else f"{activity.total} learners"
    )
    tables = {
        "learners": render_table(caption, learner_table(activity.learners)),
        "events": render_table("latest events", event_table(latest_events(store, run, limit=8))),
    }
    return orjson.dumps({"figures": figures, "tables": tables, "metrics": names, "metric": selected})


def compared_figures(store: Store, runs: Sequence[str], axis: str, metric: str) -> bytes:
    """Return a metric of several runs and their payload sizes by codec as JSON, for a dashboard page."""
    versions = {run: metric_points(store, run) for run in runs}
    names = list(dict.fromkeys(name for points in versions.values() for name in metric_names(points)))
    selected = metric if metric in names else (names or [""])[0]
    rows = {run: store.run(run) for run in runs}
    payload_quartiles = []
    for index, (run, row) in enumerate(rows.items()):
        label = f"{run_label(index)}: {shorten_name(recipe_codec(row.recipe))}"
        payload_quartiles += [
            replace(points, name=label) for points in quartiles(store, run, "payload_bytes", by_learner=False)
        ]
    is_simulated = all(row.engine == "virtual" for row in rows.values())
    figures: dict[str, Any] = {"payloads": payload_figure(payload_quartiles, None)}
    if selected:
        curves = {
            f"{run_label(i)}: {shorten_name(run)}": points for i, (run, points) in enumerate(versions.items())
        }
        figures["metric"] = shorten_run_column(
            metric_figure(curves, selected, axis, is_simulated=is_simulated)
        )
    return orjson.dumps({"figures": figures, "tables": {}, "metrics": names, "metric": selected})
