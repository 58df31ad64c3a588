"""The dashboard put together: routes over the store, the gate before them, and one plain form for every refusal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from abaton.dashboard.access import AccessFile, Right, Role
from abaton.dashboard.cache import Cache
from abaton.dashboard.figures import compared_figures, run_figures
from abaton.dashboard.files import static_file
from abaton.dashboard.gate import COOKIE, App, Caller, Gate
from abaton.dashboard.governance_page import ABSENT, Checked, governance_page
from abaton.dashboard.live import Live
from abaton.dashboard.markup import Frame
from abaton.dashboard.run_page import log_page, run_page
from abaton.dashboard.runs_page import MOST_COMPARED, compare_page, runs_page
from abaton.dashboard.sessions import Sessions
from abaton.dashboard.signing_in import login_page
from abaton.errors import AbatonError, SettingsError, StoreError
from abaton.governance import Audit, census, chain, verify
from abaton.governance.service.rates import Rates
from abaton.report import AXES
from abaton.store import Database, Keep, RunRow, Store, events_of, head, kinds_of, plan, prune, run_lines

_LOG_LINES = 50


@dataclass(slots=True)
class Dashboard:
    """What the pages work with.

    Attributes:
        store: The runs.
        governance: The governance database, if it is shown.
        access: Who may use the dashboard; nobody but this machine if not given.
        base: Where the pages are, such as ``/dashboard``; empty for the root.
        sessions: Who is signed in.
        now: The time.
        pause: Seconds between two looks at a run that is watched.
    """

    store: Store
    governance: Database | None = None
    access: AccessFile | None = None
    base: str = ""
    sessions: Sessions = field(default_factory=lambda: Sessions(time.monotonic))
    now: Callable[[], float] = time.time
    pause: float = 1.0
    live: Live = field(init=False)
    cache: Cache = field(init=False)
    attempts: Rates = field(init=False)
    checked: Checked | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.live, self.cache = Live(self.store, pause=self.pause), Cache()
        self.attempts = Rates(0.5, 10, time.monotonic)

    def moment(self) -> datetime:
        """The time as a moment."""
        return datetime.fromtimestamp(self.now(), UTC)


def make_dashboard(dashboard: Dashboard) -> App:
    """The dashboard as an ASGI application."""
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    api.state.dashboard = dashboard
    api.include_router(routes, prefix=dashboard.base)
    api.add_exception_handler(HTTPException, _other)
    api.add_exception_handler(RequestValidationError, _malformed)
    api.add_exception_handler(AbatonError, _failed)
    return Gate(api, dashboard.access, dashboard.sessions, dashboard.base, dashboard.now)


def _other(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Response(str(error.detail), error.status_code, media_type="text/plain")


def _malformed(request: Request, error: Exception) -> Response:
    """Say that the request is not of the right form, and nothing of what it held: FastAPI would repeat it."""
    return Response("the request is not of the form that is taken", 422, media_type="text/plain")


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, AbatonError)
    status = 404 if isinstance(error, SettingsError) else 503
    words = "there is no such run" if status == 404 else "the store cannot be read at this moment"
    return Response(words, status, media_type="text/plain")


def _dashboard(request: Request) -> Dashboard:
    made: Dashboard = request.app.state.dashboard
    return made


def _caller(request: Request) -> Caller:
    caller: Caller | None = request.state.caller
    if caller is None:
        raise HTTPException(401, "sign in, or send a token")
    return caller


At = Annotated[Dashboard, Depends(_dashboard)]
By = Annotated[Caller, Depends(_caller)]
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


async def _form(request: Request, at: Dashboard, by: Caller, right: Right) -> dict[str, str]:
    """The fields of a form that changes something; refused unless its sender may, and it is from our own pages."""
    if not by.person.may(right):
        raise HTTPException(403, f"a {by.person.role} may not do this")
    fields = {name: values[-1] for name, values in parse_qs((await request.body()).decode("latin-1")).items()}
    # A program that shows its token with each request has no cookie that another site could use.
    if by.session and not at.sessions.is_form_key(by.session, fields.get("key", "")):
        raise HTTPException(403, "the form is not from this session: load the page again")
    return fields


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
    body, tag = await at.cache.get(
        (run, axis, metric, first, state.status),
        lambda: (state.events, state.status),
        lambda: run_figures(at.store, run, axis, metric, first=first),
    )
    return _tagged(request, body, tag)


def _tagged(request: Request, body: bytes, tag: str) -> Response:
    headers = {"etag": tag, "cache-control": "no-cache, private"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


@routes.get("/runs/{run}/live")
async def live(run: str, at: At, by: By) -> Response:
    """How a run comes along, as server-sent events."""
    await run_in_threadpool(_row, at, run)
    if at.live.is_full:
        raise HTTPException(503, "too many people watch")
    return StreamingResponse(at.live.messages(run, by.stays), media_type="text/event-stream")


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
    fields = await _form(request, at, by, Right.OPERATE)
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
    body, tag = await at.cache.get(
        ("compare", names, axis, metric),
        lambda: tuple(head(at.store, name).events for name in names),
        lambda: compared_figures(at.store, names, axis, metric),
    )
    return _tagged(request, body, tag)


@routes.get("/governance")
async def governance(at: At, by: By) -> HTMLResponse:
    """Studies, consents, withdrawals, cohorts and the audit chain, in ranges."""
    frame, database = Frame(at.base, by), at.governance
    if database is None:
        return HTMLResponse(frame.page("Governance", ABSENT, here="/governance", script=False))

    def work() -> str:
        return governance_page(frame, census(database, at.moment()), chain(database), at.checked)

    return HTMLResponse(await run_in_threadpool(work))


@routes.post("/governance/verify")
async def verify_chain(request: Request, at: At, by: By) -> Response:
    """Check the whole audit chain: for the data controller."""
    await _form(request, at, by, Right.CONTROL)
    database = at.governance
    if database is None:
        raise HTTPException(404, "there is no governance database here")

    def work() -> Checked:
        faults = verify(Audit(database).rows())
        found = tuple((fault.sequence, fault.what) for fault in faults)
        return Checked(f"{at.moment():%Y-%m-%d %H:%M} UTC", chain(database).length, found)

    at.checked = await run_in_threadpool(work)
    return RedirectResponse(f"{at.base}/governance", 303)


@routes.get("/login")
def login(at: At, request: Request) -> HTMLResponse:
    """Where a token is shown."""
    return HTMLResponse(login_page(Frame(at.base, request.state.caller)))


@routes.post("/login")
async def sign_in(at: At, request: Request) -> Response:
    """Open a session for whoever shows a token."""
    address = request.client.host if request.client else ""
    frame = Frame(at.base, None)
    if at.attempts.take(address):
        return HTMLResponse(login_page(frame, "Too many attempts: wait a little."), 429)
    token = parse_qs((await request.body()).decode("latin-1")).get("token", [""])[-1].strip()
    person = at.access.by_token(token, at.moment()) if at.access else None
    if person is None or person.role is Role.PROXY:
        return HTMLResponse(login_page(frame, "This token is not known, or has run out."), 403)
    answer = RedirectResponse(f"{at.base}/", 303)
    answer.set_cookie(
        COOKIE, at.sessions.begin(person), max_age=int(at.sessions.longest), path=at.base or "/", httponly=True,
        samesite="strict", secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


@routes.post("/logout")
async def sign_out(at: At, by: By, request: Request) -> Response:
    """Close the session."""
    await _form(request, at, by, Right.VIEW)
    at.sessions.end(by.session)
    answer = RedirectResponse(f"{at.base}/login", 303)
    answer.delete_cookie(COOKIE, path=at.base or "/")
    return answer


@routes.get("/static/{name}")
def static(name: str, request: Request) -> Response:
    """A file that pages need: one of a fixed list."""
    found = static_file(name)
    if found is None:
        raise HTTPException(404, "there is no such file")
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=found.headers)
    packed = "gzip" in request.headers.get("accept-encoding", "")
    more = {"content-encoding": "gzip"} if packed else {}
    return Response(
        found.packed if packed else found.body, headers=found.headers | more, media_type=found.kind
    )
