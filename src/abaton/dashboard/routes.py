"""Routes of the dashboard: runs, figures, reports, logs, pruning, governance."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from abaton.dashboard.access import AccessRight
from abaton.dashboard.auth import Caller, Dashboard, read_form
from abaton.dashboard.dashboard_pages import (
    MAX_COMPARED,
    AuditCheck,
    PageFrame,
    compared_figures,
    render_compare,
    render_governance,
    render_log,
    render_run,
    render_runs,
    run_figures,
)
from abaton.dashboard.response_cache import make_response
from abaton.dashboard.state import DashboardState
from abaton.errors import SettingsError, StoreError
from abaton.governance import AuditLog, study_counts, summarise_audit_log, verify
from abaton.report import AXES, make_report, render_report
from abaton.report.html_renderer import PageAssets
from abaton.store import (
    Journal,
    RetentionRule,
    RunRow,
    count_event_types,
    latest_events,
    plan_pruning,
    prune,
    run_head,
    run_summaries,
    visible_activity,
)

_LOG_LIMIT = 50

Axis = Annotated[str, Query(pattern=f"^({'|'.join(AXES)})$")]
ShortText = Annotated[str, Query(max_length=200)]
Runs = Annotated[list[str], Query(max_length=MAX_COMPARED)]
routes = APIRouter()


def _row(dashboard: DashboardState, run: str) -> RunRow:
    """Return the run that a dashboard route's URL names in full; a prefix is not enough."""
    row = dashboard.store.run(run)
    if row.run != run:
        raise SettingsError(f"run '{run}' does not exist")
    return row


@routes.get("/")
def runs(
    dashboard: Dashboard, caller: Caller, after: Annotated[int, Query(ge=0, le=10**6)] = 0
) -> HTMLResponse:
    """Return the dashboard route's page with the list of runs."""
    return HTMLResponse(
        render_runs(PageFrame(dashboard.base, caller), *run_summaries(dashboard.store, after=after), after)
    )


@routes.get("/runs/{run}")
def run(run: str, dashboard: Dashboard, caller: Caller, notice: ShortText = "") -> HTMLResponse:
    """Return the dashboard route's page of a run."""
    text = _NOTICES.get(notice, "")
    return HTMLResponse(
        render_run(
            PageFrame(dashboard.base, caller), _row(dashboard, run), run_head(dashboard.store, run), text
        )
    )


_NOTICES = {
    "pruned": "Old versions and updates were deleted.",
    "locked": "Nothing was deleted: the run is running.",
}


@routes.get("/runs/{run}/figures")
async def figures(
    run: str,
    request: Request,
    dashboard: Dashboard,
    caller: Caller,
    axis: Axis = "timestamp",
    metric: ShortText = "",
    interval: ShortText = "",
) -> Response:
    """Return the figures and tables of a run's page (dashboard route)."""
    state = await dashboard.live.state(run)
    first = interval == "first"
    response = await dashboard.cache.get(
        (run, axis, metric, first, state.status),
        lambda: (state.events, state.status),
        lambda: run_figures(dashboard.store, run, axis, metric, first=first),
    )
    return make_response(request, response, "application/json")


@routes.get("/runs/{run}/report")
async def report(run: str, request: Request, dashboard: Dashboard, caller: Caller) -> Response:
    """Return the report of a finished run with linked assets (dashboard route)."""
    state = await dashboard.live.state(run)
    assets = PageAssets(base=dashboard.base, home=PageFrame(dashboard.base, caller).run_url(run))

    def render() -> bytes:
        row, journal = _row(dashboard, run), Journal(dashboard.store, run)
        report_data = make_report(
            row,
            dashboard.store.models(run),
            journal.rows(),
            visible_activity(dashboard.store, run, first=True),
        )
        return render_report(report_data, assets).encode()

    response = await dashboard.cache.get(("report", run), lambda: (state.events, state.status), render)
    return make_response(request, response, "text/html; charset=utf-8")


@routes.get("/runs/{run}/live")
async def live(run: str, dashboard: Dashboard, caller: Caller) -> Response:
    """Stream the states of a run as server-sent events (dashboard route)."""
    await run_in_threadpool(_row, dashboard, run)
    if dashboard.live.is_full:
        raise HTTPException(503, "too many viewers")
    # A proxy must not buffer the events.
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(
        dashboard.live.messages(run, caller.is_valid), headers=headers, media_type="text/event-stream"
    )


