"""Signing in and out, and the files that the sign-in page needs."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from abaton.dashboard.access import Right, ViewerRole
from abaton.dashboard.asking import At, By, read_form
from abaton.dashboard.files import static_file
from abaton.dashboard.gate import COOKIE
from abaton.dashboard.markup import Frame
from abaton.report.html import text

doors = APIRouter()


def login_page(frame: Frame, problem: str = "") -> str:
    """A form for a token; says what was wrong with the last one."""
    wrong = f'<p role="alert" class="no" id="wrong">{text(problem)}</p>' if problem else ""
    described = ' aria-describedby="wrong" aria-invalid="true"' if problem else ""
    body = (
        f'<section class="card narrow" aria-labelledby="sign-in"><h1 id="sign-in">Sign in</h1>{wrong}'
        f'<form method="post" action="{frame.base}/login"><label for="token">Token</label>'
        '<input hidden type="text" autocomplete="username" value="abaton" aria-label="Account">'
        f'<input id="token" name="token" type="password" autocomplete="current-password" required{described}>'
        "<button>Sign in</button></form>"
        '<p class="soft">Tokens are made with <code>abaton dashboard token</code> by whoever runs this '
        "dashboard.</p></section>"
    )
    return frame.page("Sign in", body, here="login", script=False)


@doors.get("/login")
def login(at: At, request: Request) -> HTMLResponse:
    """Where a token is shown."""
    return HTMLResponse(login_page(Frame(at.base, request.state.caller)))


@doors.post("/login")
async def sign_in(at: At, request: Request) -> Response:
    """Open a session for whoever shows a token."""
    address = request.client.host if request.client else ""
    frame = Frame(at.base, None)
    if at.attempts.take(address):
        return HTMLResponse(login_page(frame, "Too many attempts: wait a little."), 429)
    token = parse_qs((await request.body()).decode("latin-1")).get("token", [""])[-1].strip()
    person = at.access.by_token(token, at.moment()) if at.access else None
    if person is None or person.role is ViewerRole.PROXY:
        return HTMLResponse(login_page(frame, "This token is not known, or has run out."), 403)
    answer = RedirectResponse(f"{at.base}/", 303)
    answer.set_cookie(
        COOKIE, at.sessions.begin(person), max_age=int(at.sessions.longest), path=at.base or "/", httponly=True,
        samesite="strict", secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


@doors.post("/logout")
async def sign_out(at: At, by: By, request: Request) -> Response:
    """Close the session."""
    await read_form(request, at, by, Right.VIEW)
    at.sessions.end(by.session)
    answer = RedirectResponse(f"{at.base}/login", 303)
    answer.delete_cookie(COOKIE, path=at.base or "/")
    return answer


@doors.get("/static/{name}")
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
