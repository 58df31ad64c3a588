"""The dashboard put together: routes over the store, the gate before them, and one plain form for every refusal."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from abaton.dashboard.middleware import Gate
from abaton.dashboard.pages import templates
from abaton.dashboard.routes import routes
from abaton.dashboard.signing_in import doors
from abaton.dashboard.state import Dashboard
from abaton.errors import AbatonError, SettingsError
from abaton.http_server import App


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
