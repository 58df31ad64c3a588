"""Ages: over 89 they are one class, however they are written and even if they only follow from two years.

HIPAA 164.514(b)(2)(i)(C) hides all ages over 89 and every year that tells one. So

* a birth year lies at most 90 years before the last year that counts: the year of death, or this year;
* no other year lies further back either, because whoever was treated then is older;
* an age beside a year is hidden if it follows that the person is over 89 by now.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

from abaton.deid.context import Scope
from abaton.fhir.partial_dates import whole_years, year_of
from abaton.fhir.ucum import convert

OLDEST = 89
_AGE = {"coding": [{"system": "http://loinc.org", "code": "30525-0"}]}
_AGE_CODES = {
    "http://loinc.org": frozenset(
        {"30525-0", "21611-9", "21612-7", "29553-5", "35659-2", "39016-1", "63900-5"}
    ),
    "http://snomed.info/sct": frozenset({"397659008", "397669002", "424144002", "445518008"}),
}
_BIRTH_CODES = {"http://loinc.org": frozenset({"21112-8", "80904-6"})}
TELLING = frozenset().union(*_AGE_CODES.values(), *_BIRTH_CODES.values())
_ASKS_AGE = re.compile(
    r"\b(?:age|aged|alter|alt|âge|edad|età|idade|leeftijd|how old)\b|30525-0|21611-9|21612-7|29553-5|63900-5",
    re.IGNORECASE,
)
# Words for an age beside the code of an observation. "Alt" is none of them: there it is a liver enzyme.
_SAYS_AGE = re.compile(r"\b(?:age|aged|alter|âge|edad|età|idade|leeftijd|how old)\b", re.IGNORECASE)
_NOT_OF_LIFE = re.compile(r"gestation|adjusted|related|matched", re.IGNORECASE)
_ASKS_BIRTH = re.compile(
    r"\b(?:birth|born|geburt|geburtsjahr|geboren|naissance|nacimiento|nascita)\b|21112-8|80904-6",
    re.IGNORECASE,
)
_FIRST_YEAR = 1800  # what is less is no year of somebody's birth
_RANGES = frozenset({"onsetRange", "abatementRange", "performedRange", "ageRange", "deceasedRange"})
# How many of a unit make a year: ages are told in all of these.
_PER_YEAR = {
    "a": 1.0, "a_j": 1.0, "a_g": 1.0, "a_t": 1.0, "mo": 12.0, "mo_j": 12.0, "mo_g": 12.0, "mo_s": 12.37, "wk": 52.1775,
    "d": 365.25, "h": 8766.0, "min": 525_960.0, "s": 31_557_600.0,
}  # fmt: skip
_SPELT = {
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
    """How many of a unit make a year, be it written with a prefix or a factor; 0 if it is no unit of time.

    >>> per_year("mo"), per_year("a{age}"), per_year("10.a"), per_year("kg")
    (12.0, 1.0, 0.1, 0.0)
    """
    plain = _ANNOTATION.sub("", unit) if "{" in unit else unit
    return _PER_YEAR.get(plain) or convert(1.0, "a", plain) or 0.0


def spelt_time(text: str) -> str | None:
    """The UCUM code of a time that is written in plain words.

    >>> spelt_time("Years"), spelt_time("kg")
    ('a', None)
    """
    return _SPELT.get(text.strip().casefold())


@lru_cache(maxsize=4096)
def says_age(text: str) -> bool:
    """Whether the words beside a code say that the value is somebody's age.

    >>> says_age("Age at admission"), says_age("ALT"), says_age("Gestational age")
    (True, False, False)
    """
    return _SAYS_AGE.search(text) is not None and _NOT_OF_LIFE.search(text) is None


def named_age(concept: Any) -> bool:
    """Whether a concept says in words that it is an age: its code may be a hospital's own, or none."""
    if concept.__class__ is not dict:
        return False
    coding = concept.get("coding")
    told = (
        [each.get("display") for each in coding if each.__class__ is dict] if coding.__class__ is list else []
    )
    return any(text.__class__ is str and says_age(text) for text in (concept.get("text"), *told))


def is_age_range(path: str) -> bool:
    """Whether the two ends of a range at a place are ages.

    >>> is_age_range("Condition.onsetRange.low"), is_age_range("Observation.valueRange.low")
    (True, False)
    """
    return path.rpartition(".")[0].rpartition(".")[2] in _RANGES


def death_of(person: dict[str, Any]) -> int | bool:
    """The year in which a Patient or a relative died; true if that is not known, false for the living."""
    for name in ("deceasedDateTime", "deceasedDate"):
        if name in person:
            return year_of(person[name]) or True
    return any(key.startswith("deceased") and value is not False for key, value in person.items())


def earliest(scope: Scope, cap: int) -> int:
    """The year before which no year of somebody may lie, since it would tell an age over the cap."""
    return scope.document.last_year(scope) - cap - 1


