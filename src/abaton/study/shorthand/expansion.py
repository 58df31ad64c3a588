"""Expansion of shorthand to the full form, which is hashed and to which consents refer.

Invariants:
(1) content of a document is never changed; only absent content is derived;
(2) an expanded document expands to itself;
(3) every derived section records the key that it comes from, so errors point to a line of the document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from abaton.documents.fields import field_error
from abaton.documents.line_numbers import KeyPath
from abaton.documents.problems import format_key_path
from abaton.errors import shorten_name
from abaton.study.sections import DEFAULT_STATEMENTS, ConsentStatement, required_statements
from abaton.study.shorthand.codes import SYSTEMS, expand_codes
from abaton.study.shorthand.derived_features import (
    DerivedFeatures,
    ViewUse,
    merge_requirements,
    select_columns,
    standard_views,
    view_requirements,
)
from abaton.study.shorthand.schema import SHORTHAND_KEYS, ShorthandSections
from abaton.study.summary import (
    describe_input,
    describe_label,
    describe_requirement,
    describe_source,
    describe_view,
)

if TYPE_CHECKING:
    from abaton.study.document import Study


_COUNTRIES = "urn:iso:std:iso:3166"
_SPONSOR = {"system": "http://terminology.hl7.org/CodeSystem/organization-type", "code": "crs"}
_TELECOM_KEYS = ("email", "phone")
_ADDRESS_KEYS = ("city", "country")

Origins = dict[KeyPath, KeyPath]


def expand_sections(table: dict[str, Any], names: Mapping[str, str], origins: Origins) -> None:
    """Expand, in place, the shorthand of regions, centre, criteria and consent statements.

    Args:
        table: The document; its sections are replaced, not modified.
        names: The code system of every short name.
        origins: Receives, for each derived key, the key that it comes from.
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
        statements = _statements(table)
        if statements:
            wording = {statement.value: DEFAULT_STATEMENTS[statement] for statement in statements}
            table["consent"] = {**consent, "statements": wording}
            origins["consent", "statements"] = ("consent",)


def _study(section: dict[str, Any], names: Mapping[str, str], origins: Origins) -> dict[str, Any]:
    regions = section.get("regions")
    if isinstance(regions, list):
        section["regions"] = [
            {"system": _COUNTRIES, "code": region} if isinstance(region, str) else region
            for region in regions
        ]
    if isinstance(section.get("conditions"), dict):
        expanded = expand_codes(section["conditions"], names)
        section["conditions"] = expanded["codes"] if set(expanded) == {"codes"} else section["conditions"]
    if "enrolment" not in section and "period" in section:
        section["enrolment"] = section["period"]
        origins["study", "enrolment"] = ("study", "period")
    return section


def _centre(section: dict[str, Any], names: Mapping[str, str], origins: Origins) -> dict[str, Any]:
    telecom = [
        {"system": system, "value": section.pop(system)} for system in _TELECOM_KEYS if system in section
    ]
    address = {key: section.pop(key) for key in _ADDRESS_KEYS if key in section}
    if telecom and isinstance(section.get("telecom", []), list):
        section["telecom"] = [*section.get("telecom", []), *telecom]
        origins["centre", "telecom"] = ("centre", telecom[0]["system"])
    if address and isinstance(section.get("address", {}), dict):
        section["address"] = {**section.get("address", {}), **address}
        origins["centre", "address"] = ("centre",)
    if "url" in section and "endpoint" not in section:
        section["endpoint"] = {"url": section.pop("url")}
        origins["centre", "endpoint"] = ("centre",)
    if "types" not in section:
        section["types"] = [_SPONSOR]
        origins["centre", "types"] = ("centre",)
    return section


def _eligibility(section: dict[str, Any], names: Mapping[str, str], origins: Origins) -> dict[str, Any]:
    criteria = section.get("criteria")
    if isinstance(criteria, list):
        section["criteria"] = [
            expand_codes(criterion, names) if isinstance(criterion, dict) else criterion
            for criterion in criteria
        ]
    return section


def _statements(table: Mapping[str, Any]) -> tuple[ConsentStatement, ...]:
    """Return the consent statements that expansion adds, as far as they follow from what leaves the sites."""
    study, deidentification = table.get("study"), table.get("deidentification", {})
    shared_data = study.get("shared_data", ["records"]) if isinstance(study, dict) else []
    if not isinstance(shared_data, list) or not isinstance(deidentification, dict):
        return ()
    anonymised = deidentification.get("mechanism", "anonymise") == "anonymise"
    return required_statements(
        records="records" in shared_data, updates="updates" in shared_data, anonymised=anonymised
    )


_PATIENT_INPUTS = ("age", "sex")


