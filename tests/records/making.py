"""Short ways to de-identify something in a test."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from abaton.records import Consented, Deidentification, Deidentifier, Need, Pseudonyms, Record, Rule, Want

KEY = bytes(range(32))


# A ground as an audit chain would hold it, which other processes can read, too.
HELD = SimpleNamespace(words="test", chain="ab" * 32)


def maker(
    wants: tuple[Want, ...] = (), *, study: str = "heart", key: bytes = KEY, site: str = "", **wish: Any
) -> Deidentifier:
    need = Need(study, wants, Deidentification(**wish))
    return Deidentifier(need, Pseudonyms(study, key, site=site), year=2026)


def deidentify(record: dict[str, Any], wants: tuple[Want, ...] = (), **wish: Any) -> dict[str, Any]:
    made = run(maker(wants, **wish), record)
    assert made is not None
    return made


def run(make: Deidentifier, record: dict[str, Any], *, check_input: bool = True) -> dict[str, Any] | None:
    before = json.dumps(record) if check_input else ""
    made = make(Consented(Record(record), HELD))
    assert not check_input or json.dumps(record) == before, "the input was changed"
    return None if made is None else json.loads(json.dumps(made.content))


def rule(path: str, method: str, **settings: str) -> Rule:
    return Rule(path, method, tuple(settings.items()))
