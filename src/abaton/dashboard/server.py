"""Where the dashboard listens: on this machine alone, unless it knows who may use it and the line is encrypted.

The dashboard put together: routes over the store, the gate before them, and one plain form for every refusal.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from abaton.dashboard.access import AccessFile
from abaton.dashboard.auth import doors
from abaton.dashboard.dashboard_pages import templates
from abaton.dashboard.middleware import Gate
from abaton.dashboard.routes import routes
from abaton.dashboard.state import Dashboard
from abaton.errors import AbatonError, Refused, SettingsError
from abaton.governance.intake import Limits, Listen, serve_app
from abaton.http_server import App, Receive, Scope, Send


def make_dashboard(dashboard: Dashboard) -> App:
    """The dashboard as an ASGI application."""
    templates()  # reads the drawing script now, so that the first page need not
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    api.state.dashboard = dashboard
    api.include_router(routes, prefix=dashboard.base)
    api.include_router(doors, prefix=dashboard.base)
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


def check_access(listen: Listen, access: AccessFile | None) -> None:
    """Refuse to show runs to a network without knowing who looks."""
    if access is None and (not listen.is_loopback or listen.behind_proxy):
        raise Refused(
            "the dashboard would show runs to whoever can reach it",
            where=listen.host,
            remedy="give --access FILE (make one with 'abaton dashboard token'), or listen on 127.0.0.1",
        )


def serve_dashboard(
    dashboard: Dashboard, listen: Listen, ready: Callable[[str], None] = lambda address: None
) -> None:
    """Serve the dashboard until the process is told to stop.

    Args:
        dashboard: What to show, and to whom.
        listen: Where.
        ready: Told the address when requests are taken.
    """
    check_access(listen, dashboard.access)
    dashboard.secure = listen.is_encrypted
    # Every viewer keeps a connection; those that ask at once wait in line.
    serve_app(make_dashboard(dashboard), listen, ready, Limits(waiting=1024))


def beside(service: App, dashboard: Dashboard) -> App:
    """The dashboard at its own address beside another service, whose gate it does not pass."""
    pages, base = make_dashboard(dashboard), dashboard.base

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path == base:
            headers = [(b"location", f"{base}/".encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await (pages if path.startswith(f"{base}/") else service)(scope, receive, send)

    return both
