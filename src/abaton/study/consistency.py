"""Consistency of the sections of a study document: views, data requirements, features and learning.

De-identification drops what no ``[[data]]`` entry requires, so a feature of a dropped element would always be missing.
Such features are reported when the document is read, not when a site's table turns out empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from abaton.deid.minimisation import required_elements
from abaton.deid.settings import (
    DateHandling,
    DeidentificationSettings,
    RulePreset,
)
from abaton.documents.fields import CodePrefix, Coding
from abaton.documents.line_numbers import KeyPath
from abaton.errors import did_you_mean
from abaton.features.specification import (
    EVENT_LABELS,
    Category,
    FeatureSpec,
    FollowUpSpec,
    InputKind,
    LabelKind,
    LabelSpec,
    RowFilter,
    ViewColumn,
    matches_code,
)
from abaton.fhir.elements import child_elements, element_table, resource_types
from abaton.fhir.terminology import is_known, is_public
from abaton.study.data_requirements import RequirementSection
from abaton.study.sections import ViewSection

if TYPE_CHECKING:
    from abaton.study.document import Study

_LABEL_TASKS = {LabelKind.VALUE: "regression", LabelKind.TIME: "survival"}

ConsistencyError = tuple[KeyPath, str, str]
"""Key path, problem and remedy."""


def consistency_errors(study: Study) -> list[ConsistencyError]:
    """Check a study's consistency: return all contradictions between its sections."""
    return [
        *_on_views(study.views, study.data),
        *(_on_features(study.features, study.views, study.deidentification.dates) if study.features else ()),
        *(_on_codes(study.features, study.data, study.deidentification) if study.features else ()),
        *_on_learning(study),
    ]


def _on_views(
    views: tuple[ViewSection, ...], data: tuple[RequirementSection, ...]
) -> Iterator[ConsistencyError]:
    requirements = [entry.to_requirement() for entry in data]
    names = [view.name for view in views]
    for i, view in enumerate(views):
        if view.name in names[:i]:
            yield ("views", i, "name"), f"two views are called '{view.name}'", "give each its own name"
        if view.resource not in resource_types():
            guess = did_you_mean(view.resource, resource_types(), "use an R4 resource type")
            yield ("views", i, "resource"), "this is not an R4 resource type", guess
            continue
        allowed = required_elements(view.resource, requirements)
        if not allowed:
            yield (
                ("views", i, "resource"),
                f"no [[data]] entry requires {view.resource}, so this view is always empty",
                f"add one with type = '{view.resource}'",
            )
            continue
        yield from _on_elements(view, i, allowed)


def _on_elements(view: ViewSection, i: int, allowed: frozenset[str]) -> Iterator[ConsistencyError]:
    fields = element_table()[view.resource]
    for name in sorted(view.elements):
        known = {element.name for element in child_elements(fields, name)}
        if not known:
            stems = {element.stem for element in fields.values()}
            guess = did_you_mean(name, stems, f"use an element of {view.resource}")
            yield ("views", i, "select"), f"an element that a path reads is not in {view.resource}", guess
        elif not known & allowed:
            yield (
                ("views", i, "select"),
                f"no [[data]] entry requires {view.resource}.{name}, so it is always missing",
                f"add '{name}' to the elements of {view.resource}, or remove it from the view",
            )


def _on_features(
    features: FeatureSpec, views: tuple[ViewSection, ...], dates: DateHandling
) -> Iterator[ConsistencyError]:
    by_name = {view.name: view for view in views}
    sources: list[tuple[KeyPath, ViewColumn]] = [
        (("features", "inputs", i), spec) for i, spec in enumerate(features.inputs)
    ]
    sources.append((("features", "label"), features.label))
    if features.index_date:
        sources.append((("features", "index_date"), features.index_date))
    for path, source in sources:
        yield from _on_columns(path, source.view, {**source.columns}, source.where, features.subject, by_name)
    for key in ("follow_up", "death"):
        follow_up: FollowUpSpec | None = getattr(features.label, key)
        if follow_up:
            path = ("features", "label", key)
            yield from _on_columns(
                path,
                follow_up.view,
                {"date_column": follow_up.date_column},
                follow_up.where,
                features.subject,
                by_name,
            )
    if features.cohort is not None and features.cohort not in by_name:
        yield ("features", "cohort"), *_unknown("a view", features.cohort, by_name)
    yield from _on_leaks(features)
    yield from _on_dates(features, dates)


def _on_columns(
    path: KeyPath,
    view: str,
    columns: dict[str, str],
    where: RowFilter | None,
    subject: str,
    by_name: dict[str, ViewSection],
) -> Iterator[ConsistencyError]:
    if view not in by_name:
        yield (*path, "view"), *_unknown("a view", view, by_name)
        return
    known = by_name[view].columns
    if subject not in known:
        yield (
            (*path, "view"),
            f"the view '{view}' has no subject column",
            "add the column of features.subject, with the path getResourceKey() or subject.getReferenceKey(Patient)",
        )
    names: dict[KeyPath, str] = {(key,): name for key, name in columns.items()}
    if where is not None:
        names[("where", "column")] = where.column
        if where.system_column is not None:
            names[("where", "system_column")] = where.system_column
    for key, name in names.items():
        if name not in known:
            yield (*path, *key), *_unknown(f"a column of '{view}'", name, known)


def _unknown(what: str, name: str, known: dict[str, ViewSection] | tuple[str, ...]) -> tuple[str, str]:
    return f"this is not {what}", did_you_mean(name, known, f"known are {', '.join(known) or 'none'}")


