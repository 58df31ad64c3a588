"""ASGI application of the dashboard and its HTTP server."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from abaton.dashboard.access import AccessFile
from abaton.dashboard.auth import auth_routes
from abaton.dashboard.dashboard_pages import templates
from abaton.dashboard.middleware import DashboardMiddleware
from abaton.dashboard.routes import routes
from abaton.dashboard.state import DashboardState
from abaton.errors import AbatonError, RefusedError, SettingsError
from abaton.governance.intake import IntakeLimits, ListenSettings, serve_app
from abaton.http_server import App, Receive, Scope, Send


def make_dashboard(dashboard: DashboardState) -> App:
    """Return the dashboard as an ASGI application for its HTTP server."""
    templates()  # read Plotly's script before the first request
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    api.state.dashboard = dashboard
    api.include_router(routes, prefix=dashboard.base)
    api.include_router(auth_routes, prefix=dashboard.base)
    api.add_exception_handler(HTTPException, _other)
    api.add_exception_handler(RequestValidationError, _malformed)
    api.add_exception_handler(AbatonError, _failed)
    return DashboardMiddleware(api, dashboard.access, dashboard.sessions, dashboard.base, dashboard.now)


def _other(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Response(str(error.detail), error.status_code, media_type="text/plain")


def _malformed(request: Request, error: Exception) -> Response:
    """Refuse an invalid request to the dashboard's server without repeating its content, as FastAPI would."""
    return Response("the request has missing or invalid parameters", 422, media_type="text/plain")


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, AbatonError)
    status = 404 if isinstance(error, SettingsError) else 503
    text = "the run does not exist" if status == 404 else "the store cannot be read now"
    return Response(text, status, media_type="text/plain")


def check_access(listen: ListenSettings, access: AccessFile | None) -> None:
    """Refuse to start the dashboard's server on a network without an access file."""
    if access is None and (not listen.is_loopback or listen.behind_proxy):
        raise RefusedError(
            "the dashboard would be open to the network",
            where=listen.host,
            remedy="add --access FILE (created with 'abaton dashboard token'), or listen on 127.0.0.1",
        )


def serve_dashboard(
    dashboard: DashboardState, listen: ListenSettings, ready: Callable[[str], None] = lambda address: None
) -> None:
    """Serve the dashboard over HTTP until the process is stopped.

    Args:
        dashboard: State of the dashboard.
        listen: Address and TLS settings.
        ready: Called with the address when requests are accepted.
    """
    check_access(listen, dashboard.access)
    dashboard.secure = listen.is_encrypted
    # Every viewer keeps a connection open.
    serve_app(make_dashboard(dashboard), listen, ready, IntakeLimits(waiting=1024))


def mount_beside(service: App, dashboard: DashboardState) -> App:
    """Return an ASGI application that serves the dashboard at its base path and another service elsewhere."""
    pages, base = make_dashboard(dashboard), dashboard.base

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path == base:
            headers = [(b"location", f"{base}/".encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await (pages if path.startswith(f"{base}/") else service)(scope, receive, send)

    return dispatch
