"""Questions of a study that are nearly the same, whose answers differ by few subjects.

Two counts over cohorts that differ by one cut-off, unit, period or year of age show the subjects in between. Such pairs
are reported with both locations; whether they are intended is for the site to decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, combinations, islice, pairwise
from typing import Any

from abaton.canonical_json import canonical_digest
from abaton.documents.fields import without_empty
from abaton.errors import shorten_name
from abaton.study.criteria import Criterion
from abaton.study.document import Study

_LOWER, _UPPER = ("low", "above", "equals"), ("high", "below", "equals")
_CRITERION_DETAILS = {*_LOWER, *_UPPER, "unit", "period", "note", "exclude"}
_INPUT_DETAILS = {
    *("name", "unit", "molar_mass", "plausible", "on_implausible", "band_width", "spline", "scale"),
    *("reference_date", "imputation", "fill_value", "missing_indicator", "on_unit_mismatch", "after_index"),
}
# Numbers and dates that a FHIRPath compares, adds or subtracts; an index such as coding[0] is none of them.
_CUT_OFF = re.compile(r"((?:[<>=~+]|(?<=\s)-)\s*)@?-?\d[\d.:TZ+-]*")
_MAX_BAND = 1.0  # one unit, such as one year of age
_MAX_REMARKS = 20


def similar_questions(study: Study) -> list[str]:
    """Return a remark on each pair of criteria, view columns, inputs or groups that ask nearly the same."""
    pairs = chain(_criteria(study), _columns(study), _inputs(study), _groups(study))
    listed = list(islice(pairs, _MAX_REMARKS))
    remarks = [f"{one} and {other} ask nearly the same: {why}" for one, other, why in listed]
    if next(pairs, None) is not None:
        remarks.append(f"more than {_MAX_REMARKS} pairs ask nearly the same; the others are not listed")
    return remarks + list(_narrow_bands(study))


def similar_studies(study: Study, others: Iterable[Study]) -> list[str]:
    """Return a remark on each other study whose eligibility differs from this one by one criterion."""
    remarks = []
    for other in others:
        if other.hash == study.hash:
            continue
        here, there = _distinct_criteria(study), _distinct_criteria(other)
        added, removed = here.keys() - there.keys(), there.keys() - here.keys()
        if max(len(added), len(removed)) != 1:
            continue
        changed = [here[key] for key in added], [there[key] for key in removed]
        if not here.keys() & there.keys() and not _are_similar(study, other, changed):
            continue  # each study has one criterion, on another subject
        locations = [f"eligibility.criteria[{i}] of this study" for i in changed[0]]
        locations += [
            f"eligibility.criteria[{i}] of study '{shorten_name(other.study.id)}'" for i in changed[1]
        ]
        remarks.append(
            f"{' and '.join(locations)}: the two studies differ by one criterion, so counts differ by few subjects"
        )
    return remarks


def _criteria(study: Study) -> Iterator[tuple[str, str, str]]:
    for group in _groups_by(map(_criterion_key, study.eligibility.criteria)):
        for i, j in combinations(group, 2):
            one, other = study.eligibility.criteria[i], study.eligibility.criteria[j]
            if _bound_the_same_side(one, other):
                why = "they differ only in cut-offs, unit or period"
                yield f"eligibility.criteria[{i}]", f"eligibility.criteria[{j}]", why


def _bound_the_same_side(one: Criterion, other: Criterion) -> bool:
    """Return whether two similar questions are not the two ends of one range, such as low = 18 and high = 80."""
    if not one.has_bounds or not other.has_bounds:
        return one.has_bounds == other.has_bounds
    return any(_has_any(one, keys) and _has_any(other, keys) for keys in (_LOWER, _UPPER))


def _has_any(criterion: Criterion, keys: tuple[str, ...]) -> bool:
    return any(getattr(criterion, key) is not None for key in keys)


def _columns(study: Study) -> Iterator[tuple[str, str, str]]:
    for i, view in enumerate(study.views):
        columns = list(_column_paths(view.definition()))
        for group in _groups_by(_without_cut_offs(path) for _, path in columns):
            for one, other in combinations(group, 2):
                if columns[one][1] != columns[other][1]:
                    first, second = (f"views[{i}] column '{columns[k][0]}'" for k in (one, other))
                    yield first, second, "their paths differ only in cut-offs"


def _column_paths(node: Any) -> Iterator[tuple[str, str]]:
    """Yield name and path of every column of a view, to compare its questions."""
    if isinstance(node, Mapping):
        if isinstance(node.get("name"), str) and isinstance(node.get("path"), str):
            yield node["name"], node["path"]
        for value in node.values():
            yield from _column_paths(value)
    elif isinstance(node, list):
        for item in node:
            yield from _column_paths(item)


def _inputs(study: Study) -> Iterator[tuple[str, str, str]]:
    if study.features is None:
        return
    views = {view.name: _view_key(view.definition()) for view in study.views}
    inputs = study.features.inputs
    for group in _groups_by(_input_key(item.model_dump(mode="json"), views) for item in inputs):
        for i, j in combinations(group, 2):
            first, second = (f"features.inputs[{k}] '{inputs[k].name}'" for k in (i, j))
            yield first, second, "they differ only in cut-offs, unit, window or treatment of values"


def _groups(study: Study) -> Iterator[tuple[str, str, str]]:
    groups = study.learning.evaluation.groups if study.learning else ()
    for group in _groups_by(item.input for item in groups):
        for i, j in combinations(group, 2):
            first, second = (f"learning.evaluation.groups[{k}]" for k in (i, j))
            yield first, second, "they divide the same input"


def _narrow_bands(study: Study) -> Iterator[str]:
    for i, group in enumerate(study.learning.evaluation.groups if study.learning else ()):
        if any(high - low <= _MAX_BAND for low, high in pairwise(group.bands)):
            location = f"learning.evaluation.groups[{i}].bands"
            yield f"{location}: two bands differ by one unit or less, so a group has few subjects"


def _distinct_criteria(study: Study) -> dict[str, int]:
    """Return the position of each criterion by its content without the note, to compare two studies' questions."""
    return {
        canonical_digest(without_empty(criterion.model_dump(mode="json", exclude={"note"}))): i
        for i, criterion in enumerate(study.eligibility.criteria)
    }


