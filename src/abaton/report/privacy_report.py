"""Privacy report for a data-protection officer as JSON values, and its tables.

Sections that were not supplied are reported as not supplied. Terms follow the EDPB's guidelines 01/2025 on
pseudonymisation: *pseudonymisation domain*, *pseudonymising secrets*.
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

LIMITATIONS = (
    "Pseudonymised data is personal data: it can be attributed to a person with the pseudonymising secrets or with "
    "additional information.",
    "k-anonymity prevents the attribution of a record to fewer than k subjects; it does not protect values that are "
    "common to an equivalence class. l-diversity and t-closeness limit that for the sensitive columns listed here.",
    "The risks refer to the quasi-identifiers listed here. An attacker who knows other columns, or another release of "
    "the same subjects, may achieve more.",
    "Risks in a population assume that the table is a random sample of it.",
    "A released anonymous table cannot be recalled. A withdrawal applies to data that is still held.",
    "Free text, images and attachments are not covered by the numbers of this report.",
)
"""Limitations of the numbers."""


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """Purpose and legal basis of the study, and the hash of its document."""

    title: str | None = None
    purpose: str | None = None
    legal_basis: str | None = None
    document_sha256: str | None = None
    data_controller: str | None = None


@dataclass(frozen=True, slots=True)
class ConsentSummary:
    """Number of consents, and how many are in force, expired or withdrawn."""

    counted: int
    in_force: int
    expired: int
    withdrawn: int


@dataclass(frozen=True, slots=True)
class PrivacyElement:
    """Element of the records with its count and the reason for which it was kept or removed."""

    path: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class ResidualSummary:
    """Number of remaining free texts and attachments, and how they were handled."""

    texts: int
    attachments: int
    statement: str


@dataclass(frozen=True, slots=True)
class CustodySummary:
    """Custodians, retention and recipients of the data."""

    pseudonymising_secrets: str | None = None
    mapping_table: str | None = None
    pseudonymisation_domain: str | None = None
    retention: str | None = None
    recipients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """Validity of the output, and known identifiers found in it."""

    resources_validated: int
    resources_invalid: int
    identifiers_sought: int
    identifiers_found: int
    outputs_scanned: int


@dataclass(frozen=True, slots=True)
class ModelUtility:
    """Metric of the community model on original and on anonymised records."""

    metric: str
    original: float
    anonymised: float


@dataclass(frozen=True, slots=True)
class Signature:
    """Signature over the report's digest."""

    signer: str
    algorithm: str
    value: str


@dataclass(frozen=True, slots=True)
class PrivacyInputs:
    """Sections of the report; ``None`` is a section that was not supplied.

    Attributes:
        anonymity: Examination of a table (``TableExamination.row()``).
        study: Purpose, legal basis and hash of the document.
        consents: Consents counted, in force, expired, withdrawn.
        retained: Elements kept, with reasons.
        removed: Elements removed, with reasons.
        residual: Remaining free texts and attachments.
        custody: Keys, mapping table, retention, recipients.
        checks: Validation and search for residual identifiers.
        models: Metrics of the community model on original and anonymised records.
    """

    anonymity: Mapping[str, Any] | None = None
    study: StudyFacts | None = None
    consents: ConsentSummary | None = None
    retained: tuple[PrivacyElement, ...] | None = None
    removed: tuple[PrivacyElement, ...] | None = None
    residual: ResidualSummary | None = None
    custody: CustodySummary | None = None
    checks: CheckSummary | None = None
    models: tuple[ModelUtility, ...] | None = None


