"""The gate before a study: only what somebody has agreed to passes; what does not is counted by reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from abaton.governance.consents import Ask, Reason
from abaton.governance.registry import Registry
from abaton.records.stages import Consented, Record

_PATIENT = re.compile(r"(?:.*/)?Patient/([A-Za-z0-9.-]{1,64})(?:/_history/[A-Za-z0-9.-]{1,64})?\Z")
_ABOUT = ("subject", "patient", "individual", "beneficiary", "for", "member", "who")
_DEEPEST = 64

Asked = Callable[[str, str], Reason]
"""Whether a person's consent is in force for a type of resource: (patient id, resource type)."""


@dataclass(slots=True)
class Gate:
    """A gate for one study and one purpose at one moment.

    Args:
        ask: The answer of the registry for a patient id and a resource type.
        ground: What is written on what passes, such as the study and its document's fingerprint.

    >>> gate = Gate(lambda patient, kind: Reason.IN_FORCE if patient == "1" else Reason.ABSENT, "study heart")
    >>> [len(list(gate([Record({"resourceType": "Patient", "id": i})]))) for i in ("1", "2")]
    [1, 0]
    >>> gate.refused
    Counter({<Reason.ABSENT: 'absent'>: 1})
    """

    ask: Asked
    ground: str
    passed: int = 0
    refused: Counter[Reason] = field(default_factory=Counter)

    def __call__(self, records: Iterable[Record]) -> Iterator[Consented]:
        """The records that may be used, in order."""
        for record in records:
            reason = self.reason(record)
            if reason.allows:
                self.passed += 1
                yield Consented.on_ground(record, self.ground)
            else:
                self.refused[reason] += 1

    def reason(self, record: Record) -> Reason:
        """Whether a record may be used: everybody in it must have agreed to every type of resource in it."""
        found = people(record.content)
        if found is None:
            return Reason.UNCLEAR
        if not found:
            return Reason.NO_SUBJECT
        for patient in sorted(found):
            for kind in sorted(kinds(record.content)):
                reason = self.ask(patient, kind)
                if not reason.allows:
                    return reason
        return Reason.IN_FORCE


def study_gate(registry: Registry, ask: Ask, when: datetime, tag_of: Callable[[str], str]) -> Gate:
    """The gate of a registry for one study, action and moment.

    Args:
        registry: The consents.
        ask: The study, the fingerprint of its document and the action; its person and type do not matter.
        when: The moment.
        tag_of: The tag of a person by the id of the Patient resource.
    """
    known: dict[tuple[str, str], Reason] = {}

    def answer(patient: str, kind: str) -> Reason:
        if (patient, kind) not in known:
            asked = Ask(tag_of(patient), ask.study, ask.document, ask.action, kind)
            known[patient, kind] = registry.reason(asked, when)
        return known[patient, kind]

    return Gate(answer, f"consent to study {ask.study}, document {ask.document}")


def kinds(resource: dict[str, Any]) -> set[str]:
    """The resource types in a record, those inside a Bundle included."""
    return {r["resourceType"] for r in _resources(resource) if isinstance(r.get("resourceType"), str)} or {""}


def people(resource: dict[str, Any]) -> set[str] | None:
    """The ids of all patients in a record, or nothing if it is not clear whom it is about."""
    addresses: dict[str, str] = {}
    found: set[str] = set()
    for entry in _list(resource.get("entry")) if resource.get("resourceType") == "Bundle" else []:
        inner = entry.get("resource") if isinstance(entry, dict) else None
        if isinstance(inner, dict) and isinstance(entry.get("fullUrl"), str):
            addresses[entry["fullUrl"]] = f"{inner.get('resourceType')}/{inner.get('id')}"
    for part in _resources(resource):
        if part.get("resourceType") == "Patient":
            if not isinstance(part.get("id"), str):
                return None
            found.add(part["id"])
        for name in _ABOUT:
            for about in _list(part.get(name)):
                if not _add(about, addresses, found):
                    return None
    return found


def _add(about: Any, addresses: dict[str, str], found: set[str]) -> bool:
    """Note the patient that a reference names; a reference that may or may not be to a patient is not clear."""
    if not isinstance(about, dict) or about.get("type") not in (None, "Patient"):
        return True
    reference = about.get("reference")
    if not isinstance(reference, str):
        return "identifier" not in about and "display" not in about  # somebody, but who?
    reference = addresses.get(reference, reference)
    match = _PATIENT.match(reference)
    if match:
        found.add(match.group(1))
        return True
    return not reference.startswith(("urn:", "Patient?", "Patient/"))


def _resources(resource: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """A resource and all that are inside it: contained ones and the entries of a Bundle."""
    if not isinstance(resource, dict) or depth > _DEEPEST:
        return
    yield resource
    for inner in _list(resource.get("contained")):
        yield from _resources(inner, depth + 1)
    if resource.get("resourceType") == "Bundle":
        for entry in _list(resource.get("entry")):
            yield from _resources(entry.get("resource") if isinstance(entry, dict) else None, depth + 1)


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
