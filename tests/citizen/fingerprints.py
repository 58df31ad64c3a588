"""What de-identification makes of documents under every setting, as fingerprints: run by CPython and in a browser.

It is text that both run; it prints nothing and knows nothing of tests.
"""

from __future__ import annotations

import hashlib
import itertools
import json

from abaton.citizen.browser_api import Phone
from abaton.errors import Refused
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.settings import Allowed, Dates, Deidentification, Mechanism, Need, Preset, Rule
from abaton.deid.pseudonyms import Pseudonyms
from abaton.fhir.json_format import dump, parse

SCRUB = (Rule("nodesByType('Narrative')", "redact"), Rule("nodesByType('string')", "scrub"))
SETTINGS = {
    f"{preset}/{dates}/{mechanism}": Deidentification(mechanism, dates=dates, preset=preset)
    for preset, dates, mechanism in itertools.product(Preset, Dates, Mechanism)
} | {
    "scrub": Deidentification(rules=SCRUB, dates=Dates.SHIFT),
    "more": Deidentification(allow=tuple(Allowed), keep_country=True),
}


def fingerprints(
    documents: dict[str, bytes], skipped: set[tuple[str, str]] | frozenset[tuple[str, str]] = frozenset()
) -> dict[str, str]:
    """For every setting and document the SHA-256 of what comes out, or the words of the refusal."""
    made = {}
    for name, wish in SETTINGS.items():
        make = Deidentifier(
            Need.everything("x", wish), Pseudonyms("x", bytes(range(32))), year=2026, trace=name == "more"
        )
        for document, raw in documents.items():
            if (name, document) not in skipped:
                made[f"{name} {document}"] = _outcome(make, raw)
        made[f"{name} tally"] = hashlib.sha256(json.dumps(make.tally().row()).encode()).hexdigest()
    return made


def _outcome(make: Deidentifier, raw: bytes) -> str:
    try:
        out = make.plain(parse(raw))
    except Refused as error:
        return str(error)
    return "nothing" if out is None else hashlib.sha256(dump(out)).hexdigest()


def page(study: str, document: str, raw: bytes) -> dict[str, str]:
    """What the page is told of a study and a file, as fingerprints."""
    phone, day = Phone(), "2026-11-17"
    told = {"study": phone.open_study(study, document, day), "file": phone.pick(raw)}
    told |= {"eligible": phone.eligible(day), "preview": phone.prepare(bytes(range(32)), day)}
    told["consents"] = phone.consents("A" * 26, "2026-11-17T09:00:00.000Z")
    told["content"] = phone.content().decode()
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in told.items()}
