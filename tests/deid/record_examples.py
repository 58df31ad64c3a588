"""Helpers that de-identify records in tests."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from abaton.deid import (
    DataRequest,
    DataRequirement,
    DeidentificationRule,
    DeidentificationSettings,
    Deidentifier,
    Pseudonyms,
)
from abaton.record_types import ConsentedRecord, Record

KEY = bytes(range(32))


# A legal basis as the audit log would record it, picklable for other processes.
LEGAL_BASIS = SimpleNamespace(text="test", audit_hash="ab" * 32)


def maker(
    requirements: tuple[DataRequirement, ...] = (),
    *,
    study: str = "heart",
    key: bytes = KEY,
    site: str = "",
    **settings: Any,
) -> Deidentifier:
    request = DataRequest(study, requirements, DeidentificationSettings(**settings))
    return Deidentifier(request, Pseudonyms(study, key, site=site), year=2026)


def deidentify(
    record: dict[str, Any], requirements: tuple[DataRequirement, ...] = (), **settings: Any
) -> dict[str, Any]:
    deidentified = run(maker(requirements, **settings), record)
    assert deidentified is not None
    return deidentified


def run(
    deidentifier: Deidentifier, record: dict[str, Any], *, check_input: bool = True
) -> dict[str, Any] | None:
    before = json.dumps(record) if check_input else ""
    deidentified = deidentifier(ConsentedRecord(Record(record), LEGAL_BASIS))
    assert not check_input or json.dumps(record) == before, "the input was changed"
    return None if deidentified is None else json.loads(json.dumps(deidentified.content))


def rule(path: str, method: str, **settings: str) -> DeidentificationRule:
    return DeidentificationRule(path, method, tuple(settings.items()))
