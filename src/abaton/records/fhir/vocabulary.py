"""Which codes may survive: a code is kept only if it can be nothing else than a code.

A coded value is a place where a local system may have written anything, a name included. So a code passes
only
(1) if R4 binds its element to a fixed list and it is on that list;
(2) if its system is one of HL7's own and the code is on the shipped list of that system;
(3) if its system is a public terminology and the code has that terminology's form, check digit included;
(4) if the study document itself names the system and the code.
The display, the version and every other text beside a code never pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from abaton.fhir.elements import resources, table
from abaton.records.fhir.iso import is_country, is_currency, is_dicom, is_language, is_vaccine_maker
from abaton.records.fhir.ucum import is_unit

_REMEMBERED = 1_024
ABSENT = "http://terminology.hl7.org/CodeSystem/data-absent-reason"

_VERHOEFF_TIMES = [
    "0123456789",
    "1234067895",
    "2340178956",
    "3401289567",
    "4012395678",
    "5987604321",
    "6598710432",
    "7659821043",
    "8765932104",
    "9876543210",
]
_VERHOEFF_TURN = [
    "0123456789",
    "1576283094",
    "5803796142",
    "8916043527",
    "9453126870",
    "4286573901",
    "2793806415",
    "7046913258",
]


def is_snomed(code: str) -> bool:
    """Whether a text has the form of a SNOMED CT concept: digits, partition and Verhoeff check digit.

    >>> is_snomed("38341003"), is_snomed("38341004"), is_snomed("Smith")
    (True, False, False)
    """
    if not (6 <= len(code) <= 18 and code.isascii() and code.isdigit()) or code[0] == "0":
        return False
    if code[-3:-1] not in ("00", "10"):
        return False
    check = 0
    for i, digit in enumerate(reversed(code)):
        check = int(_VERHOEFF_TIMES[check][int(_VERHOEFF_TURN[i % 8][int(digit)])])
    return check == 0


_LOINC = re.compile(r"(\d{1,5})-(\d)")
_LOINC_PART = re.compile(r"L[AP]\d{1,6}-\d")


def is_loinc(code: str) -> bool:
    """Whether a text has the form of a LOINC code (check digit included), answer or part.

    >>> is_loinc("8310-5"), is_loinc("8310-6"), is_loinc("LA10423-4")
    (True, False, True)
    """
    match = _LOINC.fullmatch(code)
    if match is None:
        return _LOINC_PART.fullmatch(code) is not None
    doubled = str(int(match[1][::-1][::2][::-1]) * 2)
    total = sum(map(int, doubled)) + sum(map(int, match[1][::-1][1::2]))
    return (10 - total % 10) % 10 == int(match[2])


def _form(pattern: str) -> Callable[[str], bool]:
    whole = re.compile(pattern, re.ASCII)
    return lru_cache(_REMEMBERED)(lambda code: whole.fullmatch(code) is not None)


_ICD10 = _form(r"[A-Z]\d\d(?:\.\d{1,3})?[*+†!]?")
_ICD10_CM = _form(r"[A-Z]\d[0-9AB](?:\.?[0-9]{1,4}|\.?[0-9X]{0,3}[A-DGHJ-NPQRSX0-9])?")
_ATC = _form(r"[A-Z](?:\d\d(?:[A-Z](?:[A-Z](?:\d\d)?)?)?)?")
_DIGITS = _form(r"\d{1,7}")

TERMINOLOGIES: Mapping[str, Callable[[str], bool]] = {
    "http://snomed.info/sct": is_snomed,
    "http://loinc.org": is_loinc,
    "http://unitsofmeasure.org": is_unit,
    "http://www.nlm.nih.gov/research/umls/rxnorm": _DIGITS,
    "http://hl7.org/fhir/sid/cvx": _form(r"\d{1,3}"),
    "http://hl7.org/fhir/sid/mvx": is_vaccine_maker,
    "http://hl7.org/fhir/sid/ndc": _form(r"\d{4,5}-\d{3,4}-\d{1,2}"),
    "http://hl7.org/fhir/sid/icd-10": _ICD10,
    "http://hl7.org/fhir/sid/icd-10-cm": _ICD10_CM,
    "http://hl7.org/fhir/sid/icd-10-us": _ICD10_CM,
    "http://hl7.org/fhir/sid/icd-10-de": _ICD10,
    "http://fhir.de/CodeSystem/dimdi/icd-10-gm": _ICD10,
    "http://fhir.de/CodeSystem/bfarm/icd-10-gm": _ICD10,
    "http://hl7.org/fhir/sid/icd-9-cm": _form(r"(?:\d{3}|V\d\d)(?:\.?\d{1,2})?|E\d{3}(?:\.?\d)?"),
    "http://hl7.org/fhir/sid/icd-9": _form(r"(?:\d{3}|V\d\d)(?:\.?\d{1,2})?|E\d{3}(?:\.?\d)?"),
    "http://hl7.org/fhir/sid/icf": _form(r"[bsde]\d{1,5}"),
    "http://fhir.de/CodeSystem/bfarm/ops": _form(r"\d-\d\d[0-9a-z](?:\.[0-9a-z]{1,2})?"),
    "http://www.whocc.no/atc": _ATC,
    "http://fhir.de/CodeSystem/bfarm/atc": _ATC,
    "http://www.ama-assn.org/go/cpt": _form(r"\d{4}[0-9FT]"),
    "https://www.cms.gov/Medicare/Coding/HCPCSReleaseCodeSets": _form(r"[A-V]\d{4}"),
    "http://terminology.hl7.org/CodeSystem/HCPCS": _form(r"[A-V]\d{4}"),
    "http://www.orpha.net": _form(r"(?:ORPHA:)?\d{1,6}"),
    "http://human-phenotype-ontology.org": _form(r"HP:\d{7}"),
    "http://www.genenames.org": _form(r"HGNC:\d{1,5}"),
    "http://terminology.hl7.org/CodeSystem/icd-o-3": _form(r"\d{4}/\d|C\d\d(?:\.\d)?"),
    "http://standardterms.edqm.eu": _form(r"[1-6]\d{4}[0-9]00|[1-6]\d{5}50"),
    "http://nucc.org/provider-taxonomy": _form(r"\d{3}[0-9A-Z]\d{5}X"),
    "http://dicom.nema.org/resources/ontology/DCM": is_dicom,
    "urn:iso:std:iso:11073:10101": _form(r"\d{1,6}"),
    "urn:iso:std:iso:3166": is_country,
    "urn:iso:std:iso:4217": is_currency,
    "urn:ietf:bcp:47": is_language,
    "urn:ietf:rfc:3986": _form(r"(?:urn:oid:)?1\.2\.840\.10008\.5\.1\.4(?:\.\d{1,3}){1,8}"),
    "urn:oid:2.16.840.1.113883.6.238": _form(r"\d{4}-\d"),
}

_MEDIA_TYPES = frozenset(
    [
        "application/pdf",
        "application/json",
        "application/xml",
        "application/fhir+json",
        "application/fhir+xml",
        "application/dicom",
        "application/zip",
        "application/gzip",
        "application/octet-stream",
        "application/rtf",
        "application/msword",
        "application/jose",
        "application/hl7-v3+xml",
        "application/hl7-cda+xml",
        "application/hl7-sda+xml",
        "application/signature+xml",
        "application/fhir+turtle",
        "application/json-patch+json",
        "application/javascript",
        "text/plain",
        "text/html",
        "text/xml",
        "text/csv",
        "text/rtf",
        "text/cql",
        "text/markdown",
        "text/cda+xml",
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/tiff",
        "image/bmp",
        "image/svg+xml",
        "image/webp",
        "image/dicom+jpeg",
        "audio/mpeg",
        "audio/mp4",
        "audio/ogg",
        "audio/wav",
        "audio/basic",
        "video/mp4",
        "video/mpeg",
        "video/ogg",
        "video/webm",
        "video/quicktime",
        "image/jpg",
        "xml",
        "json",
    ]
)
_MEDIA = re.compile(r"([a-z]+/[a-z0-9.+-]+)(?:; ?charset=(?:utf|UTF|iso|ISO|us|US)-?[A-Za-z0-9-]{1,8})?")


def is_media_type(text: str) -> bool:
    """Whether a text is one of the usual media types.

    >>> is_media_type("application/pdf"), is_media_type("text/plain; charset=utf-8"), is_media_type("mr/jo")
    (True, True, False)
    """
    match = _MEDIA.fullmatch(text)
    return match is not None and match[1] in _MEDIA_TYPES


@cache
def _source() -> dict[str, Any]:
    text = files("abaton.fhir").joinpath("vocabulary.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def _systems() -> dict[str, frozenset[str]]:
    return {name: frozenset(codes.split(" ")) for name, codes in _source()["systems"].items()}


@cache
def profiles() -> frozenset[str]:
    """The addresses of published profiles that may stay in ``meta.profile``."""
    core = (f"http://hl7.org/fhir/StructureDefinition/{name}" for name in resources())
    return frozenset(core) | frozenset(_source()["profiles"])


@cache
def _bindings() -> dict[str, Callable[[str], bool]]:
    made: dict[str, Callable[[str], bool]] = {}
    for values, paths in _source()["bindings"].items():
        listed = frozenset(values.split(" "))
        for path in paths.split(" "):
            made[path] = listed.__contains__
    names = frozenset(table()).__contains__
    for kind, check in (("type", names), ("media", is_media_type), ("unit", is_unit)):
        for path in _source()["names"][kind].split(" "):
            made[path] = check
    made["Money.currency"] = is_currency
    made["Address.country"] = is_country
    return made


def binding(type_name: str, element: str) -> Callable[[str], bool] | None:
    """The check for a plain ``code`` element, or nothing when no list is known for it.

    >>> binding("Patient", "gender")("female"), binding("Patient", "gender")("Smith")
    (True, False)
    """
    return is_language if element == "language" else _bindings().get(f"{type_name}.{element}")


def is_known(system: str, code: str) -> bool:
    """Whether a code may be nothing else than a code of that public system.

    >>> is_known("http://loinc.org", "8310-5"), is_known("http://hospital.example/codes", "8310-5")
    (True, False)
    """
    form = TERMINOLOGIES.get(system)
    return form(code) if form is not None else code in _systems().get(system, ())


def is_public(system: str) -> bool:
    """Whether a code system is a public one, so that its address tells nothing about a site.

    >>> is_public("http://loinc.org"), is_public("http://st-mary.example/codes")
    (True, False)
    """
    return system in TERMINOLOGIES or system in _systems()
