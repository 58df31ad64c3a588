"""Short names of code systems, and the list of common inputs and outcomes.

``loinc = "8480-6"`` stands for a system URL and a code. Codes match exactly, or by prefix (``"E11*"``); hierarchies are
not expanded. Each name stands for one system, so ``icd10`` does not match ICD-10-CM: name both where records may
contain either.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from abaton.documents.fields import Coding, Section, Text, field_error, field_errors
from abaton.fhir.terminology import is_known

SYSTEMS: Mapping[str, str] = {
    "loinc": "http://loinc.org",
    "snomed": "http://snomed.info/sct",
    "icd10": "http://hl7.org/fhir/sid/icd-10",
    "icd10cm": "http://hl7.org/fhir/sid/icd-10-cm",
    "icd10gm": "http://fhir.de/CodeSystem/bfarm/icd-10-gm",
    "icd9cm": "http://hl7.org/fhir/sid/icd-9-cm",
    "atc": "http://www.whocc.no/atc",
    "rxnorm": "http://www.nlm.nih.gov/research/umls/rxnorm",
    "ndc": "http://hl7.org/fhir/sid/ndc",
    "cvx": "http://hl7.org/fhir/sid/cvx",
    "cpt": "http://www.ama-assn.org/go/cpt",
    "ops": "http://fhir.de/CodeSystem/bfarm/ops",
}
"""Code system of each short name."""

DEFAULT_VIEWS: Mapping[str, str] = {
    "loinc": "measurements",
    **dict.fromkeys(("snomed", "icd10", "icd10cm", "icd10gm", "icd9cm"), "diagnoses"),
    **dict.fromkeys(("atc", "rxnorm", "ndc"), "medicines"),
    "cvx": "vaccines",
    **dict.fromkeys(("cpt", "ops"), "procedures"),
}
"""Default view of each code system."""


def parse_code(system: str, text: str) -> dict[str, str]:
    """Return a shorthand code in the full form; a trailing star stands for a prefix match.

    >>> parse_code("http://hl7.org/fhir/sid/icd-10", "E11*")
    {'system': 'http://hl7.org/fhir/sid/icd-10', 'code': 'E11', 'match': 'startsWith'}
    """
    if text.endswith("*"):
        return {"system": system, "code": text[:-1], "match": "startsWith"}
    return {"system": system, "code": text}


def is_well_formed(name: str, text: str) -> bool:
    """Return whether a shorthand code has the form of its system, check digit included; prefixes pass.

    >>> is_well_formed("loinc", "8480-6"), is_well_formed("loinc", "8480-7"), is_well_formed("icd10", "E1*")
    (True, False, True)
    """
    return name not in SYSTEMS or text.endswith("*") or is_known(SYSTEMS[name], text)


def malformed_code(name: str) -> tuple[str, str]:
    """Return problem and remedy for a shorthand code without the form of its system."""
    return (
        f"this is not a code of {SYSTEMS[name]}",
        "correct it; the check digit does not match or the form is wrong",
    )


def _to_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _check_codes(codes: tuple[str, ...]) -> tuple[str, ...]:
    if not codes:
        raise field_error("the list of codes is empty", "add a code, or remove the key")
    for code in codes:
        if "*" in code[:-1] or code == "*":
            raise field_error(
                "this is not a code or a prefix",
                'write the star at the end, after at least one character: "E11*"',
            )
    return codes


Codes = Annotated[tuple[Text, ...], BeforeValidator(_to_tuple), AfterValidator(_check_codes)]
"""One code or several, each with or without a trailing star."""


class ShortCodes(Section):
    """Codes by the short names of their systems; ``codes`` takes system URLs."""

    loinc: Codes = ()
    snomed: Codes = ()
    icd10: Codes = ()
    icd10cm: Codes = ()
    icd10gm: Codes = ()
    icd9cm: Codes = ()
    atc: Codes = ()
    rxnorm: Codes = ()
    ndc: Codes = ()
    cvx: Codes = ()
    cpt: Codes = ()
    ops: Codes = ()
    codes: tuple[Coding, ...] = ()

    @model_validator(mode="after")
    def _check_codes(self) -> Self:
        malformed = [
            (name, i)
            for name in self.systems
            for i, text in enumerate(getattr(self, name))
            if not is_well_formed(name, text)
        ]
        if malformed:
            raise field_errors([((name, i), *malformed_code(name)) for name, i in malformed])
        return self

    @property
    def systems(self) -> tuple[str, ...]:
        """Return the short names of code systems in use (``loinc``, ``icd10``)."""
        return tuple(name for name in SYSTEMS if getattr(self, name))

    @property
    def codings(self) -> list[tuple[str, dict[str, str]]]:
        """Return every shorthand code in the full form with the key that names it."""
        named = [
            (name, parse_code(SYSTEMS[name], text)) for name in self.systems for text in getattr(self, name)
        ]
        return named + [
            ("codes", coding.model_dump(mode="json", exclude_defaults=True)) for coding in self.codes
        ]


def expand_codes(table: dict[str, Any], systems: Mapping[str, str], key: str = "codes") -> dict[str, Any]:
    """Replace shorthand codes, by short names of systems, with a list of codes and system URLs.

    Args:
        table: A table of the document.
        systems: System URL of every short name.
        key: The list to which the codes are added.

    >>> expand_codes({"type": "condition", "icd10": "I10"}, SYSTEMS)["codes"]
    [{'system': 'http://hl7.org/fhir/sid/icd-10', 'code': 'I10'}]
    """
    expanded = {name: value for name, value in table.items() if name not in systems}
    codings = [
        parse_code(systems[name], text) if isinstance(text, str) else {"system": systems[name], "code": text}
        for name, value in table.items()
        if name in systems
        for text in (value if isinstance(value, list) else [value])
    ]
    if codings:
        existing = table.get(key, [])
        expanded[key] = [*existing, *codings] if isinstance(existing, list) else existing
    return expanded


_TYPED_CODE = re.compile(r"([a-z0-9]+)[ :=]+(\S+)(?: +(\S+))?")
_MIN_SIMILARITY = 0.75


@dataclass(frozen=True, slots=True)
class CommonInput:
    """Entry of the list of common inputs: name, label, section of the list, and shorthand."""

    name: str
    label: str
    section: str
    shorthand: Mapping[str, Any]

    @property
    def codes(self) -> str:
        """Return the codes of a common input as text."""
        codes = [(name, self.shorthand[name]) for name in SYSTEMS if name in self.shorthand]
        return ", ".join(f"{name} {' '.join([v] if isinstance(v, str) else v)}" for name, v in codes)


@cache
def common_inputs() -> tuple[CommonInput, ...]:
    """Return the list of common inputs with their shorthand codes."""
    text = files("abaton.study.shorthand").joinpath("common.toml").read_text(encoding="utf-8")
    return tuple(
        CommonInput(name, str(entry["label"]), section, {k: v for k, v in entry.items() if k != "label"})
        for section, entries in tomllib.loads(text).items()
        for name, entry in entries.items()
    )


def find_common_inputs(text: str, sections: tuple[str, ...] = ()) -> list[CommonInput]:
    """Find common inputs by name, label or code, best first, also with a typing error.

    >>> [entry.name for entry in find_common_inputs("systolic")], [entry.name for entry in find_common_inputs("2160-0")]
    (['systolic'], ['creatinine'])
    """
    query = text.strip().lower().replace("_", " ")
    ranked = [
        (_rank(query, entry), i, entry)
        for i, entry in enumerate(common_inputs())
        if not sections or entry.section in sections
    ]
    return [entry for rank, _, entry in sorted(ranked, key=lambda one: one[:2]) if rank < 1]


def _rank(query: str, entry: CommonInput) -> float:
    name, label = entry.name.replace("_", " "), entry.label.lower()
    if query in (name, label):
        return 0.0
    if query in name or query in label or query in entry.codes.lower().replace("*", ""):
        return 0.5
    tokens = [name, *re.findall(r"[a-z0-9-]+", label)]
    similarity = max(SequenceMatcher(None, query, token).ratio() for token in tokens)
    return 0.9 if similarity >= _MIN_SIMILARITY else 1.0


def parse_typed_code(text: str) -> dict[str, Any] | None:
    """Parse a typed code to shorthand: system, code, and a unit if it is measured.

    >>> parse_typed_code("loinc 8480-6 mm[Hg]"), parse_typed_code("high blood pressure")
    ({'loinc': '8480-6', 'unit': 'mm[Hg]'}, None)
    """
    match = _TYPED_CODE.fullmatch(text.strip())
    if match is None or match[1] not in SYSTEMS:
        return None
    return {match[1]: match[2]} | ({"unit": match[3]} if match[3] else {})
