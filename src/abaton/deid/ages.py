"""Ages over 89 as one class, however they are written, also where they follow from two years.

HIPAA 164.514(b)(2)(i)(C) covers all ages over 89 and all dates that indicate one. Therefore

* a birth year is at most 90 years before the reference year: the year of death where the document states it, otherwise
  the current year;
* no other year is earlier, whatever it dates, because a subject treated then is older; earlier years are moved to it;
* an age beside a year is dropped if it implies that the subject is over 89 now.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

from abaton.deid.context import TransformContext
from abaton.fhir.partial_dates import age_in_years, parse_year
from abaton.fhir.ucum import convert

MAX_AGE = 89
_AGE = {"coding": [{"system": "http://loinc.org", "code": "30525-0"}]}
_AGE_CODES = {
    "http://loinc.org": frozenset(
        {"30525-0", "21611-9", "21612-7", "29553-5", "35659-2", "39016-1", "63900-5"}
    ),
    "http://snomed.info/sct": frozenset({"397659008", "397669002", "424144002", "445518008"}),
}
_BIRTH_CODES = {"http://loinc.org": frozenset({"21112-8", "80904-6"})}
AGE_REVEALING_CODES = frozenset().union(*_AGE_CODES.values(), *_BIRTH_CODES.values())
_AGE_QUESTION = re.compile(
    r"\b(?:age|aged|alter|alt|âge|edad|età|idade|leeftijd|how old)\b|30525-0|21611-9|21612-7|29553-5|63900-5",
    re.IGNORECASE,
)
# Words for an age beside the code of an observation. "Alt" is not included, because ALT is a liver enzyme.
_AGE_WORDS = re.compile(r"\b(?:age|aged|alter|âge|edad|età|idade|leeftijd|how old)\b", re.IGNORECASE)
_OTHER_AGES = re.compile(r"gestation|adjusted|related|matched", re.IGNORECASE)
_BIRTH_QUESTION = re.compile(
    r"\b(?:birth|born|geburt|geburtsjahr|geboren|naissance|nacimiento|nascita)\b|21112-8|80904-6",
    re.IGNORECASE,
)
_FIRST_YEAR = 1800  # smaller numbers are not birth years
_RANGES = frozenset({"onsetRange", "abatementRange", "performedRange", "ageRange", "deceasedRange"})
# Units of time per year: ages occur in all of these.
_PER_YEAR = {
    "a": 1.0, "a_j": 1.0, "a_g": 1.0, "a_t": 1.0, "mo": 12.0, "mo_j": 12.0, "mo_g": 12.0, "mo_s": 12.37, "wk": 52.1775,
    "d": 365.25, "h": 8766.0, "min": 525_960.0, "s": 31_557_600.0,
}  # fmt: skip
_TIME_UNIT_NAMES = {
    **dict.fromkeys(
        ("y", "yr", "yrs", "year", "years", "yo", "y/o", "years old", "jahr", "jahre", "an", "ans", "anno", "anni",
         "año", "años", "anos", "jaar", "år", "lat", "vuotta"), "a"
    ),
    **dict.fromkeys(("month", "months", "mos", "monat", "monate", "mois", "mese", "mesi", "meses", "maanden"), "mo"),
    **dict.fromkeys(("week", "weeks", "wks", "woche", "wochen", "semaines"), "wk"),
    **dict.fromkeys(("day", "days", "tag", "tage", "jours", "giorni", "días", "dagen"), "d"),
    **dict.fromkeys(("hour", "hours", "hrs", "stunden"), "h"),
}  # fmt: skip
_ANNOTATION = re.compile(r"\{[^{}]*\}")


@lru_cache(maxsize=1024)
def per_year(unit: str) -> float:
    """Return how many of a unit make a year of age, also with a prefix or factor; 0 if it is no unit of time.

    >>> per_year("mo"), per_year("a{age}"), per_year("10.a"), per_year("kg")
    (12.0, 1.0, 0.1, 0.0)
    """
    bare_unit = _ANNOTATION.sub("", unit) if "{" in unit else unit
    return _PER_YEAR.get(bare_unit) or convert(1.0, "a", bare_unit) or 0.0


def time_unit_code(text: str) -> str | None:
    """Return the UCUM code of a unit of ages that is written as a word ("years", "Monate").

    >>> time_unit_code("Years"), time_unit_code("kg")
    ('a', None)
    """
    return _TIME_UNIT_NAMES.get(text.strip().casefold())


@lru_cache(maxsize=4096)
def mentions_age(text: str) -> bool:
    """Return whether the text of a code states that the value is a subject's age.

    >>> mentions_age("Age at admission"), mentions_age("ALT"), mentions_age("Gestational age")
    (True, False, False)
    """
    return _AGE_WORDS.search(text) is not None and _OTHER_AGES.search(text) is None


def is_age_concept(concept: Any) -> bool:
    """Return whether the text of a concept states an age; its code may be local or missing."""
    if concept.__class__ is not dict:
        return False
    coding = concept.get("coding")
    texts = (
        [item.get("display") for item in coding if item.__class__ is dict] if coding.__class__ is list else []
    )
    return any(text.__class__ is str and mentions_age(text) for text in (concept.get("text"), *texts))


def is_age_range(path: str) -> bool:
    """Return whether the bounds of a range at a path are ages.

    >>> is_age_range("Condition.onsetRange.low"), is_age_range("Observation.valueRange.low")
    (True, False)
    """
    return path.rpartition(".")[0].rpartition(".")[2] in _RANGES


def death_year(person: dict[str, Any]) -> int | bool:
    """Return the year at which a person's age ends: that of death; True if unknown, False for the living."""
    for name in ("deceasedDateTime", "deceasedDate"):
        if name in person:
            return parse_year(person[name]) or True
    return any(key.startswith("deceased") and value is not False for key, value in person.items())


