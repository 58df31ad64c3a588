"""Short names of code systems: ``loinc = "8480-6"`` instead of a system's address and a code, each time.

Codes match exactly, or by how they begin (``"E11*"``); no hierarchy is asked. Each name stands for one system, so
``icd10`` never finds a code of ICD-10-CM: name both where records may have either.

Common inputs and outcomes by name, with their codes and units, for whoever does not know the codes by heart.
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

from abaton.documents.fields import Part, Term, Text, fault, faults
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
"""The code system that each short name stands for."""

HOMES: Mapping[str, str] = {
    "loinc": "measurements",
    **dict.fromkeys(("snomed", "icd10", "icd10cm", "icd10gm", "icd9cm"), "diagnoses"),
    **dict.fromkeys(("atc", "rxnorm", "ndc"), "medicines"),
    "cvx": "vaccines",
    **dict.fromkeys(("cpt", "ops"), "procedures"),
}
"""The view in which codes of a system are looked for, unless the study names another."""


def term(system: str, text: str) -> dict[str, str]:
    """A code as the long form has it; a star at its end stands for every ending.

    >>> term("http://hl7.org/fhir/sid/icd-10", "E11*")
    {'system': 'http://hl7.org/fhir/sid/icd-10', 'code': 'E11', 'match': 'startsWith'}
    """
    if text.endswith("*"):
        return {"system": system, "code": text[:-1], "match": "startsWith"}
    return {"system": system, "code": text}


def formed(name: str, text: str) -> bool:
    """Whether a code has the form of the system with a short name, check digit included; beginnings have none.

    >>> formed("loinc", "8480-6"), formed("loinc", "8480-7"), formed("icd10", "E1*")
    (True, False, True)
    """
    return name not in SYSTEMS or text.endswith("*") or is_known(SYSTEMS[name], text)


def not_formed(name: str, text: str) -> tuple[str, str]:
    """What is wrong with a code that has not the form of its system, and what to do."""
    return (
        f"'{text}' is not a code of {SYSTEMS[name]}",
        "correct it; a wrong digit is found by its check digit",
    )


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _starred(codes: tuple[str, ...]) -> tuple[str, ...]:
    if not codes:
        raise fault("the list of codes is empty", "name at least one, or leave the key out")
    for code in codes:
        if "*" in code[:-1] or code == "*":
            raise fault(
                f"'{code}' is not a code or the beginning of one",
                'a star stands at the end, after at least one sign: "E11*"',
            )
    return codes


Codes = Annotated[tuple[Text, ...], BeforeValidator(_several), AfterValidator(_starred)]
"""One code or several, each with or without a star at its end."""


class Coded(Part):
    """Codes by the short names of their systems; ``codes`` takes them with the system's address."""

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
    codes: tuple[Term, ...] = ()

    @model_validator(mode="after")
    def _formed(self) -> Self:
        wrong = [
            (name, text) for name in self.systems for text in getattr(self, name) if not formed(name, text)
        ]
        if wrong:
            raise faults([((name,), *not_formed(name, text)) for name, text in wrong])
        return self

    @property
    def systems(self) -> tuple[str, ...]:
        """The short names that are used."""
        return tuple(name for name in SYSTEMS if getattr(self, name))

    @property
    def terms(self) -> list[tuple[str, dict[str, str]]]:
        """Every code as the long form has it, with the key that names it."""
        named = [(name, term(SYSTEMS[name], text)) for name in self.systems for text in getattr(self, name)]
        return named + [("codes", each.model_dump(mode="json", exclude_defaults=True)) for each in self.codes]


def spelled_out(table: dict[str, Any], own: Mapping[str, str], key: str = "codes") -> dict[str, Any]:
    """A table whose codes by short names became a list of codes with their systems' addresses.

    Args:
        table: A table of the document.
        own: Which further names stand for which systems.
        key: The list that the codes are added to.

    >>> spelled_out({"what": "condition", "icd10": "I10"}, SYSTEMS)["codes"]
    [{'system': 'http://hl7.org/fhir/sid/icd-10', 'code': 'I10'}]
    """
    made = {name: value for name, value in table.items() if name not in own}
    listed = [
        term(own[name], text) if isinstance(text, str) else {"system": own[name], "code": text}
        for name, value in table.items()
        if name in own
        for text in (value if isinstance(value, list) else [value])
    ]
    if listed:
        before = table.get(key, [])
        made[key] = [*before, *listed] if isinstance(before, list) else before
    return made


_TYPED = re.compile(r"([a-z0-9]+)[ :=]+(\S+)(?: +(\S+))?")
_CLOSE = 0.75


@dataclass(frozen=True, slots=True)
class Common:
    """An entry of the list: its name, our label, what it is (a section of the list), and its line in a short study."""

    name: str
    label: str
    section: str
    line: Mapping[str, Any]

    @property
    def codes(self) -> str:
        """Its codes in words."""
        found = [(name, self.line[name]) for name in SYSTEMS if name in self.line]
        return ", ".join(f"{name} {' '.join([v] if isinstance(v, str) else v)}" for name, v in found)


@cache
def common() -> tuple[Common, ...]:
    """The whole list."""
    text = files("abaton.study.shorthand").joinpath("common.toml").read_text(encoding="utf-8")
    return tuple(
        Common(name, str(entry["label"]), section, {k: v for k, v in entry.items() if k != "label"})
        for section, entries in tomllib.loads(text).items()
        for name, entry in entries.items()
    )


def found_by(words: str, sections: tuple[str, ...] = ()) -> list[Common]:
    """The entries that words may mean, best first: by name, label or code, also with a letter wrong.

    >>> [each.name for each in found_by("systolic")], [each.name for each in found_by("2160-0")]
    (['systolic'], ['creatinine'])
    """
    asked = words.strip().lower().replace("_", " ")
    ranked = [
        (_rank(asked, each), i, each)
        for i, each in enumerate(common())
        if not sections or each.section in sections
    ]
    return [each for rank, _, each in sorted(ranked, key=lambda one: one[:2]) if rank < 1]


def _rank(asked: str, each: Common) -> float:
    name, label = each.name.replace("_", " "), each.label.lower()
    if asked in (name, label):
        return 0.0
    if asked in name or asked in label or asked in each.codes.lower().replace("*", ""):
        return 0.5
    words = [name, *re.findall(r"[a-z0-9-]+", label)]
    likeness = max(SequenceMatcher(None, asked, word).ratio() for word in words)
    return 0.9 if likeness >= _CLOSE else 1.0


def typed_code(words: str) -> dict[str, Any] | None:
    """A line of a short study from a code as somebody types it: system, code, and a unit if it is measured.

    >>> typed_code("loinc 8480-6 mm[Hg]"), typed_code("high blood pressure")
    ({'loinc': '8480-6', 'unit': 'mm[Hg]'}, None)
    """
    match = _TYPED.fullmatch(words.strip())
    if match is None or match[1] not in SYSTEMS:
        return None
    return {match[1]: match[2]} | ({"unit": match[3]} if match[3] else {})