def age_at(elements: tuple[str, ...], scope: Scope) -> tuple[int | None, str]:
    """The subject's age when a resource happened, over 89 as one class, and the address of the subject."""
    names, subject = scope.names, scope.subject()
    births = {
        names.address(new): person.get("birthDate")
        for person, new in scope.document.entries
        if person.get("resourceType") == "Patient"
    }
    birth = births.get(subject)
    for name in elements:
        then = scope.raw.get(name)
        then = then.get("start") if isinstance(then, dict) else then
        if isinstance(birth, str) and isinstance(then, str):
            years = whole_years(birth, then)
            return (None if years is None else min(years, OLDEST + 1)), subject
    return None, subject


def age_observation(age: int, subject: str) -> dict[str, Any]:
    """An observation that says an age and nothing else."""
    return {
        "status": "final",
        "code": {"coding": [dict(_AGE["coding"][0])]},
        "subject": {"reference": subject},
        "valueQuantity": {"value": age, "system": "http://unitsofmeasure.org", "code": "a"},
    }


def hide_coded(out: dict[str, Any], raw: dict[str, Any], scope: Scope) -> None:
    """Hide an age over 89 in an observation, or a part of one, whose code says that its value is an age or a birth."""
    if named_age(raw.get("code")) and _may_be_age(out):
        _hide_ages(out, scope)
    coding = raw["code"].get("coding") if raw.get("code").__class__ is dict else None
    for each in coding if coding.__class__ is list else ():
        if each.__class__ is dict:
            system, code = each.get("system"), each.get("code")
            if system.__class__ is str and code.__class__ is str:
                if code in _AGE_CODES.get(system, ()):
                    _hide_ages(out, scope)
                elif code in _BIRTH_CODES.get(system, ()):
                    _hide_births(out, scope)


def hide_asked(out: dict[str, Any], raw: dict[str, Any], scope: Scope) -> None:
    """Hide an age over 89 that answers a question about an age or a birth; its number stands alone or has a unit."""
    told = " ".join(
        text for name in ("text", "linkId", "definition") if (text := raw.get(name)).__class__ is str
    )
    for answer in out.get("answer", ()):
        if _ASKS_AGE.search(told):
            _hide_ages(answer, scope)
        if _ASKS_BIRTH.search(told):
            _hide_births(answer, scope)


def hide_implied(out: dict[str, Any], scope: Scope) -> None:
    """Take out ages that, together with a year in the same resource, tell that somebody is over 89 by now."""
    told = [
        name
        for name, value in out.items()
        if value.__class__ is dict and (name.endswith("Age") or name in _RANGES)
    ]
    years = _years(out) if told else []
    for name in told if years else ():
        value = out[name].get("low", {}) if name in _RANGES else out[name]
        age = _in_years(value)
        if age is not None and age <= OLDEST < age + scope.document.last_year(scope) - min(years):
            del out[name]
            scope.drops((f"{scope.raw['resourceType']}.{name}", "age over 89 by subtraction"))


def _years(out: dict[str, Any]) -> list[int]:
    found = []
    for value in out.values():
        both = (value.get("start"), value.get("end")) if value.__class__ is dict else (value,)
        found += [year for each in both if (year := year_of(each)) is not None]
    return found


def _in_years(quantity: dict[str, Any]) -> float | None:
    number = quantity.get("value")
    if number is None:
        return None
    each = per_year(quantity.get("code") or quantity.get("unit") or "") or 1.0
    return float(number / each)


def _may_be_age(out: dict[str, Any]) -> bool:
    """Whether a value has no unit or one of time: words alone do not make milligrams an age."""
    value = out.get("valueQuantity") or (out.get("valueRange") or {}).get("low") or {}
    unit = value.get("code") or value.get("unit")
    return unit is None or per_year(unit) > 0


def _hide_ages(out: dict[str, Any], scope: Scope) -> None:
    """A number in the place of an age: whatever its unit, over 89 years it becomes 90."""
    for name in ("valueQuantity", "valueInteger", "valueDecimal", "valueRange"):
        value = out.get(name)
        ends = (value,) if name == "valueQuantity" else (value or {}).values() if name == "valueRange" else ()
        for end in ends if value.__class__ is dict else ():
            if end.__class__ is dict and (age := _in_years(end)) is not None and age > OLDEST:
                each = per_year(end.get("code") or end.get("unit") or "") or 1.0
                end["value"] = math.ceil((OLDEST + 1) * each)
        if value.__class__ in (int, float) and value > OLDEST:
            out[name] = OLDEST + 1
    years = _years(out) or _years(scope.raw)
    lowest = out["valueRange"].get("low", {}) if "valueRange" in out else out.get("valueQuantity", {})
    number = next((out[name] for name in ("valueInteger", "valueDecimal") if name in out), None)
    age = number if number is not None else _in_years(lowest)
    if years and age is not None and age <= OLDEST < age + scope.document.last_year(scope) - min(years):
        for name in [each for each in out if each.startswith("value")]:
            del out[name]
            scope.drops((f"{scope.raw['resourceType']}.{name}", "age over 89 by subtraction"))


def _hide_births(out: dict[str, Any], scope: Scope) -> None:
    """A number in the place of a birth year: no earlier than 90 years ago."""
    first = earliest(scope, OLDEST)
    for name in ("valueInteger", "valueDecimal"):
        if _FIRST_YEAR <= out.get(name, 0) < first:
            out[name] = first
    if _FIRST_YEAR <= out.get("valueQuantity", {}).get("value", 0) < first:
        out["valueQuantity"]["value"] = first
