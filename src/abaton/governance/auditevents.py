"""Audit entries as FHIR AuditEvent resources, for those who collect them with other systems' trails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPE = "http://terminology.hl7.org/CodeSystem/audit-event-type"
_ENTITY = "http://terminology.hl7.org/CodeSystem/audit-entity-type"
_ROLE = "http://terminology.hl7.org/CodeSystem/object-role"
_OURS = "urn:abaton:audit"
_CREATES = ("enrolled", "opted-in", "published", "received", "queued", "added", "started")
_DELETES = ("deleted", "destroyed", "withdrawn", "expired", "opted-out", "left")


def audit_event(entry: Mapping[str, Any], observer: str) -> dict[str, Any]:
    """One entry of the chain as an AuditEvent (R4).

    Args:
        entry: The entry as it was written.
        observer: The name of the service whose chain it is.
    """
    action, done = str(entry["action"]), entry["outcome"] == "done"
    entities = [_entity(1, 1, entry["about"], "subject")] if entry["about"] else []
    if entry["study"]:
        entities.append(_entity(2, 24, entry["study"], "study"))
    details = [{"type": key, "valueString": str(value)} for key, value in sorted(entry["detail"].items())]
    if details:
        entities.append({"what": _identified("entry", str(entry["sequence"])), "detail": details})
    event = {
        "resourceType": "AuditEvent",
        "id": f"audit-{entry['sequence']}",
        "type": {"system": _TYPE, "code": "rest", "display": "RESTful Operation"},
        "subtype": [{"system": _OURS, "code": action}],
        "action": _code(action),
        "recorded": entry["at"],
        "outcome": "0" if done else "4",
        "agent": [{"who": _identified("actor", entry["actor"] or "service"), "requestor": True}],
        "source": {"observer": {"display": observer}},
    }
    if not done:
        event["outcomeDesc"] = entry["outcome"]
    return {**event, "entity": entities} if entities else event


def _code(action: str) -> str:
    if action.endswith(_CREATES):
        return "C"
    return "D" if action.endswith(_DELETES) else "E"


def _entity(kind: int, role: int, value: str, name: str) -> dict[str, Any]:
    return {
        "what": _identified(name, value),
        "type": {"system": _ENTITY, "code": str(kind)},
        "role": {"system": _ROLE, "code": str(role)},
    }


def _identified(name: str, value: str) -> dict[str, Any]:
    return {"identifier": {"system": f"{_OURS}:{name}", "value": value}}
