"""What can be looked at, and the few things that can be done."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from abaton.dashboard.access import Right
from abaton.dashboard.auth import At, By, read_form
from abaton.dashboard.dashboard_pages import (
    MOST_COMPARED,
    Checked,
    Frame,
    compare_page,
    compared_figures,
    governance_page,
    log_page,
    run_figures,
    run_page,
    runs_page,
)
from abaton.dashboard.response_cache import sent
from abaton.dashboard.state import Dashboard
from abaton.errors import SettingsError, StoreError
from abaton.governance import Audit, census, chain, verify
from abaton.report import AXES, page_of, report_of
from abaton.report.html_renderer import Assets
from abaton.store import (
    Journal,
    Keep,
    RunRow,
    activity,
    events_of,
    head,
    kinds_of,
    plan,
    prune,
    run_lines,
)

_LOG_LINES = 50

Axis = Annotated[str, Query(pattern=f"^({'|'.join(AXES)})$")]
Words = Annotated[str, Query(max_length=200)]
Runs = Annotated[list[str], Query(max_length=MOST_COMPARED)]
routes = APIRouter()


def _row(at: Dashboard, run: str) -> RunRow:
    """A run by its whole name: a beginning is not enough in an address."""
    row = at.store.run(run)
    if row.run != run:
        raise SettingsError(f"there is no run '{run}'")
    return row


@routes.get("/")
def runs(at: At, by: By, after: Annotated[int, Query(ge=0, le=10**6)] = 0) -> HTMLResponse:
    """The list of runs."""
    return HTMLResponse(runs_page(Frame(at.base, by), *run_lines(at.store, after=after), after))


@routes.get("/runs/{run}")
def run(run: str, at: At, by: By, notice: Words = "") -> HTMLResponse:
    """One run."""
    words = _NOTICES.get(notice, "")
    return HTMLResponse(run_page(Frame(at.base, by), _row(at, run), head(at.store, run), words))


_NOTICES = {
    "pruned": "Pruned: what was not to be kept has been removed.",
    "held": "Nothing was removed: the run is being worked on.",
}


@routes.get("/runs/{run}/figures")
async def figures(
    run: str, request: Request, at: At, by: By, axis: Axis = "at", metric: Words = "", stretch: Words = ""
) -> Response:
    """What a run's page draws."""
    state = await at.live.state(run)
    first = stretch == "first"
    answer = await at.cache.get(
        (run, axis, metric, first, state.status),
        lambda: (state.events, state.status),
        lambda: run_figures(at.store, run, axis, metric, first=first),
    )
    return sent(request, answer, "application/json")


@routes.get("/runs/{run}/report")
async def report(run: str, request: Request, at: At, by: By) -> Response:
    """The report of a run that has ended: the page that 'abaton report' writes, with its files linked."""
    state = await at.live.state(run)
    assets = Assets(base=at.base, home=Frame(at.base, by).place(run))

    def make() -> bytes:
        row, journal = _row(at, run), Journal(at.store, run)
        told = report_of(row, at.store.models(run), journal.rows(), activity(at.store, run, first=True))
        return page_of(told, assets).encode()

    answer = await at.cache.get(("report", run), lambda: (state.events, state.status), make)
    return sent(request, answer, "text/html; charset=utf-8")


@routes.get("/runs/{run}/live")
async def live(run: str, at: At, by: By) -> Response:
    """How a run comes along, as server-sent events."""
    await run_in_threadpool(_row, at, run)
    if at.live.is_full:
        raise HTTPException(503, "too many people watch")
    # A proxy that collected answers before it passes them on would make nothing of this live.
    at_once = {"x-accel-buffering": "no"}
    return StreamingResponse(at.live.messages(run, by.stays), headers=at_once, media_type="text/event-stream")


@routes.get("/runs/{run}/log")
def log(
    run: str,
    at: At,
    by: By,
    kind: Annotated[list[str] | None, Query(max_length=20)] = None,
    learner: Words = "",
    before: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
) -> HTMLResponse:
    """The events of a run, with filters."""
    row, known = _row(at, run), kinds_of(at.store, run)
    kinds = [each for each in kind or () if each in known]
    lines = events_of(at.store, run, kinds=kinds, learner=learner, before=before, most=_LOG_LINES)
    asked = {"kinds": kinds, "learner": learner, "most": _LOG_LINES}
    return HTMLResponse(log_page(Frame(at.base, by), row, lines, known, asked))


@routes.post("/runs/{run}/prune")
async def prune_run(run: str, request: Request, at: At, by: By) -> Response:
    """Free the space of a run: for operators."""
    fields = await read_form(request, at, by, Right.OPERATE)
    last = fields.get("last", "5")
    if not last.isdigit() or not 1 <= int(last) <= 100_000:
        raise HTTPException(422, "keep a whole number of versions, at least 1")
    keep = Keep(int(last))

    def work() -> str:
        row = _row(at, run)
        if at.store.is_held(run):
            return "held"
        try:
            prune(at.store, plan(at.store, row, keep))
        except StoreError:
            return "held"
        return "pruned"

    notice = await run_in_threadpool(work)
    return RedirectResponse(f"{request.url.path.removesuffix('/prune')}?notice={notice}", 303)


@routes.get("/compare")
def compare(at: At, by: By, run: Runs = []) -> HTMLResponse:  # noqa: B006
    """Several runs side by side."""
    rows = [_row(at, name) for name in dict.fromkeys(run)]
    known, _ = run_lines(at.store)
    return HTMLResponse(compare_page(Frame(at.base, by), rows, [head(at.store, r.run) for r in rows], known))


@routes.get("/compare/figures")
async def compared(
    request: Request, at: At, by: By, run: Runs, axis: Axis = "at", metric: Words = ""
) -> Response:
    """What the comparison draws."""
    names = tuple(dict.fromkeys(run))
    answer = await at.cache.get(
        ("compare", names, axis, metric),
        lambda: tuple(head(at.store, name).events for name in names),
        lambda: compared_figures(at.store, names, axis, metric),
    )
    return sent(request, answer, "application/json")


@routes.get("/governance")
async def governance(at: At, by: By) -> HTMLResponse:
    """Studies, consents, withdrawals, cohorts and the audit chain, in ranges."""
    frame, database = Frame(at.base, by), at.governance
    if database is None:
        return HTMLResponse(governance_page(frame, (), None, None))

    def work() -> str:
        return governance_page(frame, census(database, at.moment()), chain(database), at.checked)

    return HTMLResponse(await run_in_threadpool(work))


@routes.post("/governance/verify")
async def verify_chain(request: Request, at: At, by: By) -> Response:
    """Check the whole audit chain: for the data controller."""
    await read_form(request, at, by, Right.CONTROL)
    database = at.governance
    if database is None:
        raise HTTPException(404, "there is no governance database here")

    def work() -> Checked:
        faults = verify(Audit(database).rows())
        found = tuple((fault.sequence, fault.what) for fault in faults)
        return Checked(f"{at.moment():%Y-%m-%d %H:%M} UTC", chain(database).length, found)

    at.checked = await run_in_threadpool(work)
    return RedirectResponse(f"{at.base}/governance", 303)