@routes.get("/runs/{run}/log")
def log(
    run: str,
    dashboard: Dashboard,
    caller: Caller,
    event_type: Annotated[list[str] | None, Query(alias="type", max_length=20)] = None,
    learner: ShortText = "",
    before: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
) -> HTMLResponse:
    """Return the events of a run, with filters (dashboard route)."""
    row, counts = _row(dashboard, run), count_event_types(dashboard.store, run)
    selected = [name for name in event_type or () if name in counts]
    events = latest_events(
        dashboard.store, run, types=selected, learner=learner, before=before, limit=_LOG_LIMIT
    )
    filters = {"types": selected, "learner": learner, "limit": _LOG_LIMIT}
    return HTMLResponse(render_log(PageFrame(dashboard.base, caller), row, events, counts, filters))


@routes.post("/runs/{run}/prune")
async def prune_run(run: str, request: Request, dashboard: Dashboard, caller: Caller) -> Response:
    """Delete old versions and updates of a run; a dashboard route for operators."""
    fields = await read_form(request, dashboard, caller, AccessRight.OPERATE)
    last = fields.get("last", "5")
    if not last.isdigit() or not 1 <= int(last) <= 100_000:
        raise HTTPException(422, "keep an integer number of versions from 1 to 100000")
    retention = RetentionRule(int(last))

    def work() -> str:
        row = _row(dashboard, run)
        if dashboard.store.is_locked(run):
            return "locked"
        try:
            prune(dashboard.store, plan_pruning(dashboard.store, row, retention))
        except StoreError:
            return "locked"
        return "pruned"

    notice = await run_in_threadpool(work)
    return RedirectResponse(f"{request.url.path.removesuffix('/prune')}?notice={notice}", 303)


@routes.get("/compare")
def compare(dashboard: Dashboard, caller: Caller, run: Runs = []) -> HTMLResponse:  # noqa: B006
    """Return the comparison of several runs (dashboard route)."""
    rows = [_row(dashboard, name) for name in dict.fromkeys(run)]
    summaries, _ = run_summaries(dashboard.store)
    return HTMLResponse(
        render_compare(
            PageFrame(dashboard.base, caller),
            rows,
            [run_head(dashboard.store, r.run) for r in rows],
            summaries,
        )
    )


@routes.get("/compare/figures")
async def compared(
    request: Request,
    dashboard: Dashboard,
    caller: Caller,
    run: Runs,
    axis: Axis = "timestamp",
    metric: ShortText = "",
) -> Response:
    """Return the figures of the comparison (dashboard route)."""
    names = tuple(dict.fromkeys(run))
    response = await dashboard.cache.get(
        ("compare", names, axis, metric),
        lambda: tuple(run_head(dashboard.store, name).events for name in names),
        lambda: compared_figures(dashboard.store, names, axis, metric),
    )
    return make_response(request, response, "application/json")


@routes.get("/governance")
async def governance(dashboard: Dashboard, caller: Caller) -> HTMLResponse:
    """Return studies, consents, withdrawals, cohorts and the audit log (dashboard route)."""
    frame, database = PageFrame(dashboard.base, caller), dashboard.governance
    if database is None:
        return HTMLResponse(render_governance(frame, (), None, None))

    def work() -> str:
        return render_governance(
            frame,
            study_counts(database, dashboard.utc_now()),
            summarise_audit_log(database),
            dashboard.audit_check,
        )

    return HTMLResponse(await run_in_threadpool(work))


@routes.post("/governance/verify")
async def verify_audit_log(request: Request, dashboard: Dashboard, caller: Caller) -> Response:
    """Verify the complete audit log; a dashboard route for the data controller."""
    await read_form(request, dashboard, caller, AccessRight.CONTROL)
    database = dashboard.governance
    if database is None:
        raise HTTPException(404, "the dashboard has no governance database")

    def work() -> AuditCheck:
        faults = verify(AuditLog(database).rows())
        problems = tuple((fault.sequence, fault.problem) for fault in faults)
        return AuditCheck(
            f"{dashboard.utc_now():%Y-%m-%d %H:%M} UTC", summarise_audit_log(database).length, problems
        )

    dashboard.audit_check = await run_in_threadpool(work)
    return RedirectResponse(f"{dashboard.base}/governance", 303)
