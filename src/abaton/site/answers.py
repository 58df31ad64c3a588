"""Answers of a FHIR server: what they may be, and what may be said of one that is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from abaton.errors import AbatonError, Refused
from abaton.fhir.json_format import parse

MAX_PAGE = 64 * 1024 * 1024
FHIR_JSON = ("application/fhir+json", "application/json", "application/json+fhir")
NDJSON = ("application/fhir+ndjson", "application/ndjson", "application/x-ndjson", "application/octet-stream")
_WORD = re.compile(r"[A-Za-z$._-]{0,40}|[rRvV]\d{1,2}")
_CODES = {
    "invalid", "structure", "required", "value", "invariant", "security", "login", "unknown", "expired",
    "forbidden", "suppressed", "processing", "not-supported", "duplicate", "multiple-matches", "not-found",
    "deleted", "too-long", "code-invalid", "extension", "too-costly", "business-rule", "conflict",
    "transient", "lock-error", "no-store", "exception", "timeout", "incomplete", "throttled",
    "informational",
}  # fmt: skip


class ServerError(AbatonError):
    """A FHIR server does not give what it was asked for."""

    status: int = 0
    """The HTTP status that was answered, if one was."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered: status, headers and a body within the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address.

    >>> origin("https://fhir.example/r4") == origin("https://fhir.example:443/other")
    True
    """
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
        return scheme, host, parts.port or {"https": 443, "http": 80}.get(scheme, 0)
    except ValueError:
        return "", "", 0


def place_of(url: str) -> str:
    """An address as an error may show it: without its query and without what may be somebody's number.

    >>> place_of("https://fhir.example/r4/Patient/4711/Observation?name=x")
    'https://fhir.example:443/r4/Patient/…/Observation'
    """
    scheme, host, port = origin(url)
    path = urlsplit(url).path if host else ""
    return f"{scheme}://{host}:{port}" + "/".join(_harmless(part) for part in path.split("/"))


def _harmless(part: str) -> str:
    return part if _WORD.fullmatch(part) else "…"


def expect(headers: Mapping[str, str], types: tuple[str, ...], url: str) -> None:
    """Refuse an answer of another kind of content than was asked for."""
    found = headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in types:
        raise ServerError(
            "the server answers with another kind of content than FHIR JSON",
            where=place_of(url),
            remedy="check records.url: this may be a web page",
        )


def document(answer: Answer, url: str) -> dict[str, Any]:
    """The FHIR document in an answer, or a refusal."""
    expect(answer.headers, FHIR_JSON, url)
    return parse(answer.body, where=place_of(url), limit=MAX_PAGE)


def outcome_codes(body: bytes) -> str:
    """The codes of an OperationOutcome, which are from a fixed list; its text may hold content and stays."""
    try:
        content = parse(body, limit=1 << 20)
    except Refused:
        return ""
    issues = content.get("issue") if content.get("resourceType") == "OperationOutcome" else None
    listed = issues if isinstance(issues, list) else []
    known = sorted({str(each.get("code")) for each in listed if isinstance(each, dict)} & _CODES)
    return f" ({', '.join(known)})" if known else ""