def make_privacy_report(
    inputs: PrivacyInputs, *, software: str, created: str, signature: Signature | None = None
) -> dict[str, Any]:
    """Return the privacy report as JSON values, the source of its page.

    Args:
        inputs: Supplied sections.
        software: Name and version of the software.
        created: Time of creation as ISO 8601 text.
        signature: Signature over the report's digest.

    Returns:
        The report with ``sha256``, the digest of its content without the signature.

    >>> inputs = PrivacyInputs(consents=ConsentSummary(9, 7, 1, 1))
    >>> report = make_privacy_report(inputs, software="abaton", created="2026-01-01")
    >>> report["consents"]["in_force"], report["not_supplied"][:3]
    (7, ['anonymity', 'study', 'retained'])
    """
    sections = {field.name: _to_json(getattr(inputs, field.name)) for field in fields(inputs)}
    content: dict[str, Any] = {
        "format": FORMAT,
        "software": software,
        "created": created,
        **sections,
        "not_supplied": [name for name, section in sections.items() if section is None],
        "limitations": list(LIMITATIONS),
    }
    return content | {"sha256": digest(content), "signature": _to_json(signature)}


def inputs_from(sections: Mapping[str, Any], *, where: str = "report inputs") -> PrivacyInputs:
    """Return the sections of a privacy report from JSON values.

    Raises:
        SettingsError: A section or a field is unknown, missing or of the wrong type.

    >>> inputs_from({"consents": {"counted": 2, "in_force": 2, "expired": 0, "withdrawn": 0}}).consents
    ConsentSummary(counted=2, in_force=2, expired=0, withdrawn=0)
    """
    unknown = sorted(set(sections) - set(_SECTIONS) - set(_LIST_SECTIONS))
    if unknown:
        known = ", ".join(sorted({*_SECTIONS, *_LIST_SECTIONS}))
        raise SettingsError(
            f"'{unknown[0]}' is not a section of the report", where=where, remedy=f"use {known}"
        )
    inputs: dict[str, Any] = {}
    try:
        inputs |= {
            name: section_type(**sections[name])
            for name, section_type in _SECTIONS.items()
            if name in sections
        }
        inputs |= {
            name: tuple(section_type(**row) for row in sections[name])
            for name, section_type in _LIST_SECTIONS.items()
            if name in sections
        }
    except TypeError as error:
        raise SettingsError(
            "a section of the report has missing or unknown fields", where=where, remedy=str(error)
        ) from None
    return PrivacyInputs(**inputs)


_SECTIONS: dict[str, Any] = {
    "study": StudyFacts,
    "consents": ConsentSummary,
    "residual": ResidualSummary,
    "custody": CustodySummary,
    "checks": CheckSummary,
}
_LIST_SECTIONS: dict[str, Any] = {
    "retained": PrivacyElement,
    "removed": PrivacyElement,
    "models": ModelUtility,
}
SECTIONS = (*_SECTIONS, *_LIST_SECTIONS)
"""Sections of a report that can be supplied."""


