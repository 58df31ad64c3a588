"""What else a document may say shortly: regions, its centre, criteria by short codes, what people are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abaton.documents.line_numbers import KeyPath
from abaton.study.consent import WORDING, Statement, to_be_told
from abaton.study.short.codes import spelled_out

_COUNTRIES = "urn:iso:std:iso:3166"
_SPONSOR = {"system": "http://terminology.hl7.org/CodeSystem/organization-type", "code": "crs"}
_WAYS = ("email", "phone")
_ADDRESS = ("city", "country")

Origins = dict[KeyPath, KeyPath]


def completed(table: dict[str, Any], names: Mapping[str, str], origins: Origins) -> None:
    """Spell out, in place, what the sections of a document say shortly.

    Args:
        table: The document; parts of it are replaced, never changed.
        names: The code system of every short name.
        origins: Takes, for each derived key, the key that it comes from.
    """
    for section, change in (("study", _study), ("centre", _centre), ("eligibility", _eligibility)):
        if isinstance(table.get(section), dict):
            table[section] = change(dict(table[section]), names, origins)
    centre = table.get("centre")
    if "contacts" not in table and isinstance(centre, dict) and centre.get("telecom"):
        table["contacts"] = [{"name": centre.get("name"), "telecom": centre["telecom"]}]
        origins["contacts",] = ("centre",)
    consent = table.get("consent")
    if isinstance(consent, dict) and "statements" not in consent and consent.get("language", "en") == "en":
        told = _statements(table)
        if told:
            table["consent"] = {**consent, "statements": {each.value: WORDING[each] for each in told}}
            origins["consent", "statements"] = ("consent",)


def _study(part: dict[str, Any], names: Mapping[str, str], origins: Origins) -> dict[str, Any]:
    regions = part.get("regions")
    if isinstance(regions, list):
        part["regions"] = [
            {"system": _COUNTRIES, "code": each} if isinstance(each, str) else each for each in regions
        ]
    if isinstance(part.get("conditions"), dict):
        made = spelled_out(part["conditions"], names)
        part["conditions"] = made["codes"] if set(made) == {"codes"} else part["conditions"]
    if "enrolment" not in part and "period" in part:
        part["enrolment"] = part["period"]
        origins["study", "enrolment"] = ("study", "period")
    return part


def _centre(part: dict[str, Any], names: Mapping[str, str], origins: Origins) -> dict[str, Any]:
    ways = [{"system": way, "value": part.pop(way)} for way in _WAYS if way in part]
    place = {key: part.pop(key) for key in _ADDRESS if key in part}
    if ways and isinstance(part.get("telecom", []), list):
        part["telecom"] = [*part.get("telecom", []), *ways]
        origins["centre", "telecom"] = ("centre", ways[0]["system"])
    if place and isinstance(part.get("address", {}), dict):
        part["address"] = {**part.get("address", {}), **place}
        origins["centre", "address"] = ("centre",)
    if "url" in part and "endpoint" not in part:
        part["endpoint"] = {"url": part.pop("url")}
        origins["centre", "endpoint"] = ("centre",)
    if "kinds" not in part:
        part["kinds"] = [_SPONSOR]
        origins["centre", "kinds"] = ("centre",)
    return part


def _eligibility(part: dict[str, Any], names: Mapping[str, str], origins: Origins) -> dict[str, Any]:
    criteria = part.get("criteria")
    if isinstance(criteria, list):
        part["criteria"] = [spelled_out(each, names) if isinstance(each, dict) else each for each in criteria]
    return part


def _statements(table: Mapping[str, Any]) -> tuple[Statement, ...]:
    """What people must be told, as far as the document says what leaves the sites."""
    study, wish = table.get("study"), table.get("deidentification", {})
    shares = study.get("shares", ["records"]) if isinstance(study, dict) else []
    if not isinstance(shares, list) or not isinstance(wish, dict):
        return ()
    anonymised = wish.get("mechanism", "anonymise") == "anonymise"
    return to_be_told(records="records" in shares, updates="updates" in shares, anonymised=anonymised)