def _are_similar(study: Study, other: Study, changed: tuple[list[int], list[int]]) -> bool:
    here = [_criterion_key(study.eligibility.criteria[i]) for i in changed[0]]
    return here == [_criterion_key(other.eligibility.criteria[i]) for i in changed[1]]


def _criterion_key(criterion: Criterion) -> str:
    return canonical_digest(without_empty(criterion.model_dump(mode="json", exclude=_CRITERION_DETAILS)))


def _input_key(item: dict[str, Any], views: Mapping[str, str]) -> str:
    remaining = {key: value for key, value in item.items() if key not in _INPUT_DETAILS}
    return canonical_digest(without_empty({**remaining, "view": views.get(item["view"], item["view"])}))


def _view_key(definition: dict[str, Any]) -> str:
    return canonical_digest(_without_cut_offs({**definition, "name": "", "constant": []}))


def _without_cut_offs(value: Any) -> Any:
    """Return paths without the numbers and dates that they compare, so that similar questions become equal."""
    if isinstance(value, str):
        return _CUT_OFF.sub(r"\1#", value)
    if isinstance(value, Mapping):
        return {key: _without_cut_offs(item) for key, item in value.items()}
    return [_without_cut_offs(item) for item in value] if isinstance(value, list | tuple) else value


def _groups_by(keys: Iterable[str]) -> list[list[int]]:
    """Return the positions of similar questions: those with equal keys, if there are several."""
    positions: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        positions.setdefault(key, []).append(i)
    return [group for group in positions.values() if len(group) > 1]