def digest(report: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a privacy report's content, independent of the order of keys, for signatures."""
    content = {key: value for key, value in report.items() if key not in ("sha256", "signature")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _to_json(section: Any) -> Any:
    if section is None or isinstance(section, Mapping):
        return section
    return [asdict(entry) for entry in section] if isinstance(section, tuple) else asdict(section)


Anonymity = Mapping[str, Any]
"""Examination of a table as JSON values."""


def quasi_table(row: Anonymity) -> Table:
    """Return the privacy report's table of quasi-identifiers and the level of each."""
    rows: list[Row] = [
        (
            quasi_identifier["column"],
            "varies" if row["node"] is None else quasi_identifier["level"],
            quasi_identifier["height"],
            quasi_identifier["names"],
        )
        for quasi_identifier in row["quasi_identifiers"]
    ]
    return ("column", "level", "highest level", "distinct values"), rows


def sensitive_table(row: Anonymity) -> Table:
    """Return the privacy report's table of privacy models of each sensitive column."""
    return ("column", "required of every equivalence class"), [
        (sensitive["column"], _privacy_models(sensitive)) for sensitive in row["settings"]["sensitive"]
    ]


def _privacy_models(sensitive: Mapping[str, Any]) -> str:
    models = []
    if diversity := sensitive["diversity"]:
        c = f", c = {diversity['c']:g}" if diversity["kind"] == "recursive" else ""
        models.append(f"{diversity['kind']} l-diversity, l = {diversity['l']}{c}")
    if closeness := sensitive["closeness"]:
        models.append(f"t-closeness, t = {closeness['t']:g}, {closeness['distance']} distance")
    return "; ".join(models) or "none"


def anonymity_table(row: Anonymity) -> Table:
    """Return the privacy report's table of anonymity before and after."""
    before, after = row["before"], row["after"] or {}
    rows: list[Row] = [(label, before[key], after.get(key)) for key, label in _ANONYMITY_LABELS.items()]
    for i, old in enumerate(before["sensitive"]):
        new = after["sensitive"][i] if after.get("sensitive") else {}
        # No c suffices where a class has fewer than l values.
        old, new = (m | {"recursive_c": m.get("recursive_c") or "none"} for m in (old, new))
        rows += [
            (f"{old['column']}: {label}", old[key], new.get(key)) for key, label in _SENSITIVE_LABELS.items()
        ]
    return ("metric", "before", "after"), rows


def class_sizes(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the privacy report's histogram of class sizes: sizes, classes, subjects, fraction of each bar."""
    bars = measured["histogram"]
    total = max(sum(subjects for _, _, subjects in bars), 1)
    ends = [f"–{nxt[0] - 1}" if nxt[0] - 1 > bar[0] else "" for bar, nxt in pairwise(bars)]
    return [
        {"sizes": f"{low}{end}", "classes": classes, "subjects": subjects, "fraction": subjects / total}
        for (low, classes, subjects), end in zip(bars, [*ends, " and more"], strict=True)
    ]


def risk_table(row: Anonymity) -> Table:
    """Return the privacy report's table of re-identification risks before and after."""
    return ("risk", "before", "after"), _before_and_after(row, "risk", _RISK_LABELS)


def population_text(row: Anonymity) -> str:
    """Return the population to which the privacy report's risks refer as text."""
    required = row["settings"]
    if required["population"] is not None:
        return f"a population of {required['population']:,}"
    if required["sampling_fraction"] is not None:
        return f"a sample of {required['sampling_fraction']:.4%} of the population"
    return "no given population (journalist risk is not available; marketer risk is that of the table)"


def utility_table(row: Anonymity) -> Table:
    """Return the privacy report's table of information loss before and after."""
    return ("metric", "before", "after"), _before_and_after(row, "utility", _UTILITY_LABELS)


def quality_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """Return the privacy report's metrics of the community model on original and anonymised records."""
    rows: list[Row] = [
        (model["metric"], model["original"], model["anonymised"], model["anonymised"] - model["original"])
        for model in models
    ]
    return ("metric", "original records", "anonymised records", "difference"), rows


def _before_and_after(row: Anonymity, section: str, names: Mapping[str, str]) -> list[Row]:
    before, after = row["before"][section], (row["after"] or {}).get(section, {})
    return [(label, before[key], after.get(key)) for key, label in names.items()]


_ANONYMITY_LABELS = {
    "is_satisfied": "satisfies the study's models",
    "records": "records",
    "suppressed": "suppressed records",
    "subjects": "subjects",
    "suppressed_subjects": "suppressed subjects",
    "classes": "equivalence classes",
    "k": "k: smallest class",
}
_SENSITIVE_LABELS = {
    "distinct": "l-diversity, distinct l",
    "entropy": "l-diversity, entropy l",
    "recursive_c": "l-diversity, recursive c",
    "equal": "t-closeness, equal distance",
    "ordered": "t-closeness, ordered distance",
    "max_confidence": "highest attribute confidence",
}
_RISK_LABELS = {
    "prosecutor_highest": "prosecutor, highest (1 / smallest class)",
    "prosecutor_average": "prosecutor, average (classes / subjects)",
    "journalist_highest": "journalist, highest",
    "journalist_average": "journalist, average",
    "marketer": "marketer, average",
    "unique": "fraction of unique subjects",
    "below_2": "fraction of subjects in classes below 2",
    "below_5": "fraction of subjects in classes below 5",
    "below_11": "fraction of subjects in classes below 11",
}
_UTILITY_LABELS = {
    "loss": "information loss (0 to 1)",
    "ncp": "normalised certainty penalty",
    "discernibility": "discernibility",
    "average_class_size": "average class size in multiples of k",
}
