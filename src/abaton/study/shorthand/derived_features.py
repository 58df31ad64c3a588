"""Features, standard views and data requirements derived from shorthand inputs, outcome and index date."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from abaton.documents.line_numbers import KeyPath
from abaton.features.specification import Aggregation, InputKind
from abaton.fhir.terminology import is_known
from abaton.study.shorthand.codes import Codes, parse_code
from abaton.study.shorthand.schema import ShortFollowUp, ShortIndex, ShortInput, ShortOutcome, ShortRows
from abaton.views.required_elements import elements_read_by

_SUBJECT = ("subject", "patient")
Codings = list[dict[str, str]]


@cache
def standard_views() -> Mapping[str, Mapping[str, Any]]:
    """Return every standard view from which shorthand features are derived, by name."""
    text = files("abaton.study.shorthand").joinpath("views.toml").read_text(encoding="utf-8")
    return {view["name"]: view for view in tomllib.loads(text)["views"]}


@dataclass
class ViewUse:
    """Use of one view by a study: columns, and the codes to match; all records if no code is named.

    ``answers`` are codes outside public systems that occur as values, which the study must name to keep them;
    ``key`` is the first key of the document that uses the view.
    """

    columns: set[str] = field(default_factory=lambda: {"subject"})
    codes: Codings = field(default_factory=list)
    has_unfiltered_use: bool = False
    answers: Codings = field(default_factory=list)
    answer_codes: Codings = field(default_factory=list)
    key: KeyPath = ("inputs",)

    def add_filter(self, codes: Codings, answers: Codings) -> None:
        """Record the codes and answers of one derived input, outcome or index date."""
        self.has_unfiltered_use = self.has_unfiltered_use or not codes
        unknown = [answer for answer in answers if not is_known(answer["system"], answer["code"])]
        _add_new(self.answer_codes if unknown else self.codes, codes)
        _add_new(self.answers, answers if unknown else [])


def _add_new(known: Codings, more: Codings) -> None:
    known += [item for item in more if item not in known]


def select_columns(name: str, columns: Collection[str]) -> dict[str, Any]:
    """Return a standard view with the columns that derived features use."""
    view = standard_views()[name]
    trimmed = {key: value for key, value in view.items() if key != "codes"}
    return {**trimmed, "select": [_select_columns(select, columns) for select in view["select"]]}


def _select_columns(select: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    trimmed = dict(select)
    if "column" in select:
        trimmed["column"] = [item for item in select["column"] if item["name"] in columns]
    if "unionAll" in select:
        trimmed["unionAll"] = [_select_columns(item, columns) for item in select["unionAll"]]
    return trimmed


def view_requirements(view: Mapping[str, Any], use: ViewUse) -> Iterator[dict[str, Any]]:
    """Derive the data requirements of a view: resource type, elements read, and codes matched."""
    path = standard_views()[view["name"]].get("codes")
    elements = sorted(elements_read_by(view) - set(_SUBJECT)) or ["id"]
    base = {"type": view["resource"], "purpose": "element"}
    if path is None or use.has_unfiltered_use:
        yield {**base, "elements": elements}
        return
    forms = [(path, [element for element in elements if element != "component"])]
    if "component" in elements:
        # The other components are kept too, because a requirement names whole elements.
        forms.append((f"component.{path}", [element for element in elements if element != "value"]))
    for code_path, names in forms:
        if use.codes:
            yield {**base, "elements": names, "codes": [{"path": code_path, "any_of": use.codes}]}
        if use.answer_codes:
            value = code_path.removesuffix(path) + "value"
            filters = [
                {"path": code_path, "any_of": use.answer_codes},
                {"path": value, "any_of": use.answers},
            ]
            yield {**base, "elements": names, "codes": filters}


Requirement = tuple[dict[str, Any], KeyPath]
"""Data requirement with the key from which it is derived."""


def merge_requirements(requirements: Iterable[Requirement]) -> list[Requirement]:
    """Merge derived data requirements that differ only in the codes of one filter."""
    merged: list[Requirement] = []
    for requirement, key in requirements:
        base = {key: value for key, value in requirement.items() if key != "codes"}
        filters = requirement.get("codes", [])
        for other, _ in merged:
            same = {key: value for key, value in other.items() if key != "codes"} == base
            other_filters = other.get("codes", [])
            same = same and len(filters) == len(other_filters) == 1
            if same and filters[0]["path"] == other_filters[0]["path"]:
                _add_new(other_filters[0]["any_of"], filters[0]["any_of"])
                break
        else:
            copied = [{**code_filter, "any_of": [*code_filter["any_of"]]} for code_filter in filters]
            merged.append(({**requirement, **({"codes": copied} if copied else {})}, key))
    return merged


_DEFAULT_FOLLOW_UP = "visits"
_SEX = [{"name": "female", "values": ["female"]}, {"name": "male", "values": ["male"]}]
_SHARED_KEYS = (
    *("unit", "molar_mass", "on_unit_mismatch", "band_width", "scale"),
    *("missing_indicator", "after_index"),
)
_ORDERED = (Aggregation.LATEST, Aggregation.EARLIEST)
_CODES_PATH = "where", "codes"


@dataclass
class DerivedFeatures:
    """Features under construction, the views they use, and the key from which each is derived.

    Args:
        systems: The code system of every short name.
        has_index_date: Whether the study has an index date.
    """

    systems: Mapping[str, str]
    has_index_date: bool
    uses: dict[str, ViewUse] = field(default_factory=dict)
    origins: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def input(self, name: str, short: ShortInput, path: KeyPath, key: KeyPath) -> dict[str, Any]:
        """Derive the full form of one input from its shorthand."""
        if short.patient is not None:
            return self._patient_input(name, short, key)
        kind, view = short.input_kind, short.source_view
        spec: dict[str, Any] = {"name": name, "kind": kind.value, "view": view}
        categories = self._categories(short.categories) if short.categories is not None else []
        answers = [code for category in categories for code in category["codes"]]
        spec |= self._code_filter(short, view, path, key, answers)
        aggregation = short.aggregation
        if categories:
            spec |= {"column": "answer", "system_column": "answer_system", "categories": categories}
            self._record_origins(path, key, categories, "categories")
        elif short.column is not None or kind is InputKind.NUMBER:
            spec["column"] = short.column or "value"
        if short.unit is not None:
            spec["unit_column"] = "unit"
        if aggregation is None and kind in (InputKind.NUMBER, InputKind.CATEGORY):
            aggregation = Aggregation.LATEST
        if aggregation is not None and kind is not InputKind.COUNT:
            spec["aggregation"] = aggregation.value
        if self.has_index_date or aggregation in _ORDERED:
            spec["date_column"] = "date"
        return self._record_columns(view, {**spec, **_shared_settings(short)})

    def index_date(self, short: ShortIndex, path: KeyPath, key: KeyPath) -> dict[str, Any]:
        """Derive the full form of the index date from its shorthand."""
        view = short.resolve_view()
        spec = {"view": view, "column": "date", "aggregation": short.aggregation}
        return self._record_columns(view, {**spec, **self._code_filter(short, view, path, key)})

    def label(self, name: str, short: ShortOutcome, path: KeyPath, key: KeyPath) -> dict[str, Any]:
        """Derive the full form of the label from its shorthand."""
        view = short.source_view
        spec: dict[str, Any] = {"name": name, "kind": _label_kind(short), "view": view}
        classes = self._categories(short.classes) if short.classes is not None else []
        answers = [code for category in classes for code in category["codes"]]
        spec |= self._code_filter(short, view, path, key, answers)
        if short.outcome_window is not None:
            spec |= {"outcome_window": short.outcome_window, "date_column": "date"}
        if short.up_to is not None:
            spec |= {"outcome_window": short.up_to, "date_column": "date"}
            if short.patient != "death":
                spec["death"] = self._follow_up("deaths", path, key)
        if classes:
            spec |= {"column": "answer", "system_column": "answer_system", "classes": classes}
            self._record_origins(path, key, classes, "classes")
        if short.unit is not None:
            spec |= {"column": "value", "unit": short.unit, "unit_column": "unit"}
        spec |= {k: v for k in ("threshold", "molar_mass") if (v := getattr(short, k)) is not None}
        if classes or short.unit is not None:
            aggregation = short.aggregation or Aggregation.LATEST
            spec |= {
                "aggregation": aggregation.value,
                **({"date_column": "date"} if aggregation in _ORDERED else {}),
            }
        elif short.aggregation is not None:
            spec["aggregation"] = short.aggregation.value
        if short.follow_up is not None:
            spec["follow_up"] = self._follow_up(short.follow_up, (*path, "follow_up"), (*key, "follow_up"))
        elif short.up_to is not None:
            spec["follow_up"] = self._follow_up(_DEFAULT_FOLLOW_UP, path, key)
        return self._record_columns(view, spec)

    def _follow_up(self, short: str | ShortFollowUp, path: KeyPath, key: KeyPath) -> dict[str, Any]:
        rows = ShortFollowUp(view=short) if isinstance(short, str) else short
        view = rows.resolve_view()
        spec = {"view": view, "date_column": "date", **self._code_filter(rows, view, path, key)}
        return self._record_columns(view, spec)

    def _patient_input(self, name: str, short: ShortInput, key: KeyPath) -> dict[str, Any]:
        spec: dict[str, Any] = {"name": name, "view": "patients"}
        if short.patient == "sex":
            spec |= {"kind": "category", "column": "sex", "categories": _SEX}
        else:
            spec |= {"kind": "age", "column": "born"}
            if short.reference_date is not None:
                spec["reference_date"] = short.reference_date.isoformat()
        self._view_use("patients", key).has_unfiltered_use = True
        return self._record_columns("patients", {**spec, **_shared_settings(short)})

    def _code_filter(
        self, rows: ShortRows, view: str, path: KeyPath, key: KeyPath, answers: Codings | None = None
    ) -> dict[str, Any]:
        """Derive the filter by codes of a feature, and record the use of its view."""
        codings = [coding for _, coding in rows.codings]
        self._view_use(view, key).add_filter(codings, answers or [])
        if not codings:
            return {}
        for i, (name, _) in enumerate(rows.codings):
            self.origins[(*path, *_CODES_PATH, i)] = (*key, name)
        return {"where": {"column": "code", "system_column": "system", "codes": codings}}

    def _categories(self, given: Mapping[str, Mapping[str, Codes]]) -> list[dict[str, Any]]:
        """Derive a feature's categories in order of first occurrence, each with its codes of all systems."""
        categories: dict[str, Codings] = {}
        for system, names in given.items():
            for name, codes in names.items():
                categories.setdefault(name, []).extend(
                    parse_code(self.systems[system], text) for text in codes
                )
        return [{"name": name, "codes": codes} for name, codes in categories.items()]

    def _record_origins(
        self, path: KeyPath, key: KeyPath, categories: list[dict[str, Any]], name: str
    ) -> None:
        for i in range(len(categories)):
            self.origins[(*path, name, i)] = (*key, name)

    def _view_use(self, view: str, key: KeyPath) -> ViewUse:
        return self.uses.setdefault(view, ViewUse(key=key))

    def _record_columns(self, view: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Record the columns of a view that derived features use."""
        where = spec.get("where", {})
        names = [spec.get(key) for key in ("column", "system_column", "unit_column", "date_column")]
        names += [where.get("column"), where.get("system_column")]
        self.uses[view].columns.update(name for name in names if name is not None)
        return spec


def _label_kind(short: ShortOutcome) -> str:
    if short.outcome_window is not None:
        return "event"
    if short.up_to is not None:
        return "time"
    if short.classes is not None:
        return "classes"
    if short.unit is not None:
        return "threshold" if short.threshold is not None else "value"
    return "any"


def _shared_settings(short: ShortInput) -> dict[str, Any]:
    """Return a derived feature's keys shared with the shorthand; a fill value implies constant imputation."""
    settings = {key: value for key in _SHARED_KEYS if (value := getattr(short, key)) not in (None, False)}
    imputation = short.imputation or ("constant" if short.fill_value is not None else None)
    settings |= {"imputation": imputation} if imputation is not None else {}
    settings |= {"spline": list(short.spline)} if short.spline else {}
    return settings | ({"fill_value": short.fill_value} if short.fill_value is not None else {})
