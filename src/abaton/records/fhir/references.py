"""References between resources: what each of FHIR's forms points at."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from abaton.fhir.elements import resources

LITERAL = re.compile(
    r"(?:(https?://.+|[a-z][a-z0-9+.-]*:.+)/)?([A-Z][A-Za-z]+)/([^/?#|]+)(?:/_history/[^/]*)?(?:#.*)?"
)
"""A reference by type and id: the server, the type, the id; with or without a version."""
_QUERY = re.compile(r"(?:(?:https?://.+)/)?([A-Z][A-Za-z]+)\?(.+)", re.DOTALL)
SUBJECTS = ("subject", "patient", "beneficiary", "individual", "for", "candidate")
"""The elements in which a resource names the person it is about."""


def target_of(pointer: object) -> str:
    """One name for what a Reference points at, whichever form it has; empty if it points nowhere else.

    >>> target_of({"reference": "https://h/r4/Patient/1/_history/2"}), target_of({"reference": "Patient/1"})
    ('Patient/1', 'Patient/1')
    >>> target_of({"reference": "Patient?identifier=urn:x|7"})
    'identifier urn:x|7'
    """
    if not isinstance(pointer, dict):
        return ""
    reference, by = pointer.get("reference"), pointer.get("identifier")
    if isinstance(reference, str) and reference:
        match = LITERAL.fullmatch(reference) if "/" in reference else None
        if match is not None and match[2] in resources():
            return f"{match[2]}/{match[3]}"
        if (asked := by_query(reference)) is not None:
            return f"identifier {asked[1]}"
        return "" if reference.startswith("#") else reference
    if isinstance(by, dict) and isinstance(by.get("value"), str):
        return f"identifier {by.get('system') or ''}|{by['value']}"
    return ""


def by_query(reference: str) -> tuple[str, str] | None:
    """The type and the identifier in a conditional reference, if it asks for one identifier.

    >>> by_query("Patient?identifier=urn:x|7"), by_query("Patient?name=Smith")
    (('Patient', 'urn:x|7'), None)
    """
    query = _QUERY.fullmatch(reference) if "?" in reference else None
    pairs = parse_qsl(query[2]) if query else []
    return (query[1], pairs[0][1]) if query and len(pairs) == 1 and pairs[0][0] == "identifier" else None


def server_of(full_url: object) -> str:
    """The server in the address of an entry, if it has one."""
    match = LITERAL.fullmatch(full_url) if isinstance(full_url, str) else None
    return (match[1] or "") if match is not None else ""
