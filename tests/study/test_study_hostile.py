"""Whatever stands in a document, the answer is a study or a list of problems, never a crash."""

from __future__ import annotations

import copy
import json
import tomllib

import pytest
import tomli_w

from abaton.documents.toml_reader import _json_form, _plain
from abaton.study import StudyError, study_from_json, study_from_toml, write_bundle

WRONG = [None, 7, "x", [], {}, [None], [[]], {"x": {}}, True, -0.5, "\x00", [{"url": 3}]]


def places(node, way=()):
    items = (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    )
    for key, value in items:
        yield (*way, key)
        yield from places(value, (*way, key))


def changed(tree, way, value):
    made = copy.deepcopy(tree)
    node = made
    for part in way[:-1]:
        node = node[part]
    node[way[-1]] = value
    return made


def in_bundle(full, wrong, step):
    bundle = write_bundle(full)
    for way in list(places(bundle))[::step]:
        yield study_from_json, json.dumps(changed(bundle, way, wrong))


def in_toml(full_text, wrong, step):
    table = tomllib.loads(full_text)
    for way in list(places(table))[::step]:
        made = json.loads(json.dumps(changed(table, way, wrong), default=_json_form))
        yield study_from_toml, tomli_w.dumps(_plain(made))


def refusals(documents):
    for read, text in documents:
        try:
            read(text)
        except StudyError as error:
            yield from error.problems


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 41])
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_any_value_in_any_place_of_a_bundle(full, wrong, step):
    found = list(refusals(in_bundle(full, wrong, step)))
    assert found
    assert all(problem.what and problem.key for problem in found)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 41])
@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if wrong not in (None, [None])], ids=repr)
def test_any_value_in_any_place_of_a_toml(full_text, wrong, step):
    found = list(refusals(in_toml(full_text, wrong, step)))
    assert found
    assert all(problem.what and problem.line for problem in found)
