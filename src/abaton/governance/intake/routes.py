"""HTTP API of the intake: request and response models, routes, and assembly with the middleware.

The OpenAPI document is generated from the models, which forbid unknown fields.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.models import HTTPBase
from fastapi.security.base import SecurityBase
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from abaton import __version__
from abaton.errors import AbatonError
from abaton.governance.external_consent import consent_query, receive_consent
from abaton.governance.intake.intake_service import IntakeCaller, IntakeService
from abaton.governance.intake.middleware import (
    MEDIA_TYPE,
    IntakeMiddleware,
    ProblemDetails,
    RequestProblem,
    RequestRefusedError,
    log_failure,
)
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.http_server import App

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 digest in hexadecimal.")]
Pseudonym = Annotated[str, Field(pattern="^[A-Z2-7]{26}$", description="Registry pseudonym.")]
Size = Annotated[int, Field(ge=0, lt=2**53)]


class StrictModel(BaseModel):
    """Model without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StatementModel(StrictModel):
    """Signed statement; its body depends on its kind (docs/intake.md)."""

    format: Literal["abaton-statement/1"]
    kind: Annotated[str, Field(max_length=64)]
    body: dict[str, Any]
    signer: Annotated[str, Field(max_length=64, examples=["ed25519:ABCDEFGHIJKLMNOPQRSTUVWXYZ"])]
    signature: Annotated[str, Field(max_length=128, description="Ed25519, base64.")]


class HealthModel(StrictModel):
    """State of the service."""

    status: Literal["ok"] = "ok"


class LimitsModel(StrictModel):
    """Limits that a sender must observe."""

    chunk_bytes: int
    upload_bytes: int
    open_uploads: int
    total_bytes: int


class CentreKeysModel(StrictModel):
    """Public keys and limits of the centre; compare the fingerprints over a second channel."""

    keys: dict[str, Any] = Field(description="Public key file (abaton-keys/1).")
    limits: LimitsModel


class StudyModel(StrictModel):
    """Published study."""

    study: str
    document: Digest
    version: int
    published: str
    ends: str = Field(description="Empty if the study has no end.")
    open: bool


class StudiesModel(StrictModel):
    """All published studies with their current documents."""

    studies: list[StudyModel]


class UploadAnnouncementModel(StrictModel):
    """Announcement of an upload."""

    digest: Digest
    size: Annotated[int, Field(ge=1, lt=2**53)]


class UploadModel(StrictModel):
    """Progress of an upload, with its receipt if accepted."""

    digest: Digest
    received_bytes: Size
    receipt: StatementModel | None = None


class UsageModel(StrictModel):
    """The caller's usage."""

    sender: str
    envelopes: Size
    bytes: Size
    pending: Size
    pending_bytes: Size


class ConsentModel(BaseModel):
    """FHIR R4 Consent with codes, dates, addresses and the registry pseudonym, without free text."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"required": ["resourceType", "status", "scope", "patient", "policy", "provision"]},
    )

    resourceType: Literal["Consent"]
    status: Literal["active"]
    scope: dict[str, Any]
    patient: dict[str, Any]
    policy: list[dict[str, Any]]
    provision: dict[str, Any]


_STATUS_TEXTS = {
    401: "Unsigned, unknown signer, another request, expired, or replayed.",
    403: "Refused: no consent in force, another sender, forged, or quota exhausted.",
    404: "Not found.",
    408: "The request did not arrive in time.",
    409: "Conflict: offset mismatch, replay, or another study document.",
    413: "Larger than the limit.",
    422: "Malformed, tampered, or sealed to an unaccepted key.",
    429: "Too many requests; see Retry-After.",
    500: "The service failed; all requests are idempotent.",
    503: "The service is busy; see Retry-After.",
}
_COMMON_STATUSES = (408, 413, 429, 500, 503)


def _responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    return {
        status: {"description": _STATUS_TEXTS[status], **content}
        for status in sorted({*statuses, *_COMMON_STATUSES})
    }


class SignatureHeaders(SecurityBase):
    """Signature of a request by an Ed25519 key (RFC 9421, docs/intake.md), already checked by the middleware."""

    def __init__(self) -> None:
        self.model = HTTPBase(scheme="Signature", description="RFC 9421 with Ed25519; see docs/intake.md.")
        self.scheme_name = "Signature"

    async def __call__(self, request: Request) -> IntakeCaller:
        """Return the authenticated caller of an intake route."""
        caller: IntakeCaller = request.state.caller
        return caller


Caller = Annotated[IntakeCaller, Security(SignatureHeaders())]
PathDigest = Annotated[Digest, Path()]


def _centre(request: Request) -> IntakeService:
    centre: IntakeService = request.app.state.centre
    return centre


Service = Annotated[IntakeService, Depends(_centre)]
public = APIRouter(prefix="/v1", tags=["public"])
signed = APIRouter(prefix="/v1", tags=["signed"])


@public.get("/health", responses=_responses())
def health(centre: Service) -> HealthModel:
    """Return whether the intake service and its database work."""
    centre.inbox.senders.find("health-check")
    return HealthModel()


@public.get("/centre", responses=_responses())
def keys(centre: Service) -> CentreKeysModel:
    """Return the centre's public keys and limits to callers of the intake."""
    limits, quota = centre.limits, centre.limits.sender_quota
    limits_model = LimitsModel(
        chunk_bytes=limits.chunk_bytes,
        upload_bytes=quota.upload_bytes,
        open_uploads=quota.open_uploads,
        total_bytes=quota.total_bytes,
    )
    return CentreKeysModel(keys=centre.inbox.key_set.row(), limits=limits_model)


