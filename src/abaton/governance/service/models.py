"""The forms of what the service takes and gives, from which its OpenAPI document is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
