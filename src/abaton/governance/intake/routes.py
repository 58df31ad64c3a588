"""What can be asked of the service, in which form, and how it is put together: routes, and the gate before them.

The OpenAPI document is made from the forms; nothing may stand in them but what is named.
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
from abaton.governance.external_consent import ask_of, take_consent
from abaton.governance.intake.intake_service import Caller, Centre
from abaton.governance.intake.middleware import MEDIA_TYPE, Guard, Problem, Refusal, Trouble, log_failure
from abaton.governance.identifiers import Denied, RefusalCode
from abaton.http_server import App

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="A SHA-256 fingerprint.")]
Tag = Annotated[str, Field(pattern="^[A-Z2-7]{26}$", description="A person's tag.")]
Size = Annotated[int, Field(ge=0, lt=2**53)]


class Form(BaseModel):
    """A form in which nothing may stand but what is named."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Statement(Form):
    """A signed statement; what its body says depends on its kind (docs/intake.md)."""

    format: Literal["abaton-statement/1"]
    kind: Annotated[str, Field(max_length=64)]
    body: dict[str, Any]
    signer: Annotated[str, Field(max_length=64, examples=["ed25519:ABCDEFGHIJKLMNOPQRSTUVWXYZ"])]
    signature: Annotated[str, Field(max_length=128, description="Ed25519, base64.")]


class Health(Form):
    """Whether the service works."""

    status: Literal["ok"] = "ok"


class Room(Form):
    """The limits of the service, so that a sender can keep to them."""

    part_bytes: int
    upload_bytes: int
    open_uploads: int
    total_bytes: int


class CentreKeys(Form):
    """The centre's public keys and limits. Compare the fingerprints with those that the centre reads out."""

    keys: dict[str, Any] = Field(description="A public key file (abaton-keys/1).")
    limits: Room


class StudyLine(Form):
    """A published study."""

    study: str
    document: Digest
    version: int
    published: str
    ends: str = Field(description="Empty if not stated.")
    open: bool


class Studies(Form):
    """All published studies, each with its current document."""

    studies: list[StudyLine]


class Announcement(Form):
    """An upload that is about to begin."""

    digest: Digest
    size: Annotated[int, Field(ge=1, lt=2**53)]


class Upload(Form):
    """How far an upload has come; with its receipt if it was taken."""

    digest: Digest
    received: Size
    receipt: Statement | None = None


class Account(Form):
    """What the caller has at the centre."""

    sender: str
    envelopes: Size
    bytes: Size
    open: Size
    open_bytes: Size


class Consent(BaseModel):
    """A FHIR R4 Consent: codes, dates, addresses and the person's tag, and no free text."""

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


_MEANINGS = {
    401: "Not signed, by nobody known, not for this, not now, or not for the first time.",
    403: "Refused: no consent in force, not the caller's, forged, or no room left.",
    404: "There is no such thing here.",
    408: "The request did not arrive in time.",
    409: "It does not follow on what is there: out of step, used before, or another document.",
    413: "Larger than the limits.",
    422: "Not of the form that is taken, changed on its way, or sealed to a key that is not taken.",
    429: "Too many requests; see Retry-After.",
    500: "The service failed; everything can be repeated without harm.",
    503: "The service has too much to do; see Retry-After.",
}
_ALWAYS = (408, 413, 429, 500, 503)


def _answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    form = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    return {status: {"description": _MEANINGS[status], **form} for status in sorted({*statuses, *_ALWAYS})}


class Signed(SecurityBase):
    """Requests are signed by a site's Ed25519 key (RFC 9421, docs/intake.md); the gate has checked it already."""

    def __init__(self) -> None:
        self.model = HTTPBase(scheme="Signature", description="RFC 9421 with Ed25519; see docs/intake.md.")
        self.scheme_name = "Signature"

    async def __call__(self, request: Request) -> Caller:
        """Who signed the request."""
        caller: Caller = request.state.caller
        return caller


By = Annotated[Caller, Security(Signed())]
InPath = Annotated[Digest, Path()]


def _centre(request: Request) -> Centre:
    centre: Centre = request.app.state.centre
    return centre


At = Annotated[Centre, Depends(_centre)]
public = APIRouter(prefix="/v1", tags=["public"])
signed = APIRouter(prefix="/v1", tags=["signed"])


@public.get("/health", responses=_answers())
def health(centre: At) -> Health:
    """Whether the service and its database work."""
    centre.inbox.senders.find("nobody")
    return Health()


@public.get("/centre", responses=_answers())
def keys(centre: At) -> CentreKeys:
    """The centre's public keys and limits."""
    limits, room = centre.limits, centre.limits.room
    told = Room(
        part_bytes=limits.part, upload_bytes=room.upload, open_uploads=room.open, total_bytes=room.total
    )
    return CentreKeys(keys=centre.inbox.ring.row(), limits=told)