@public.get("/studies", responses=_responses())
def studies(centre: Service) -> StudiesModel:
    """Return the published studies to callers of the intake."""
    now = centre.now()
    names = ("study", "document", "version", "published", "ends")
    published = centre.inbox.registry.studies()
    return StudiesModel(
        studies=[
            StudyModel(**{name: getattr(item, name) for name in names}, open=item.is_open(now))
            for item in published
        ]
    )


@public.get("/studies/{document}", responses=_responses(404, 422))
def study(document: PathDigest, centre: Service) -> dict[str, Any]:
    """Return the current study document with this digest to callers of the intake."""
    for published in centre.inbox.registry.studies():
        if published.document == document:
            content: dict[str, Any] = json.loads(published.content)
            return content
    raise DeniedError(RefusalCode.NOT_FOUND, "no study has this current document", where="study")


@public.post("/citizens", responses=_responses(403, 404, 409, 422))
def enrol_citizen(enrolment: StatementModel, centre: Service) -> StatementModel:
    """Enrol a citizen with a statement signed by the enclosed key; return a signed receipt."""
    return StatementModel(**centre.inbox.citizens.enrol(enrolment.model_dump(), centre.now()))


@public.post("/citizens/withdrawals", responses=_responses(403, 409, 422))
def withdraw_with_recovery_key(order: StatementModel, centre: Service) -> StatementModel:
    """Execute a citizen's deletion order that is signed with the recovery key."""
    return StatementModel(**centre.inbox.delete_by_recovery(order.model_dump(), centre.now()))


@signed.post("/consents", responses=_responses(401, 403, 404, 409, 422))
def consent(resource_model: ConsentModel, by: Caller, centre: Service) -> StatementModel:
    """Store a subject's study consent or general opt-in; return a signed receipt."""
    resource = resource_model.model_dump(exclude_unset=True)
    query = consent_query(resource)
    centre.inbox.citizens.check_subject(by.name, query.subject, query.study)
    receipt = receive_consent(
        centre.inbox.database, resource, by.name, by.key, centre.inbox.signer, centre.now()
    )
    return StatementModel(**receipt)


@signed.post("/uploads", status_code=201, responses=_responses(401, 403, 413, 422))
def announce(given: UploadAnnouncementModel, by: Caller, centre: Service) -> UploadModel:
    """Announce a sealed envelope by digest and size, or resume its upload."""
    quota = centre.quota_of(by)
    received_bytes = centre.uploads.announce(given.digest, given.size, by.name, centre.now(), quota=quota)
    return UploadModel(digest=given.digest, received_bytes=received_bytes)


@signed.get("/uploads/{digest}", responses=_responses(401, 404, 422))
def upload(digest: PathDigest, by: Caller, centre: Service) -> UploadModel:
    """Return the progress of an upload to the intake, and its receipt if accepted."""
    received_bytes, receipt = (
        centre.uploads.received_bytes(digest, by.name),
        centre.inbox.receipt_of(digest, by.name),
    )
    receipt_model = None if receipt is None else StatementModel(**receipt)
    return UploadModel(digest=digest, received_bytes=received_bytes, receipt=receipt_model)


