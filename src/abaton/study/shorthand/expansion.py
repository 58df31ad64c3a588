"""From a document in the short form, or in both, to the long form: what is hashed, consented to and judged.

Invariants:
(1) what a document says itself is never changed: only what is absent is derived;
(2) an expanded document expands to itself;
(3) every derived part knows the key that it comes from, so that an error names a line that somebody wrote.

What else a document may say shortly: regions, its centre, criteria by short codes, what people are told.

What was derived from the short parts of a study, a line for each part, for whoever wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from abaton.documents.fields import fault
from abaton.documents.line_numbers import KeyPath
from abaton.documents.problems import dotted
from abaton.study.sections import WORDING, Statement, to_be_told
from abaton.study.shorthand.codes import SYSTEMS, spelled_out
from abaton.study.shorthand.derived_features import Making, Use, joined, requirements, standard_views, trimmed
from abaton.study.shorthand.schema import SHORT_KEYS, ShortParts
from abaton.study.summary import input_words, label_words, requirement_words, source_words, view_words

if TYPE_CHECKING:
    from abaton.study.document import Study


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


_OF_PATIENTS = ("age", "sex")


@dataclass
class Expanded:
    """A document in the long form, and where its derived parts come from.

    Attributes:
        table: The document.
        origins: For a key of the long form, the key of the document from which it was derived.
    """

    table: dict[str, Any]
    origins: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> KeyPath:
        """The key that somebody wrote, for a key of the long form."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return (*self.origins[path[:end]], *path[end:])
        return path


def expanded(table: dict[str, Any], text: Callable[[Any], str] = json.dumps) -> Expanded:
    """Derive all that a document leaves to be derived.

    Args:
        table: The document as it was read.
        text: How plain values become JSON; dates are values of TOML.

    Raises:
        pydantic.ValidationError: Of :class:`ShortParts`: a short part is not as it should be.
    """
    given = {key: table[key] for key in SHORT_KEYS if key in table}
    own = given.get("systems")
    names = dict(SYSTEMS) | (own if isinstance(own, dict) else {})
    made = Expanded({key: value for key, value in table.items() if key not in given})
    if given:
        short = ShortParts.model_validate_json(
            text(_with_names(given, names)), strict=True, context={"systems": names}
        )
        _derive(short, names, made)
    completed(made.table, names, made.origins)
    return made