@public.get("/studies", responses=_answers())
def studies(centre: At) -> Studies:
    """The published studies."""
    now = centre.now()
    names = ("study", "document", "version", "published", "ends")
    found = centre.inbox.registry.studies()
    return Studies(
        studies=[
            StudyLine(**{name: getattr(one, name) for name in names}, open=one.is_open(now)) for one in found
        ]
    )


@public.get("/studies/{document}", responses=_answers(404, 422))
def study(document: InPath, centre: At) -> dict[str, Any]:
    """A study document, by its fingerprint; the current one of its study."""
    for found in centre.inbox.registry.studies():
        if found.document == document:
            content: dict[str, Any] = json.loads(found.content)
            return content
    raise Denied(RefusalCode.NOT_FOUND, "there is no such study document", where="study")


@public.post("/persons", responses=_answers(403, 404, 409, 422))
def person(enrolment: Statement, centre: At) -> Statement:
    """Enrol a person who takes part with a key of their own: signed with that very key, a signed receipt out."""
    return Statement(**centre.inbox.persons.enrol(enrolment.model_dump(), centre.now()))


@public.post("/persons/withdrawals", responses=_answers(403, 409, 422))
def recovery(order: Statement, centre: At) -> Statement:
    """Carry out a person's deletion order that was signed with the key on paper, on whatever device."""
    return Statement(**centre.inbox.delete_by_recovery(order.model_dump(), centre.now()))


@signed.post("/consents", responses=_answers(401, 403, 404, 409, 422))
def consent(given: Consent, by: By, centre: At) -> Statement:
    """Enrol a person, or note their wish to be told of studies: a FHIR Consent in, a signed receipt out."""
    resource = given.model_dump(exclude_unset=True)
    about = ask_of(resource)
    centre.inbox.persons.check(by.name, about.subject, about.study)
    receipt = take_consent(
        centre.inbox.database, resource, by.name, by.key, centre.inbox.signer, centre.now()
    )
    return Statement(**receipt)


@signed.post("/uploads", status_code=201, responses=_answers(401, 403, 413, 422))
def announce(given: Announcement, by: By, centre: At) -> Upload:
    """Announce a sealed envelope by fingerprint and size; it goes on from where it stands."""
    room = centre.room_of(by)
    received = centre.uploads.announce(given.digest, given.size, by.name, centre.now(), room=room)
    return Upload(digest=given.digest, received=received)


@signed.get("/uploads/{digest}", responses=_answers(401, 404, 422))
def upload(digest: InPath, by: By, centre: At) -> Upload:
    """How far an upload has come, and its receipt if it was taken."""
    received, receipt = centre.uploads.received(digest, by.name), centre.inbox.settled(digest, by.name)
    told = None if receipt is None else Statement(**receipt)
    return Upload(digest=digest, received=received, receipt=told)


@signed.put(
    "/uploads/{digest}/parts/{offset}",
    responses=_answers(401, 404, 409, 413, 422),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def part(
    digest: InPath, offset: Annotated[int, Path(ge=0, lt=2**53)], request: Request, by: By, centre: At
) -> Upload:
    """Add bytes at the place where the upload stands; elsewhere, the answer tells where that is."""
    data = await request.body()

    def work() -> Upload:
        try:
            received = centre.uploads.add(digest, offset, data, by.name)
        except Denied as error:
            if error.code is RefusalCode.OUT_OF_STEP:
                raise Refusal.of(error, received=centre.uploads.received(digest, by.name)) from None
            raise
        return Upload(digest=digest, received=received)

    return await run_in_threadpool(work)


@signed.post("/uploads/{digest}/finish", responses=_answers(401, 403, 404, 409, 422))
def finish(digest: InPath, by: By, centre: At) -> Statement:
    """Have a complete upload taken: the signed receipt, given when the envelope is on disk and on the list."""
    return Statement(**centre.uploads.finish(digest, by.name, by.key, centre.now()))


@signed.delete("/uploads/{digest}", status_code=204, responses=_answers(401, 404, 422))
def give_up(digest: InPath, by: By, centre: At) -> Response:
    """Give an upload up; its bytes are deleted."""
    centre.uploads.give_up(digest, by.name)
    return Response(status_code=204)


@signed.post("/withdrawals", responses=_answers(401, 403, 409, 422))
def withdrawal(order: Statement, by: By, centre: At) -> Statement:
    """Carry out a signed deletion order: everything of one person in one study goes, and a receipt is signed."""
    if order.signer != by.key:
        raise Denied(RefusalCode.FORGED, "the order is not by the one who brings it", where="order")
    return Statement(**centre.inbox.delete(order.model_dump(), centre.now()))


@signed.get("/account", responses=_answers(401))
def account(by: By, centre: At) -> Account:
    """What the caller has here."""
    return Account(sender=by.name, **asdict(centre.uploads.account(by.name)))


_ABOUT = (
    "The intake of a research centre. It publishes studies, takes consents, sealed records and withdrawals, "
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
    return _denied(request, Denied(RefusalCode.MALFORMED, "the request is not of the form that is taken"))


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