@signed.put(
    "/uploads/{digest}/parts/{offset}",
    responses=_responses(401, 404, 409, 413, 422),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def append_chunk(
    digest: PathDigest,
    offset: Annotated[int, Path(ge=0, lt=2**53)],
    request: Request,
    by: Caller,
    centre: Service,
) -> UploadModel:
    """Append bytes at the end of the received bytes; another offset is refused with the right one."""
    data = await request.body()

    def work() -> UploadModel:
        try:
            received_bytes = centre.uploads.add(digest, offset, data, by.name)
        except DeniedError as error:
            if error.code is RefusalCode.OFFSET_MISMATCH:
                raise RequestRefusedError.from_denial(
                    error, received_bytes=centre.uploads.received_bytes(digest, by.name)
                ) from None
            raise
        return UploadModel(digest=digest, received_bytes=received_bytes)

    return await run_in_threadpool(work)


@signed.post("/uploads/{digest}/finish", responses=_responses(401, 403, 404, 409, 422))
def finish(digest: PathDigest, by: Caller, centre: Service) -> StatementModel:
    """Accept a complete upload; return the signed receipt once the envelope is on disk and listed."""
    return StatementModel(**centre.uploads.finish(digest, by.name, by.key, centre.now()))


@signed.delete("/uploads/{digest}", status_code=204, responses=_responses(401, 404, 422))
def abandon(digest: PathDigest, by: Caller, centre: Service) -> Response:
    """Abandon an upload to the intake and delete its bytes."""
    centre.uploads.abandon(digest, by.name)
    return Response(status_code=204)


@signed.post("/withdrawals", responses=_responses(401, 403, 409, 422))
def withdrawal(order: StatementModel, by: Caller, centre: Service) -> StatementModel:
    """Execute a signed deletion order for one subject in one study; return a signed receipt."""
    if order.signer != by.key:
        raise DeniedError(
            RefusalCode.FORGED, "the order is signed by another key than the request", where="order"
        )
    return StatementModel(**centre.inbox.delete(order.model_dump(), centre.now()))


@signed.get("/usage", responses=_responses(401))
def usage(by: Caller, centre: Service) -> UsageModel:
    """Return the caller's usage of the intake."""
    return UsageModel(sender=by.name, **asdict(centre.uploads.usage(by.name)))


_DESCRIPTION = (
    "Intake of a research centre: publishes studies, receives consents, sealed records and withdrawals, and "
    "returns signed receipts. Request signatures are specified in docs/intake.md."
)


def make_app(centre: IntakeService) -> App:
    """Return the intake's routes with their middleware as an ASGI application."""
    return IntakeMiddleware(make_api(centre), centre)


def make_api(centre: IntakeService) -> FastAPI:
    """Return the intake's routes without their middleware, for the OpenAPI document."""
    api = FastAPI(
        title="Abaton intake",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.centre = centre
    api.include_router(public)
    api.include_router(signed)
    api.add_exception_handler(DeniedError, _denied)
    api.add_exception_handler(RequestRefusedError, _refused)
    api.add_exception_handler(RequestValidationError, _malformed)
    api.add_exception_handler(HTTPException, _other)
    api.add_exception_handler(AbatonError, _failed)
    api.add_exception_handler(Exception, _failed)
    default_openapi = api.openapi

    def openapi() -> dict[str, Any]:
        document = default_openapi()
        document["components"]["schemas"]["Problem"] = ProblemDetails.model_json_schema()
        return document

    api.openapi = openapi  # type: ignore[method-assign]
    return api


def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, RequestRefusedError)
    request.scope.setdefault("state", {})["code"] = refusal.code
    return Response(refusal.body(), refusal.status, refusal.headers, MEDIA_TYPE)


def _denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, DeniedError)
    return _refused(request, RequestRefusedError.from_denial(error))


def _malformed(request: Request, error: Exception) -> Response:
    """Refuse a malformed request to an intake route without repeating its content, as FastAPI would."""
    return _denied(request, DeniedError(RefusalCode.MALFORMED, "the request is malformed"))


def _failed(request: Request, error: Exception) -> Response:
    """Report a failure of an intake route without details; type and location are logged."""
    log_failure(error)
    problem = RequestProblem.BUSY if isinstance(error, AbatonError) else RequestProblem.FAILED
    return _refused(
        request, RequestRefusedError.from_problem(problem, wait=1 if problem is RequestProblem.BUSY else 0)
    )


def _other(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # the body is not JSON
        return _malformed(request, error)
    problem = RequestProblem.NO_SUCH_METHOD if error.status_code == 405 else RequestProblem.NO_SUCH_PATH
    answer = _refused(request, RequestRefusedError.from_problem(problem))
    if error.headers:
        answer.headers.update(error.headers)
    return answer