def _with_names(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The short parts with the study's own names of systems resolved, and age and sex named as what they are."""
    own = {name: system for name, system in names.items() if name not in SYSTEMS}

    def resolved(value: Any) -> Any:
        return spelled_out(value, own) if isinstance(value, dict) else value

    made = dict(given)
    for part in ("inputs", "outcome"):
        if isinstance(given.get(part), dict):
            made[part] = {name: resolved(value) for name, value in given[part].items()}
    made |= {"index": resolved(given["index"])} if "index" in given else {}
    inputs = made.get("inputs")
    if isinstance(inputs, dict):
        for name in _OF_PATIENTS:
            value = inputs.get(name)
            if isinstance(value, dict) and not _says_where(value):
                inputs[name] = {"patient": name, **value}
    return made


def _says_where(table: Mapping[str, Any]) -> bool:
    return bool({"view", "patient", "codes", *SYSTEMS} & table.keys())


def _derive(short: ShortParts, names: Mapping[str, str], made: Expanded) -> None:
    """Add features, views and what has to be known to the document."""
    before = made.table.get("features", {})
    if not isinstance(before, dict) or not (short.inputs or short.outcome or short.index):
        return  # what is wrong with the features is told when the whole is checked
    _check_whole(short, before, made.table)
    making = Making(names, dated=short.index is not None or "index" in before)
    if not making.dated:
        _check_dates(short)
    made.table["features"] = _features(short, making, before)
    if "cohort" not in before:
        making.uses.setdefault("patients", Use()).whole = True
    if not before:
        making.origins["features",] = ("inputs",)
    made.origins |= making.origins
    _views(making, made)


def _features(short: ShortParts, making: Making, before: Mapping[str, Any]) -> dict[str, Any]:
    """Short inputs before long ones, and what the document says itself as it is."""
    made: dict[str, Any] = {"cohort": "patients"}
    if short.index is not None:
        making.origins["features", "index"] = ("index",)
        made["index"] = making.index(short.index, ("features", "index"), ("index",))
    inputs = []
    for i, (name, each) in enumerate(short.inputs.items()):
        at, key = ("features", "inputs", i), ("inputs", name)
        making.origins[at] = key
        inputs.append(making.input(name, each, at, key))
    for name, outcome in short.outcome.items():
        making.origins["features", "label"] = ("outcome", name)
        made["label"] = making.label(name, outcome, ("features", "label"), ("outcome", name))
    more = before.get("inputs", [])
    if isinstance(more, list):
        for i in range(len(more)):
            making.origins["features", "inputs", len(inputs) + i] = ("features", "inputs", i)
        made["inputs"] = [*inputs, *more]
    return {**made, **{key: value for key, value in before.items() if key not in made}}


def _check_whole(short: ShortParts, before: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Nothing is said twice, and there are both inputs and something to learn."""
    for key, name, given in (("index", "index", short.index), ("outcome", "label", short.outcome)):
        if given and name in before:
            raise _refused((key,), f"[{key}] and [features.{name}] say the same", "keep one of them")
    if not short.outcome and "label" not in before:
        meant = _meant("outcome", document)
        raise _refused(("inputs",), "it is not said what is learned", meant or "add [outcome] with one line")
    if not short.inputs and not before.get("inputs"):
        meant = _meant("inputs", document)
        raise _refused(("outcome",), "it is not said from what it is learned", meant or "add [inputs]")


def _meant(name: str, document: Mapping[str, Any]) -> str:
    """Where a document has a part whose name is nearly right."""
    near = get_close_matches(name, (part for part in document if part != name), 1, 0.8)
    return f"did you mean [{name}] by [{near[0]}]?" if near else ""


def _check_dates(short: ShortParts) -> None:
    """Ages and events are counted from a day; a study without an index date has none."""
    for name, each in short.inputs.items():
        if each.patient == "age" and each.at is None:
            raise _refused(
                ("inputs", name), "an age needs a day at which it is told", "add at = 2026-01-01, or [index]"
            )
    for name, outcome in short.outcome.items():
        if outcome.within is not None or outcome.up_to is not None:
            raise _refused(("outcome", name), "an event is counted from an index date", "add [index]")


def _refused(key: KeyPath, what: str, remedy: str) -> ValidationError:
    """What is wrong between short parts, told like what is wrong within them."""
    told = InitErrorDetails(type=fault(what, remedy), loc=key, input=None)
    return ValidationError.from_exception_data("ShortParts", [told])


def _check_known(use: Use, kind: str, data: list[Any]) -> None:
    """What short lines look for in a view of the document's own stands in its list, or the input would stay empty."""
    lines = [each for each in data if isinstance(each, dict) and each.get("type") == kind]
    known = [
        term for line in lines for rule in line.get("codes") or [{}] for term in rule.get("any") or [None]
    ]
    lost = next((each for each in (*use.codes, *use.asked) if each not in known), None)
    if lost is not None and None not in known:
        raise _refused(
            use.key,
            f"'{lost['code']}' is looked for in a view of the document's own, and no [[data]] of {kind} asks for it",
            "add it there, or leave out the view and its [[data]], which are then derived",
        )


def _views(making: Making, made: Expanded) -> None:
    """The standard views that are used and that the document does not have itself, with what they need."""
    views, data = made.table.get("views", []), made.table.get("data", [])
    if not isinstance(views, list) or not isinstance(data, list):
        return
    mine = {each.get("name") for each in views if isinstance(each, dict)}
    for name in making.uses.keys() & mine:
        _check_known(making.uses[name], standard_views()[name]["resource"], data)
    wanted = [
        (name, making.uses[name]) for name in standard_views() if name in making.uses and name not in mine
    ]
    added = [trimmed(name, use.columns) for name, use in wanted]
    lines = joined(
        (line, use.key)
        for view, (_, use) in zip(added, wanted, strict=True)
        for line in requirements(view, use)
    )
    for i, (_, use) in enumerate(wanted):
        made.origins["views", len(views) + i] = use.key
    for i, (_, key) in enumerate(lines):
        made.origins["data", len(data) + i] = key
    made.table |= {"views": [*views, *added], "data": [*data, *(line for line, _ in lines)]}


@dataclass(frozen=True, slots=True)
class Derived:
    """One derived part: the line and key that it comes from, and what it is in words."""

    line: int
    key: str
    words: str


def explained(study: Study, made: Expanded, line: Callable[[KeyPath], int]) -> Iterator[Derived]:
    """Every derived part of a study: what each short line became, in the order of the long form."""

    def told(path: KeyPath, words: str) -> Iterator[Derived]:
        written = made.origins.get(path)
        if written is not None and written != path:
            yield Derived(line(written), dotted(written), words)

    yield from told(("contacts",), f"contact: {', '.join(str(each.name) for each in study.contacts)}")
    for i, need in enumerate(study.data):
        yield from told(("data", i), f"may be known: {requirement_words(need)}")
    for i, view in enumerate(study.views):
        yield from told(("views", i), f"standard view {view_words(view)}")
    if features := study.features:
        if features.index:
            yield from told(("features", "index"), f"index date: {source_words(features.index)}")
        for i, each in enumerate(features.inputs):
            path: KeyPath = ("features", "inputs", i)
            if made.origins.get(path, ("",))[0] != "features":  # a long input that only moved
                yield from told(path, f"input {each.name}: {input_words(each)}")
        yield from told(("features", "label"), label_words(features.label))
    if study.consent:
        names = ", ".join(each.value for each in study.consent.statements)
        yield from told(("consent", "statements"), f"people are told, in proposed words: {names}")