def earliest_year(context: TransformContext, cap: int) -> int:
    """Return the earliest year that does not imply an age over the cap."""
    return context.document.last_year(context) - cap - 1


def age_at(elements: tuple[str, ...], context: TransformContext) -> tuple[int | None, str]:
    """Return the subject's age at the date of a resource, over 89 as one class, and the subject's address."""
    pseudonyms, subject = context.pseudonyms, context.subject()
    births = {
        pseudonyms.full_url(new): person.get("birthDate")
        for person, new in context.document.entries
        if person.get("resourceType") == "Patient"
    }
    birth = births.get(subject)
    for name in elements:
        date = context.raw.get(name)
        date = date.get("start") if isinstance(date, dict) else date
        if isinstance(birth, str) and isinstance(date, str):
            years = age_in_years(birth, date)
            return (None if years is None else min(years, MAX_AGE + 1)), subject
    return None, subject


def age_observation(age: int, subject: str) -> dict[str, Any]:
    """Return the elements of an Observation of a subject's age."""
    return {
        "status": "final",
        "code": {"coding": [dict(_AGE["coding"][0])]},
        "subject": {"reference": subject},
        "valueQuantity": {"value": age, "system": "http://unitsofmeasure.org", "code": "a"},
    }


def cap_coded_age(out: dict[str, Any], raw: dict[str, Any], context: TransformContext) -> None:
    """Cap an age over 89 in an Observation or component whose code states an age or a birth year."""
    if is_age_concept(raw.get("code")) and _may_be_age(out):
        _cap_ages(out, context)
    coding = raw["code"].get("coding") if raw.get("code").__class__ is dict else None
    for item in coding if coding.__class__ is list else ():
        if item.__class__ is dict:
            system, code = item.get("system"), item.get("code")
            if system.__class__ is str and code.__class__ is str:
                if code in _AGE_CODES.get(system, ()):
                    _cap_ages(out, context)
                elif code in _BIRTH_CODES.get(system, ()):
                    _cap_birth_years(out, context)