@dataclass
class ExpandedStudy:
    """Document in the full form, with the origins of its derived sections.

    Attributes:
        table: The document.
        origins: For a key of the full form, the key of the document from which it was derived.
    """

    table: dict[str, Any]
    origins: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> KeyPath:
        """Return the shorthand key in the document for a key of the expanded form."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return (*self.origins[path[:end]], *path[end:])
        return path


def expand_shorthand(table: dict[str, Any], to_json: Callable[[Any], str] = json.dumps) -> ExpandedStudy:
    """Expand a study's shorthand: derive all sections that the document leaves to be derived.

    Args:
        table: The document as read.
        to_json: Conversion of values to JSON; TOML has dates.

    Raises:
        pydantic.ValidationError: Of :class:`ShorthandSections`: the shorthand is invalid.
    """
    given = {key: table[key] for key in SHORTHAND_KEYS if key in table}
    systems = given.get("systems")
    names = dict(SYSTEMS) | (systems if isinstance(systems, dict) else {})
    expanded = ExpandedStudy({key: value for key, value in table.items() if key not in given})
    if given:
        short = ShorthandSections.model_validate_json(
            to_json(_with_names(given, names)), strict=True, context={"systems": names}
        )
        _derive(short, names, expanded)
    expand_sections(expanded.table, names, expanded.origins)
    return expanded


def _with_names(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the shorthand to expand with the study's system names resolved, age and sex as Patient inputs."""
    own_systems = {name: system for name, system in names.items() if name not in SYSTEMS}

    def resolve(value: Any) -> Any:
        return expand_codes(value, own_systems) if isinstance(value, dict) else value

    expanded = dict(given)
    for section in ("inputs", "outcome"):
        if isinstance(given.get(section), dict):
            expanded[section] = {name: resolve(value) for name, value in given[section].items()}
    expanded |= {"index_date": resolve(given["index_date"])} if "index_date" in given else {}
    inputs = expanded.get("inputs")
    if isinstance(inputs, dict):
        for name in _PATIENT_INPUTS:
            value = inputs.get(name)
            if isinstance(value, dict) and not _has_source(value):
                inputs[name] = {"patient": name, **value}
    return expanded


def _has_source(table: Mapping[str, Any]) -> bool:
    return bool({"view", "patient", "codes", *SYSTEMS} & table.keys())


def _derive(short: ShorthandSections, names: Mapping[str, str], expanded: ExpandedStudy) -> None:
    """Expand the shorthand: add features, views and data requirements to the document."""
    existing = expanded.table.get("features", {})
    if not isinstance(existing, dict) or not (short.inputs or short.outcome or short.index_date):
        return  # problems of the features are reported when the full form is validated
    _check_complete(short, existing, expanded.table)
    has_index_date = short.index_date is not None or "index_date" in existing
    derived = DerivedFeatures(names, has_index_date)
    if not has_index_date:
        _check_dates(short)
    expanded.table["features"] = _features(short, derived, existing)
    if "cohort" not in existing:
        derived.uses.setdefault("patients", ViewUse()).has_unfiltered_use = True
    if not existing:
        derived.origins["features",] = ("inputs",)
    expanded.origins |= derived.origins
    _views(derived, expanded)


