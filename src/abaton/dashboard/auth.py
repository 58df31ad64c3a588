"""Signing in and out, what every route asks first, and the files that the sign-in page needs.

The files that pages need: a fixed list, read once. Nothing of an address is ever taken for a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from abaton.dashboard.access import Right, ViewerRole
from abaton.dashboard.dashboard_pages import Frame
from abaton.dashboard.middleware import COOKIE, Caller
from abaton.dashboard.response_cache import Answer, packed, sent
from abaton.dashboard.state import Dashboard
from abaton.report.html_renderer import read

_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
_SHARED: Mapping[str, str] = {"abaton.css": _STYLE, "draw.js": _SCRIPT, "plotly.js": _SCRIPT}
_OWN: Mapping[str, str] = {
    "dashboard.css": _STYLE,
    "dashboard.js": _SCRIPT,
    "icon.svg": "image/svg+xml",
    "theme.js": _SCRIPT,
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent, and what kind it is."""

    kind: str
    answer: Answer


@cache
def static_file(name: str) -> StaticFile | None:
    """A file by its name, if it is on the list; those that reports carry, too, are theirs."""
    if name in _SHARED:
        return StaticFile(_SHARED[name], packed(read(name).encode()))
    if name in _OWN:
        return StaticFile(_OWN[name], packed(files("abaton.dashboard").joinpath("static", name).read_bytes()))
    return None


doors = APIRouter()


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


async def read_form(request: Request, at: Dashboard, by: Caller, right: Right) -> dict[str, str]:
    """The fields of a form that changes something; refused unless its sender may, and it is from our own pages."""
    if not by.person.may(right):
        raise HTTPException(403, f"a {by.person.role} may not do this")
    fields = {name: values[-1] for name, values in parse_qs((await request.body()).decode("latin-1")).items()}
    # A program that shows its token with each request has no cookie that another site could use.
    if by.session and not at.sessions.is_form_key(by.session, fields.get("key", "")):
        raise HTTPException(403, "the form is not from this session: load the page again")
    return fields


def _login(at: Dashboard, caller: Caller | None, status: int = 200, problem: str = "") -> HTMLResponse:
    """A form for a token; says what was wrong with the last one."""
    return HTMLResponse(Frame(at.base, caller).page("sign_in.html", problem=problem), status)


@doors.get("/login")
def login(at: At, request: Request) -> HTMLResponse:
    """Where a token is shown."""
    return _login(at, request.state.caller)


@doors.post("/login")
async def sign_in(at: At, request: Request) -> Response:
    """Open a session for whoever shows a token."""
    address = request.client.host if request.client else ""
    if at.attempts.take(address):
        return _login(at, None, 429, "Too many attempts: wait a little.")
    token = parse_qs((await request.body()).decode("latin-1")).get("token", [""])[-1].strip()
    person = at.access.by_token(token, at.moment()) if at.access else None
    if person is None or person.role is ViewerRole.PROXY:
        return _login(at, None, 403, "This token is not known, or has run out.")
    answer = RedirectResponse(f"{at.base}/", 303)
    answer.set_cookie(
        COOKIE, at.sessions.begin(person), max_age=int(at.sessions.longest), path=at.base or "/", httponly=True,
        samesite="strict", secure=at.secure or request.url.scheme == "https",
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
    """A file that pages need: one of a fixed list. A browser keeps it, and asks whether it is still the same."""
    found = static_file(name)
    if found is None:
        raise HTTPException(404, "there is no such file")
    return sent(request, found.answer, found.kind, keep="private, max-age=60")
