"""The service put together: routes, the gate before them, and one form for every refusal."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from abaton import __version__
from abaton.errors import AbatonError
from abaton.governance.refusals import Code, Denied
from abaton.governance.service.centre import Centre
from abaton.governance.service.guard import App, Guard, log_failure
from abaton.governance.service.problems import MEDIA_TYPE, Problem, Refusal, Trouble
from abaton.governance.service.routes import public, signed

_ABOUT = (
    "The intake of a research centre. It publishes studies, takes consents, sealed records, withdrawals and exits, "
    "and answers with signed receipts. How requests are signed is told in docs/intake.md."
)


def make_app(centre: Centre) -> App:
    """The service of a centre, as an ASGI application."""
    return Guard(make_api(centre), centre)


def make_api(centre: Centre) -> FastAPI:
    """The service without its gate: for its OpenAPI document."""
    api = FastAPI(
        title="Abaton intake",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.centre = centre
    api.include_router(public)
    api.include_router(signed)
    api.add_exception_handler(Denied, _denied)
    api.add_exception_handler(Refusal, _refused)
    api.add_exception_handler(RequestValidationError, _malformed)
    api.add_exception_handler(HTTPException, _other)
    api.add_exception_handler(AbatonError, _failed)
    api.add_exception_handler(Exception, _failed)
    plain = api.openapi

    def openapi() -> dict[str, Any]:
        made = plain()
        made["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        return made

    api.openapi = openapi  # type: ignore[method-assign]
    return api


def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    request.scope.setdefault("state", {})["code"] = refusal.code
    return Response(refusal.body(), refusal.status, refusal.headers, MEDIA_TYPE)


def _denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, Denied)
    return _refused(request, Refusal.of(error))


def _malformed(request: Request, error: Exception) -> Response:
    """Say that the request is not of the right form, and nothing of what it held: FastAPI would repeat it."""
    return _denied(request, Denied(Code.MALFORMED, "the request is not of the form that is taken"))


def _failed(request: Request, error: Exception) -> Response:
    """Say that it failed, and nothing of how; kind and place go into the operator's log."""
    log_failure(error)
    trouble = Trouble.BUSY if isinstance(error, AbatonError) else Trouble.FAILED
    return _refused(request, Refusal.by(trouble, wait=1 if trouble is Trouble.BUSY else 0))


def _other(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # a body that is not JSON at all
        return _malformed(request, error)
    trouble = Trouble.NO_SUCH_METHOD if error.status_code == 405 else Trouble.NO_SUCH_PATH
    answer = _refused(request, Refusal.by(trouble))
    if error.headers:
        answer.headers.update(error.headers)
    return answer