def _features(
    short: ShorthandSections, derived: DerivedFeatures, existing: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the expanded features: shorthand inputs before full ones, the document's other keys unchanged."""
    features: dict[str, Any] = {"cohort": "patients"}
    if short.index_date is not None:
        path, key = ("features", "index_date"), ("index_date",)
        derived.origins[path] = key
        features["index_date"] = derived.index_date(short.index_date, path, key)
    inputs = []
    for i, (name, shorthand) in enumerate(short.inputs.items()):
        input_path, input_key = ("features", "inputs", i), ("inputs", name)
        derived.origins[input_path] = input_key
        inputs.append(derived.input(name, shorthand, input_path, input_key))
    for name, outcome in short.outcome.items():
        derived.origins["features", "label"] = ("outcome", name)
        features["label"] = derived.label(name, outcome, ("features", "label"), ("outcome", name))
    more = existing.get("inputs", [])
    if isinstance(more, list):
        for i in range(len(more)):
            derived.origins["features", "inputs", len(inputs) + i] = ("features", "inputs", i)
        features["inputs"] = [*inputs, *more]
    return {**features, **{key: value for key, value in existing.items() if key not in features}}


def _check_complete(
    short: ShorthandSections, existing: Mapping[str, Any], document: Mapping[str, Any]
) -> None:
    """Refuse to expand a shorthand document that defines something twice or lacks inputs or an outcome."""
    pairs = (("index_date", "index_date", short.index_date), ("outcome", "label", short.outcome))
    for key, name, given in pairs:
        if given and name in existing:
            raise _shorthand_error(
                (key,), f"both [{key}] and [features.{name}] are defined", "keep one of them"
            )
    if not short.outcome and "label" not in existing:
        suggestion = _suggest_section("outcome", document)
        raise _shorthand_error(
            ("inputs",), "the study has no outcome", suggestion or "add [outcome] with one line"
        )
    if not short.inputs and not existing.get("inputs"):
        suggestion = _suggest_section("inputs", document)
        raise _shorthand_error(("outcome",), "the study has no inputs", suggestion or "add [inputs]")


def _suggest_section(name: str, document: Mapping[str, Any]) -> str:
    """Suggest a shorthand section's name if the document to expand has one that is nearly right."""
    matches = get_close_matches(name, (section for section in document if section != name), 1, 0.8)
    return f"did you mean [{name}] by [{shorten_name(matches[0])}]?" if matches else ""


def _check_dates(short: ShorthandSections) -> None:
    """Refuse to expand shorthand with ages or events but without an index date or reference date."""
    for name, shorthand in short.inputs.items():
        if shorthand.patient == "age" and shorthand.reference_date is None:
            raise _shorthand_error(
                ("inputs", name),
                "an age has no reference date",
                "add reference_date = 2026-01-01, or [index_date]",
            )
    for name, outcome in short.outcome.items():
        if outcome.outcome_window is not None or outcome.up_to is not None:
            raise _shorthand_error(("outcome", name), "an event has no index date", "add [index_date]")


def _shorthand_error(key: KeyPath, what: str, remedy: str) -> ValidationError:
    """Return the validation error for problems between shorthand sections in the expansion."""
    details = InitErrorDetails(type=field_error(what, remedy), loc=key, input=None)
    return ValidationError.from_exception_data("ShorthandSections", [details])


def _check_required_codes(use: ViewUse, resource_type: str, data: list[Any]) -> None:
    """Refuse to expand shorthand codes that no ``[[data]]`` entry requires, since the input would be empty."""
    requirements = [entry for entry in data if isinstance(entry, dict) and entry.get("type") == resource_type]
    known = [
        code
        for requirement in requirements
        for code_filter in requirement.get("codes") or [{}]
        for code in code_filter.get("any_of") or [None]
    ]
    missing = next((code for code in (*use.codes, *use.answer_codes) if code not in known), None)
    if missing is not None and None not in known:
        raise _shorthand_error(
            use.key,
            f"no [[data]] entry of {resource_type} requires one of the codes for the document's own view",
            "add it there, or remove the view and its [[data]], which are then derived",
        )


def _views(derived: DerivedFeatures, expanded: ExpandedStudy) -> None:
    """Expand the views: add standard views in use that the document does not define, with requirements."""
    views, data = expanded.table.get("views", []), expanded.table.get("data", [])
    if not isinstance(views, list) or not isinstance(data, list):
        return
    own_views = {table.get("name") for table in views if isinstance(table, dict)}
    for name in derived.uses.keys() & own_views:
        _check_required_codes(derived.uses[name], standard_views()[name]["resource"], data)
    names = [name for name in standard_views() if name in derived.uses and name not in own_views]
    uses = [(name, derived.uses[name]) for name in names]
    added = [select_columns(name, use.columns) for name, use in uses]
    requirements = merge_requirements(
        (requirement, use.key)
        for view, (_, use) in zip(added, uses, strict=True)
        for requirement in view_requirements(view, use)
    )
    for i, (_, use) in enumerate(uses):
        expanded.origins["views", len(views) + i] = use.key
    for i, (_, key) in enumerate(requirements):
        expanded.origins["data", len(data) + i] = key
    expanded.table |= {"views": [*views, *added], "data": [*data, *(table for table, _ in requirements)]}


@dataclass(frozen=True, slots=True)
class DerivedSection:
    """One derived section: line and key that it comes from, and a description."""

    line: int
    key: str
    description: str


def derived_sections(
    study: Study, expanded: ExpandedStudy, line: Callable[[KeyPath], int]
) -> Iterator[DerivedSection]:
    """Yield every section that the expansion of a study's shorthand derived, in the order of the full form."""

    def derived(path: KeyPath, description: str) -> Iterator[DerivedSection]:
        origin = expanded.origins.get(path)
        if origin is not None and origin != path:
            yield DerivedSection(line(origin), format_key_path(origin), description)

    yield from derived(("contacts",), f"contact: {', '.join(str(item.name) for item in study.contacts)}")
    for i, requirement in enumerate(study.data):
        yield from derived(("data", i), f"data requirement: {describe_requirement(requirement)}")
    for i, view in enumerate(study.views):
        yield from derived(("views", i), f"standard view {describe_view(view)}")
    if features := study.features:
        if features.index_date:
            yield from derived(
                ("features", "index_date"), f"index date: {describe_source(features.index_date)}"
            )
        for i, item in enumerate(features.inputs):
            path: KeyPath = ("features", "inputs", i)
            if expanded.origins.get(path, ("",))[0] != "features":  # a full input that only moved
                yield from derived(path, f"input {item.name}: {describe_input(item)}")
        yield from derived(("features", "label"), describe_label(features.label))
    if study.consent:
        names = ", ".join(item.value for item in study.consent.statements)
        yield from derived(("consent", "statements"), f"consent statements in default wording: {names}")