def cap_answered_age(out: dict[str, Any], raw: dict[str, Any], context: TransformContext) -> None:
    """Cap an age over 89 in the answer to a question about an age or a birth, with or without a unit."""
    question_text = " ".join(
        text for name in ("text", "linkId", "definition") if (text := raw.get(name)).__class__ is str
    )
    for answer in out.get("answer", ()):
        if _AGE_QUESTION.search(question_text):
            _cap_ages(answer, context)
        if _BIRTH_QUESTION.search(question_text):
            _cap_birth_years(answer, context)


def cap_implied_age(out: dict[str, Any], context: TransformContext) -> None:
    """Drop ages that, together with a year in the same resource, imply that the subject is over 89 now."""
    ages = [
        name
        for name, value in out.items()
        if value.__class__ is dict and (name.endswith("Age") or name in _RANGES)
    ]
    years = _years(out) if ages else []
    for name in ages if years else ():
        value = out[name].get("low", {}) if name in _RANGES else out[name]
        age = _in_years(value)
        if age is not None and age <= MAX_AGE < age + context.document.last_year(context) - min(years):
            del out[name]
            context.log_drop((f"{context.raw['resourceType']}.{name}", "implied age over 89"))


def _years(out: dict[str, Any]) -> list[int]:
    years = []
    for value in out.values():
        both = (value.get("start"), value.get("end")) if value.__class__ is dict else (value,)
        years += [year for date_text in both if (year := parse_year(date_text)) is not None]
    return years


def _in_years(quantity: dict[str, Any]) -> float | None:
    number = quantity.get("value")
    if number is None:
        return None
    units_per_year = per_year(quantity.get("code") or quantity.get("unit") or "") or 1.0
    return float(number / units_per_year)


def _may_be_age(out: dict[str, Any]) -> bool:
    """Return whether a value may be an age: it has no unit or a unit of time."""
    value = out.get("valueQuantity") or (out.get("valueRange") or {}).get("low") or {}
    unit = value.get("code") or value.get("unit")
    return unit is None or per_year(unit) > 0


def _cap_ages(out: dict[str, Any], context: TransformContext) -> None:
    """Cap numbers that are ages: above 89 years they become 90 years, in any unit."""
    for name in ("valueQuantity", "valueInteger", "valueDecimal", "valueRange"):
        value = out.get(name)
        ends = (value,) if name == "valueQuantity" else (value or {}).values() if name == "valueRange" else ()
        for end in ends if value.__class__ is dict else ():
            if end.__class__ is dict and (age := _in_years(end)) is not None and age > MAX_AGE:
                units_per_year = per_year(end.get("code") or end.get("unit") or "") or 1.0
                end["value"] = math.ceil((MAX_AGE + 1) * units_per_year)
        if value.__class__ in (int, float) and value > MAX_AGE:
            out[name] = MAX_AGE + 1
    years = _years(out) or _years(context.raw)
    lowest = out["valueRange"].get("low", {}) if "valueRange" in out else out.get("valueQuantity", {})
    number = next((out[name] for name in ("valueInteger", "valueDecimal") if name in out), None)
    age = number if number is not None else _in_years(lowest)
    if years and age is not None and age <= MAX_AGE < age + context.document.last_year(context) - min(years):
        for name in [key for key in out if key.startswith("value")]:
            del out[name]
            context.log_drop((f"{context.raw['resourceType']}.{name}", "implied age over 89"))


def _cap_birth_years(out: dict[str, Any], context: TransformContext) -> None:
    """Cap numbers that are birth years: not earlier than 90 years ago."""
    first = earliest_year(context, MAX_AGE)
    for name in ("valueInteger", "valueDecimal"):
        if _FIRST_YEAR <= out.get(name, 0) < first:
            out[name] = first
    if _FIRST_YEAR <= out.get("valueQuantity", {}).get("value", 0) < first:
        out["valueQuantity"]["value"] = first
