"""Any content gives a study or a list of problems, never another exception."""

from __future__ import annotations

import copy
import json
import tomllib

import pytest
import tomli_w

from abaton.documents.toml_reader import _json_form, _toml_value
from abaton.study import StudyError, study_from_json, study_from_toml, write_bundle

VALUES = [None, 7, "x", [], {}, [None], [[]], {"x": {}}, True, -0.5, "\x00", [{"url": 3}]]


def key_paths(node, path=()):
    items = (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    )
    for key, value in items:
        yield (*path, key)
        yield from key_paths(value, (*path, key))


def changed(tree, path, value):
    copied = copy.deepcopy(tree)
    node = copied
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return copied


def in_bundle(full, value, step):
    bundle = write_bundle(full)
    for path in list(key_paths(bundle))[::step]:
        yield study_from_json, json.dumps(changed(bundle, path, value))


def in_toml(full_text, value, step):
    table = tomllib.loads(full_text)
    for path in list(key_paths(table))[::step]:
        document = json.loads(json.dumps(changed(table, path, value), default=_json_form))
        yield study_from_toml, tomli_w.dumps(_toml_value(document))


def refusals(documents):
    for read, text in documents:
        try:
            read(text)
        except StudyError as error:
            yield from error.problems


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 41])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_value_at_any_path_of_a_bundle(full, value, step):
    unexpected = list(refusals(in_bundle(full, value, step)))
    assert unexpected
    assert all(problem.what and problem.key for problem in unexpected)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 41])
@pytest.mark.parametrize("value", [value for value in VALUES if value not in (None, [None])], ids=repr)
def test_any_value_at_any_path_of_a_toml(full_text, value, step):
    unexpected = list(refusals(in_toml(full_text, value, step)))
    assert unexpected
    assert all(problem.what and problem.line for problem in unexpected)