def _on_codes(
    features: FeatureSpec, data: tuple[RequirementSection, ...], settings: DeidentificationSettings
) -> Iterator[ConsistencyError]:
    """Report the inconsistency of codes that de-identification drops: neither public nor in ``[[data]]``."""
    if settings.preset is not RulePreset.DEFAULT or any("Cod" in rule.path for rule in settings.rules):
        return  # other rules may keep further codes
    codings = [
        coding
        for entry in data
        for code_filter in entry.codes
        for coding in code_filter.any_of
        if coding.match is CodePrefix.EXACT
    ]
    named = {(coding.system, coding.code) for coding in codings}
    for path, coding in _feature_codes(features):
        exact = coding.match is CodePrefix.EXACT
        known = is_known(coding.system, coding.code) if exact else is_public(coding.system)
        has_prefix = not exact and any(s == coding.system and c.startswith(coding.code) for s, c in named)
        if not known and not has_prefix and (coding.system, coding.code) not in named:
            yield (
                path,
                "de-identification removes this code: it is not a public code of its system",
                "correct it, or name it under [[data.codes]]",
            )


def _feature_codes(features: FeatureSpec) -> Iterator[tuple[KeyPath, Coding]]:
    sources: list[tuple[KeyPath, ViewColumn, tuple[Category, ...], str]] = [
        (("features", "inputs", i), spec, spec.categories, "categories")
        for i, spec in enumerate(features.inputs)
    ]
    sources.append((("features", "label"), features.label, features.label.classes, "classes"))
    if features.index_date:
        sources.append((("features", "index_date"), features.index_date, (), ""))
    for path, source, categories, key in sources:
        for j, coding in enumerate(source.where.codes if source.where else ()):
            yield (*path, "where", "codes", j), coding
        for k, category in enumerate(categories):
            yield from (((*path, key, k, "codes", j), coding) for j, coding in enumerate(category.codes))


def _on_leaks(features: FeatureSpec) -> Iterator[ConsistencyError]:
    """Report the inconsistency of inputs that contain the label."""
    label = features.label
    for i, spec in enumerate(features.inputs):
        same = spec.view == label.view and (
            spec.column == label.column or None in (spec.column, label.column)
        )
        before = label.kind in EVENT_LABELS and spec.date_column is not None and not spec.after_index
        if same and not before and _overlap(spec.where, label):
            yield (
                ("features", "inputs", i),
                f"the input '{spec.name}' contains the label",
                "remove it, or select other rows with 'where'",
            )


def _overlap(where: RowFilter | None, label: LabelSpec) -> bool:
    if where is None or label.where is None:
        return True
    if where.column != label.where.column:
        return False
    return (
        any(matches_code(label.where, coding.system, coding.code) for coding in where.codes)
        or any(matches_code(where, coding.system, coding.code) for coding in label.where.codes)
        or bool(set(where.values) & set(label.where.values))
    )


def _on_dates(features: FeatureSpec, dates: DateHandling) -> Iterator[ConsistencyError]:
    if dates is DateHandling.YEAR and features.label.kind in EVENT_LABELS:
        yield (
            ("features", "label", "outcome_window"),
            "dates are reduced to years, so events in the outcome window are unknown",
            "write dates = 'shift' under [deidentification]",
        )
    if dates is not DateHandling.REMOVE:
        return
    for i, spec in enumerate(features.inputs):
        if spec.date_column is not None or (spec.kind is InputKind.AGE and spec.reference_date is None):
            key = "date_column" if spec.date_column else "kind"
            yield (
                ("features", "inputs", i, key),
                "dates are removed from the records",
                "write dates = 'year' or 'shift' under [deidentification]",
            )


def _on_learning(study: Study) -> Iterator[ConsistencyError]:
    learning, features = study.learning, study.features
    if learning is None:
        return
    if features is None:
        yield ("learning",), "the study has no [features]", "add [features] with inputs and a label"
        return
    if learning.task != _LABEL_TASKS.get(features.label.kind, "classification"):
        yield (
            ("learning", "task"),
            f"the task '{learning.task}' does not fit a label of kind '{features.label.kind}'",
            "use 'regression' for a label of kind 'value', 'survival' for 'time', 'classification' for all others",
        )
    if "updates" not in study.study.shared_data:
        yield ("learning",), "the study shares no model updates", "add 'updates' to study.shared_data"
    kinds = {spec.name: spec.kind for spec in features.inputs}
    for i, group in enumerate(learning.evaluation.groups):
        path: KeyPath = ("learning", "evaluation", "groups", i)
        if group.input not in kinds:
            yield (*path, "input"), *_unknown("an input", group.input, tuple(kinds))
        elif bool(group.bands) != (kinds[group.input] in (InputKind.NUMBER, InputKind.AGE, InputKind.COUNT)):
            yield (
                (*path, "bands"),
                f"'bands' does not fit the input '{group.input}'",
                "give bands for numbers, ages and counts only",
            )
    interpretability = learning.interpretability
    for i, name in enumerate(interpretability.partial_dependence if interpretability else ()):
        if name not in kinds:
            yield (
                ("learning", "interpretability", "partial_dependence", i),
                *_unknown("an input", name, tuple(kinds)),
            )
    if learning.personalise and len(features.label.class_names) > 2:
        yield (
            ("learning", "personalise"),
            f"a model of {len(features.label.class_names)} classes cannot be personalised",
            "remove 'personalise', or use two classes or regression",
        )
