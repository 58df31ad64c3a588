"""Sign-in, sign-out, form checks and static files of the dashboard.

Static files are a fixed list, read once: no part of a URL is used as a path.
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

from abaton.dashboard.access import AccessRight, ViewerRole
from abaton.dashboard.dashboard_pages import PageFrame
from abaton.dashboard.middleware import COOKIE, DashboardCaller
from abaton.dashboard.response_cache import CachedResponse, make_cached, make_response
from abaton.dashboard.state import DashboardState
from abaton.report.html_renderer import read

_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
_REPORT_ASSETS: Mapping[str, str] = {"abaton.css": _STYLE, "draw.js": _SCRIPT, "plotly.js": _SCRIPT}
_DASHBOARD_ASSETS: Mapping[str, str] = {
    "dashboard.css": _STYLE,
    "dashboard.js": _SCRIPT,
    "icon.svg": "image/svg+xml",
    "theme.js": _SCRIPT,
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Static file with its media type."""

    media_type: str
    response: CachedResponse


@cache
def static_file(name: str) -> StaticFile | None:
    """Return a static file of the dashboard's fixed list by its name, for the sign-in routes."""
    if name in _REPORT_ASSETS:
        return StaticFile(_REPORT_ASSETS[name], make_cached(read(name).encode()))
    if name in _DASHBOARD_ASSETS:
        return StaticFile(
            _DASHBOARD_ASSETS[name],
            make_cached(files("abaton.dashboard").joinpath("static", name).read_bytes()),
        )
    return None


auth_routes = APIRouter()


def _dashboard(request: Request) -> DashboardState:
    dashboard: DashboardState = request.app.state.dashboard
    return dashboard


def _caller(request: Request) -> DashboardCaller:
    caller: DashboardCaller | None = request.state.caller
    if caller is None:
        raise HTTPException(401, "sign in, or send a token")
    return caller


Dashboard = Annotated[DashboardState, Depends(_dashboard)]
Caller = Annotated[DashboardCaller, Depends(_caller)]


async def read_form(
    request: Request, dashboard: DashboardState, caller: DashboardCaller, right: AccessRight
) -> dict[str, str]:
    """Return the fields of a dashboard form after authorising the caller and checking the CSRF token."""
    if not caller.user.may(right):
        raise HTTPException(403, f"role '{caller.user.role}' does not have this right")
    fields = {name: values[-1] for name, values in parse_qs((await request.body()).decode("latin-1")).items()}
    # Requests with a bearer token have no cookie that another site could use.
    if caller.session and not dashboard.sessions.is_form_key(caller.session, fields.get("key", "")):
        raise HTTPException(403, "the form is not from this session: reload the page")
    return fields


def _login(
    dashboard: DashboardState, caller: DashboardCaller | None, status: int = 200, problem: str = ""
) -> HTMLResponse:
    """Return the dashboard's sign-in form with the problem of the last authentication attempt."""
    return HTMLResponse(PageFrame(dashboard.base, caller).page("sign_in.html", problem=problem), status)


@auth_routes.get("/login")
def login(dashboard: Dashboard, request: Request) -> HTMLResponse:
    """Return the dashboard's sign-in form, for authentication by token."""
    return _login(dashboard, request.state.caller)


@auth_routes.post("/login")
async def sign_in(dashboard: Dashboard, request: Request) -> Response:
    """Authenticate a dashboard user: open a session for a valid token."""
    address = request.client.host if request.client else ""
    if dashboard.attempts.take(address):
        return _login(dashboard, None, 429, "Too many attempts: wait before you try again.")
    token = parse_qs((await request.body()).decode("latin-1")).get("token", [""])[-1].strip()
    user = dashboard.access.user_by_token(token, dashboard.utc_now()) if dashboard.access else None
    if user is None or user.role is ViewerRole.PROXY:
        return _login(dashboard, None, 403, "The token is unknown or expired.")
    response = RedirectResponse(f"{dashboard.base}/", 303)
    response.set_cookie(
        COOKIE, dashboard.sessions.start(user), max_age=int(dashboard.sessions.max_seconds),
        path=dashboard.base or "/", httponly=True, samesite="strict",
        secure=dashboard.secure or request.url.scheme == "https",
    )  # fmt: skip
    return response


@auth_routes.post("/logout")
async def sign_out(dashboard: Dashboard, caller: Caller, request: Request) -> Response:
    """Sign a dashboard user out: close the session."""
    await read_form(request, dashboard, caller, AccessRight.VIEW)
    dashboard.sessions.end(caller.session)
    response = RedirectResponse(f"{dashboard.base}/login", 303)
    response.delete_cookie(COOKIE, path=dashboard.base or "/")
    return response


@auth_routes.get("/static/{name}")
def static(name: str, request: Request) -> Response:
    """Return a static file of the dashboard, also before authentication; browsers cache and revalidate it."""
    static_asset = static_file(name)
    if static_asset is None:
        raise HTTPException(404, "the file does not exist")
    return make_response(
        request, static_asset.response, static_asset.media_type, cache_control="private, max-age=60"
    )
