"""Whether the parts of a study document fit each other: views, what the study may know, features and learning.

Need to know works both ways: what no line of ``[[data]]`` lets through never reaches a view, so a feature made of it
could never be filled. That is told when the document is read, not when a site finds its table empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from abaton.deid.minimisation import passing
from abaton.deid.settings import Dates, Deidentification, Function, Preset, Want
from abaton.documents.fields import Match, Term
from abaton.documents.line_numbers import KeyPath
from abaton.features.specification import (
    DATED,
    Category,
    Features,
    FollowUp,
    Kind,
    Label,
    Outcome,
    Source,
    Where,
    means,
)
from abaton.fhir.elements import children, resources, table
from abaton.fhir.terminology import is_known, is_public
from abaton.study.data_requirements import Requirement
from abaton.study.sections import ViewTable

if TYPE_CHECKING:
    from abaton.study.document import Study

_TASKS = {Outcome.VALUE: "value", Outcome.TIME: "time"}

Misfit = tuple[KeyPath, str, str]
"""Where it is, what is wrong, and what to do."""


def misfits(study: Study) -> list[Misfit]:
    """Everything in which the parts of a study contradict each other."""
    return [
        *_on_views(study.views, study.data),
        *(_on_features(study.features, study.views, study.deidentification.dates) if study.features else ()),
        *(_on_codes(study.features, study.data, study.deidentification) if study.features else ()),
        *_on_learning(study),
    ]


def _on_views(views: tuple[ViewTable, ...], data: tuple[Requirement, ...]) -> Iterator[Misfit]:
    wants = [_want(line) for line in data]
    names = [view.name for view in views]
    for i, view in enumerate(views):
        if view.name in names[:i]:
            yield ("views", i, "name"), f"two views are called '{view.name}'", "give each its own name"
        if view.resource not in resources():
            close = get_close_matches(view.resource, resources(), n=1)
            guess = f"did you mean '{close[0]}'?" if close else "use an R4 resource type"
            yield ("views", i, "resource"), f"R4 has no resource type '{view.resource}'", guess
            continue
        let = passing(view.resource, wants)
        if not let:
            yield (
                ("views", i, "resource"),
                f"no line of [[data]] lets {view.resource} through, so this view would stay empty",
                f"add one with type = '{view.resource}'",
            )
            continue
        yield from _on_elements(view, i, let)


def _want(line: Requirement) -> Want:
    """What a line lets through, whatever its filters find."""
    return Want(line.type, line.function, line.elements if line.function is Function.ELEMENT else ())


def _on_elements(view: ViewTable, i: int, let: frozenset[str]) -> Iterator[Misfit]:
    fields = table()[view.resource]
    for name in sorted(view.elements):
        known = {element.name for element in children(fields, name)}
        if not known:
            close = get_close_matches(name, {element.stem for element in fields.values()}, n=1)
            guess = f"did you mean '{close[0]}'?" if close else f"use an element of {view.resource}"
            yield ("views", i, "select"), f"{view.resource} has no element '{name}'", guess
        elif not known & let:
            yield (
                ("views", i, "select"),
                f"no line of [[data]] lets {view.resource}.{name} through, so it would always be empty",
                f"add '{name}' to the elements of {view.resource}, or leave it out of the view",
            )


def _on_features(features: Features, views: tuple[ViewTable, ...], dates: Dates) -> Iterator[Misfit]:
    by_name = {view.name: view for view in views}
    places: list[tuple[KeyPath, Source]] = [
        (("features", "inputs", i), each) for i, each in enumerate(features.inputs)
    ]
    places.append((("features", "label"), features.label))
    if features.index:
        places.append((("features", "index"), features.index))
    for path, rows in places:
        yield from _on_columns(path, rows.view, {**rows.columns}, rows.where, features.subject, by_name)
    for key in ("follow_up", "death"):
        watched: FollowUp | None = getattr(features.label, key)
        if watched:
            path = ("features", "label", key)
            yield from _on_columns(
                path, watched.view, {"when": watched.when}, watched.where, features.subject, by_name
            )
    if features.cohort is not None and features.cohort not in by_name:
        yield ("features", "cohort"), *_unknown("view", features.cohort, by_name)
    yield from _on_leaks(features)
    yield from _on_dates(features, dates)


def _on_columns(
    path: KeyPath,
    view: str,
    columns: dict[str, str],
    where: Where | None,
    subject: str,
    by_name: dict[str, ViewTable],
) -> Iterator[Misfit]:
    if view not in by_name:
        yield (*path, "view"), *_unknown("view", view, by_name)
        return
    known = by_name[view].columns
    if subject not in known:
        yield (
            (*path, "view"),
            f"the view '{view}' has no column '{subject}' that says whose row it is",
            "add it, with the path getResourceKey() or subject.getReferenceKey(Patient)",
        )
    asked: dict[KeyPath, str] = {(key,): name for key, name in columns.items()}
    if where is not None:
        asked[("where", "column")] = where.column
        if where.system_column is not None:
            asked[("where", "system_column")] = where.system_column
    for key, name in asked.items():
        if name not in known:
            yield (*path, *key), *_unknown(f"column of '{view}'", name, known)


def _unknown(what: str, name: str, known: dict[str, ViewTable] | tuple[str, ...]) -> tuple[str, str]:
    close = get_close_matches(name, known, n=1)
    guess = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known) or 'none'}"
    return f"'{name}' is not a {what}", guess


def _on_codes(features: Features, data: tuple[Requirement, ...], wish: Deidentification) -> Iterator[Misfit]:
    """The de-identifier keeps codes of public terminologies, and those that a line of ``[[data]]`` names."""
    if wish.preset is not Preset.DEFAULT or any("Cod" in rule.path for rule in wish.rules):
        return  # other rules may keep other codes
    exactly = [term for line in data for rule in line.codes for term in rule.any if term.match is Match.EXACT]
    named = {(term.system, term.code) for term in exactly}
    for path, term in _terms(features):
        exact = term.match is Match.EXACT
        known = is_known(term.system, term.code) if exact else is_public(term.system)
        begun = not exact and any(s == term.system and c.startswith(term.code) for s, c in named)
        if not known and not begun and (term.system, term.code) not in named:
            yield (
                path,
                f"no record keeps the code '{term.code}': it is not one of {term.system} or of no public terminology",
                "correct it, or name it under [[data.codes]]",
            )


def _terms(features: Features) -> Iterator[tuple[KeyPath, Term]]:
    parts: list[tuple[KeyPath, Source, tuple[Category, ...], str]] = [
        (("features", "inputs", i), each, each.categories, "categories")
        for i, each in enumerate(features.inputs)
    ]
    parts.append((("features", "label"), features.label, features.label.classes, "classes"))
    if features.index:
        parts.append((("features", "index"), features.index, (), ""))
    for path, rows, buckets, key in parts:
        for j, term in enumerate(rows.where.codes if rows.where else ()):
            yield (*path, "where", "codes", j), term
        for k, bucket in enumerate(buckets):
            yield from (((*path, key, k, "codes", j), term) for j, term in enumerate(bucket.codes))


def _on_leaks(features: Features) -> Iterator[Misfit]:
    """An input that holds the label teaches a model nothing but to read it."""
    label = features.label
    for i, each in enumerate(features.inputs):
        same = each.view == label.view and (
            each.column == label.column or None in (each.column, label.column)
        )
        before = label.kind in DATED and each.when is not None and not each.after_index
        if same and not before and _overlap(each.where, label):
            yield (
                ("features", "inputs", i),
                f"the input '{each.name}' holds the label itself",
                "leave it out, or choose other rows by 'where'",
            )


def _overlap(where: Where | None, label: Label) -> bool:
    if where is None or label.where is None:
        return True
    if where.column != label.where.column:
        return False
    return (
        any(means(label.where, term.system, term.code) for term in where.codes)
        or any(means(where, term.system, term.code) for term in label.where.codes)
        or bool(set(where.values) & set(label.where.values))
    )


def _on_dates(features: Features, dates: Dates) -> Iterator[Misfit]:
    if dates is Dates.YEAR and features.label.kind in DATED:
        yield (
            ("features", "label", "window"),
            "dates are cut to their year, so it cannot be told whether an event falls into the window",
            "write dates = 'shift' under [deidentification]",
        )
    if dates is not Dates.REMOVE:
        return
    for i, each in enumerate(features.inputs):
        if each.when is not None or (each.kind is Kind.AGE and each.at is None):
            key = "when" if each.when else "kind"
            yield (
                ("features", "inputs", i, key),
                "dates are removed from the records",
                "write dates = 'year' or 'shift' under [deidentification]",
            )


def _on_learning(study: Study) -> Iterator[Misfit]:
    learning, features = study.learning, study.features
    if learning is None:
        return
    if features is None:
        yield ("learning",), "there is nothing to learn from", "add [features] with inputs and a label"
        return
    if learning.task != _TASKS.get(features.label.kind, "classes"):
        yield (
            ("learning", "task"),
            f"the task '{learning.task}' does not fit a label of kind '{features.label.kind}'",
            "use task = 'value' for a label of kind 'value', 'time' for one of kind 'time', 'classes' for all others",
        )
    if "updates" not in study.study.shares:
        yield ("learning",), "the study shares no updates of a model", "add 'updates' to study.shares"
    kinds = {each.name: each.kind for each in features.inputs}
    for i, group in enumerate(learning.evaluation.groups):
        place: KeyPath = ("learning", "evaluation", "groups", i)
        if group.input not in kinds:
            yield (*place, "input"), *_unknown("input", group.input, tuple(kinds))
        elif bool(group.bands) != (kinds[group.input] in (Kind.NUMBER, Kind.AGE, Kind.COUNT)):
            yield (
                (*place, "bands"),
                f"'bands' does not fit the input '{group.input}'",
                "give bands for numbers, ages and counts, and for nothing else",
            )
    for i, name in enumerate(learning.explanation.dependence if learning.explanation else ()):
        if name not in kinds:
            yield ("learning", "explanation", "dependence", i), *_unknown("input", name, tuple(kinds))
    if learning.personalise and len(features.label.names) > 2:
        yield (
            ("learning", "personalise"),
            f"a model of {len(features.label.names)} classes cannot be made a site's own",
            "leave it out, or learn two classes or a value",
        )
