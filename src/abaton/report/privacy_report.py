"""The privacy report: everything a data-protection officer must see before signing, as plain data.

What a part of the system has not supplied is reported as not supplied; nothing is filled in. Words follow the
EDPB's guidelines 01/2025 on pseudonymisation: *pseudonymisation domain*, *pseudonymising secrets*.

What the tables of a privacy report show: pure functions from its data to heads and rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from abaton.errors import SettingsError
from abaton.report.run_tables import Row, Table

FORMAT = "abaton.privacy-report/1"

LIMITS = (
    "Pseudonymised data is personal data: whoever holds the pseudonymising secrets, or enough other knowledge, "
    "can find the person again.",
    "k-anonymity hides who a record belongs to among at least k people; it does not hide what a whole class has "
    "in common. Diversity and closeness limit that, for the sensitive columns named here and no others.",
    "The risks hold for the quasi-identifiers named here. An attacker who knows other columns, or has another "
    "release of the same people, may do better.",
    "Risks against a population assume that the table is a random sample of it.",
    "A released anonymous table cannot be called back. A withdrawal acts on what is still held.",
    "Free text, images and attachments are not measured by any number in this report.",
)
"""What the numbers do not promise, in plain words."""


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """What the study is for, on which legal ground, and which document says so."""

    title: str | None = None
    purpose: str | None = None
    legal_basis: str | None = None
    document_sha256: str | None = None
    controller: str | None = None


@dataclass(frozen=True, slots=True)
class Consents:
    """How many people said yes, and how many yeses are no longer in force."""

    counted: int
    in_force: int
    expired: int
    withdrawn: int


@dataclass(frozen=True, slots=True)
class Element:
    """One element of the records, how often it was met, and why it was kept or removed."""

    path: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Residual:
    """What is left in free text and attachments, counted, and what was done about it."""

    texts: int
    attachments: int
    statement: str


@dataclass(frozen=True, slots=True)
class Custody:
    """Who holds what, for how long, and who receives the data."""

    pseudonymising_secrets: str | None = None
    mapping_table: str | None = None
    pseudonymisation_domain: str | None = None
    retention: str | None = None
    recipients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checks:
    """Whether the output is valid and whether planted or known identifiers were found in it."""

    resources_validated: int
    resources_invalid: int
    identifiers_sought: int
    identifiers_found: int
    outputs_scanned: int


@dataclass(frozen=True, slots=True)
class ModelUtility:
    """What anonymisation costs the community model: its quality on original and on anonymous records."""

    measure: str
    original: float
    anonymous: float


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature over the report's digest."""

    signer: str
    algorithm: str
    value: str


@dataclass(frozen=True, slots=True)
class PrivacyInputs:
    """Everything the report may hold; ``None`` means that nobody supplied it.

    Attributes:
        anonymity: The row of an examined table (``Outcome.row()``).
        study: Purpose, legal basis and the document's hash.
        consents: Consents counted, expired, withdrawn.
        kept: Every element kept, and why.
        removed: Every element removed, with counts.
        residual: Free text and attachments that are left.
        custody: Keys, mapping table, retention, recipients.
        checks: Validation and leak scan.
        models: Change in the community model's quality.
    """

    anonymity: Mapping[str, Any] | None = None
    study: StudyFacts | None = None
    consents: Consents | None = None
    kept: tuple[Element, ...] | None = None
    removed: tuple[Element, ...] | None = None
    residual: Residual | None = None
    custody: Custody | None = None
    checks: Checks | None = None
    models: tuple[ModelUtility, ...] | None = None


def privacy_report(
    inputs: PrivacyInputs, *, software: str, made_at: str, signature: Signature | None = None
) -> dict[str, Any]:
    """The report as plain data, ready for JSON; the page is made from exactly this.

    Args:
        inputs: What the parts of the system supplied.
        software: Name and version of what made it.
        made_at: When, as ISO 8601 text; this function has no clock.
        signature: Over the report's digest, once there is one.

    Returns:
        The report with ``sha256``, the digest of everything else but the signature.

    >>> made = privacy_report(PrivacyInputs(consents=Consents(9, 7, 1, 1)), software="abaton", made_at="2026-01-01")
    >>> made["consents"]["in_force"], made["not_supplied"][:3]
    (7, ['anonymity', 'study', 'kept'])
    """
    parts = {field.name: _plain(getattr(inputs, field.name)) for field in fields(inputs)}
    content: dict[str, Any] = {
        "format": FORMAT,
        "software": software,
        "made_at": made_at,
        **parts,
        "not_supplied": [name for name, part in parts.items() if part is None],
        "limits": list(LIMITS),
    }
    return content | {"sha256": digest(content), "signature": _plain(signature)}


def inputs_from(parts: Mapping[str, Any], *, where: str = "report inputs") -> PrivacyInputs:
    """What other parts of the system supplied, from plain values such as a JSON file.

    Raises:
        SettingsError: A part or one of its fields is unknown, missing or of the wrong kind.

    >>> inputs_from({"consents": {"counted": 2, "in_force": 2, "expired": 0, "withdrawn": 0}}).consents
    Consents(counted=2, in_force=2, expired=0, withdrawn=0)
    """
    unknown = sorted(set(parts) - set(_PARTS) - set(_LISTS))
    if unknown:
        known = ", ".join(sorted({*_PARTS, *_LISTS}))
        raise SettingsError(f"'{unknown[0]}' is not a part of the report", where=where, remedy=f"use {known}")
    made: dict[str, Any] = {}
    try:
        made |= {name: kind(**parts[name]) for name, kind in _PARTS.items() if name in parts}
        made |= {
            name: tuple(kind(**row) for row in parts[name]) for name, kind in _LISTS.items() if name in parts
        }
    except TypeError as error:
        raise SettingsError(
            "a part of the report is not as expected", where=where, remedy=str(error)
        ) from None
    return PrivacyInputs(**made)


