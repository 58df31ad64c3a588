"""Digests of de-identified documents under every setting, computed by CPython and in a browser.

Both run this file as text; it prints nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json

from abaton.citizen.browser_api import BrowserApi
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import (
    DataRequest,
    DateHandling,
    DeidentificationRule,
    DeidentificationSettings,
    Mechanism,
    RuleOptIn,
    RulePreset,
)
from abaton.errors import RefusedError
from abaton.fhir.json_format import dump, parse

SCRUB = (
    DeidentificationRule("nodesByType('Narrative')", "redact"),
    DeidentificationRule("nodesByType('string')", "scrub"),
)
SETTINGS = {
    f"{preset}/{dates}/{mechanism}": DeidentificationSettings(mechanism, dates=dates, preset=preset)
    for preset, dates, mechanism in itertools.product(RulePreset, DateHandling, Mechanism)
} | {
    "scrub": DeidentificationSettings(rules=SCRUB, dates=DateHandling.SHIFT),
    "more": DeidentificationSettings(opt_ins=tuple(RuleOptIn), keep_country=True),
}


def fingerprints(
    documents: dict[str, bytes], skipped: set[tuple[str, str]] | frozenset[tuple[str, str]] = frozenset()
) -> dict[str, str]:
    """Return, for every setting and document, the SHA-256 of the output, or the text of the refusal."""
    digests = {}
    for name, settings in SETTINGS.items():
        deidentifier = Deidentifier(
            DataRequest.everything("x", settings),
            Pseudonyms("x", bytes(range(32))),
            year=2026,
            trace=name == "more",
        )
        for document, raw in documents.items():
            if (name, document) not in skipped:
                digests[f"{name} {document}"] = _outcome(deidentifier, raw)
        digests[f"{name} tally"] = hashlib.sha256(
            json.dumps(deidentifier.take_counts().row()).encode()
        ).hexdigest()
    return digests


def _outcome(deidentifier: Deidentifier, raw: bytes) -> str:
    try:
        output = deidentifier.deidentify_content(parse(raw))
    except RefusedError as error:
        return str(error)
    return "nothing" if output is None else hashlib.sha256(dump(output)).hexdigest()


def page(study: str, document: str, raw: bytes) -> dict[str, str]:
    """Return digests of all results for the page for a study and a file."""
    api, day = BrowserApi(), "2026-11-17"
    results = {"study": api.open_study(study, document, day), "file": api.add_file(raw)}
    results |= {"eligible": api.check_eligibility(day), "preview": api.prepare_records(bytes(range(32)), day)}
    results["consents"] = api.consents("A" * 26, "2026-11-17T09:00:00.000Z")
    results["content"] = api.content().decode()
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in results.items()}