_PARTS: dict[str, Any] = {
    "study": StudyFacts,
    "consents": Consents,
    "residual": Residual,
    "custody": Custody,
    "checks": Checks,
}
_LISTS: dict[str, Any] = {"kept": Element, "removed": Element, "models": ModelUtility}
PARTS = (*_PARTS, *_LISTS)
"""The parts of a report that can be supplied."""


def digest(report: Mapping[str, Any]) -> str:
    """The SHA-256 of a report's content, whatever the order of its keys; the signature is made over it."""
    content = {key: value for key, value in report.items() if key not in ("sha256", "signature")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(part: Any) -> Any:
    if part is None or isinstance(part, Mapping):
        return part
    return [asdict(item) for item in part] if isinstance(part, tuple) else asdict(part)


Anonymity = Mapping[str, Any]
"""The row of an examined table."""


def quasi_table(row: Anonymity) -> Table:
    """The quasi-identifiers and the level at which each is shown."""
    rows: list[Row] = [
        (q["column"], "differs" if row["node"] is None else q["level"], q["height"], q["names"])
        for q in row["quasi_identifiers"]
    ]
    return ("column", "level shown", "highest level", "different names shown"), rows


def sensitive_table(row: Anonymity) -> Table:
    """What is asked of every class for each sensitive column."""
    return ("column", "asked of every class"), [(s["column"], _asked(s)) for s in row["asked"]["sensitive"]]


def _asked(sensitive: Mapping[str, Any]) -> str:
    wishes = []
    if diversity := sensitive["diversity"]:
        c = f", c = {diversity['c']:g}" if diversity["kind"] == "recursive" else ""
        wishes.append(f"{diversity['kind']} l-diversity, l = {diversity['l']}{c}")
    if closeness := sensitive["closeness"]:
        wishes.append(f"t-closeness, t = {closeness['t']:g}, {closeness['distance']} distance")
    return "; ".join(wishes) or "nothing"


def reached_table(row: Anonymity) -> Table:
    """What anonymity there was before, and what there is after."""
    before, after = row["before"], row["after"] or {}
    rows: list[Row] = [(words, before[key], after.get(key)) for key, words in _REACHED.items()]
    for i, old in enumerate(before["sensitive"]):
        new = after["sensitive"][i] if after.get("sensitive") else {}
        # No c is large enough where a class has fewer than l values.
        old, new = (m | {"recursive_c": m.get("recursive_c") or "none"} for m in (old, new))
        rows += [(f"{old['column']}: {words}", old[key], new.get(key)) for key, words in _SENSITIVE.items()]
    return ("what", "before", "after"), rows


def class_sizes(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The histogram of class sizes: for each bar its sizes, classes, people and their share."""
    bars = measured["histogram"]
    total = max(sum(people for _, _, people in bars), 1)
    ends = [f"–{nxt[0] - 1}" if nxt[0] - 1 > bar[0] else "" for bar, nxt in pairwise(bars)]
    return [
        {"sizes": f"{low}{end}", "classes": classes, "people": people, "share": people / total}
        for (low, classes, people), end in zip(bars, [*ends, " and more"], strict=True)
    ]


def risk_table(row: Anonymity) -> Table:
    """The risks of re-identification before and after."""
    return ("risk", "before", "after"), _both(row, "risk", _RISKS)


def risk_words(row: Anonymity) -> str:
    """Against which population the risks hold."""
    asked = row["asked"]
    if asked["population"] is not None:
        return f"a population of {asked['population']:,} people"
    if asked["sampling_fraction"] is not None:
        return f"a sample of {asked['sampling_fraction']:.4%} of the population"
    return "no stated population (journalist risk cannot be given; marketer risk is that of the table)"


def utility_table(row: Anonymity) -> Table:
    """What anonymity costs."""
    return ("measure", "before", "after"), _both(row, "utility", _UTILITY)


def quality_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """How good the community model is on original and on anonymous records."""
    rows: list[Row] = [
        (m["measure"], m["original"], m["anonymous"], m["anonymous"] - m["original"]) for m in models
    ]
    return ("measure", "original records", "anonymous records", "change"), rows


def _both(row: Anonymity, part: str, names: Mapping[str, str]) -> list[Row]:
    before, after = row["before"][part], (row["after"] or {}).get(part, {})
    return [(words, before[key], after.get(key)) for key, words in names.items()]


_REACHED = {
    "holds": "satisfies the study",
    "records": "records shown",
    "suppressed": "records left out",
    "people": "people shown",
    "people_left_out": "people left out",
    "classes": "classes",
    "k": "k: smallest class",
}
_SENSITIVE = {
    "distinct": "l, distinct values",
    "entropy": "l, effective values (entropy)",
    "recursive_c": "c of recursive diversity",
    "equal": "t, equal distance",
    "ordered": "t, ordered distance",
    "certain": "most certain guess",
}
_RISKS = {
    "prosecutor_highest": "prosecutor, highest (1 / smallest class)",
    "prosecutor_average": "prosecutor, average (classes / people)",
    "journalist_highest": "journalist, highest",
    "journalist_average": "journalist, average",
    "marketer": "marketer, average",
    "unique": "share of unique people (alone in their class)",
    "below_2": "share of people in classes below 2",
    "below_5": "share of people in classes below 5",
    "below_11": "share of people in classes below 11",
}
_UTILITY = {
    "loss": "loss (0 nothing, 1 everything)",
    "ncp": "normalised certainty penalty",
    "discernibility": "discernibility",
    "average_class_size": "average class size in multiples of k",
}
