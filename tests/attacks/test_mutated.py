"""Mutated answers and questions, from a seed: nothing crashes, and nothing that was not checked gets through.

`make fuzz` runs a million of each; here are twenty thousand, and in the quick tests a few.
"""

from __future__ import annotations

import json
import math
import os
import random
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from tests.attacks.conftest import Centre
from tests.engines.test_engine_contract import MODEL, SETTINGS, check, learners

from abaton.controller import POLICIES, Arrived, Evaluate, Failed, Joined, Rules, Scored, State, Train, step
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.base import FAILED, REASONS
from abaton.engines.flower import Parcel
from abaton.engines.reply_validation import Reader
from abaton.learners import Reply
from abaton.metrics import counts
from abaton.study_run.messages import FIELDS, fields_of, worded

ZEROS = np.zeros(MODEL.layout.size, np.float32)
TASKS = TrainTask("t", "site0", 0, ZEROS, SETTINGS), EvaluateTask("t", "site0", ZEROS)
PAYLOAD = learners("site0")["site0"].train("t", 0, ZEROS, SETTINGS).payload
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**53 + 1, -(2**63), 10**400, 0.5, -0.0, 1e15, 1e308, math.inf,
    -math.inf, math.nan, "", "t", "0" * 64, "\x00", "../../x", "9" * 5000, b"", b"\xff" * 40, [], {}, [[]], [None],
    {"a": 1},
)  # fmt: skip
MANY = int(os.environ.get("ABATON_FUZZ", "20000"))
SIZES = [pytest.param(2000, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]


def mutated(value: Any, rng: random.Random) -> Any:
    """The value with one thing changed, somewhere inside it."""
    if rng.random() < 0.15:
        return deepcopy(rng.choice(STRANGE))
    if isinstance(value, dict) and value:
        made, key = dict(value), rng.choice(sorted(value))
        match rng.randrange(6):
            case 0:
                del made[key]
            case 1:
                made[rng.choice(("patient", "key", "", "reason"))] = deepcopy(rng.choice(STRANGE))
            case _:
                made[key] = mutated(made[key], rng)
        return made
    if isinstance(value, list) and value:
        made, place = list(value), rng.randrange(len(value))
        match rng.randrange(5):
            case 0:
                del made[place]
            case 1:
                made.insert(place, deepcopy(rng.choice(STRANGE)))
            case _:
                made[place] = mutated(made[place], rng)
        return made
    if isinstance(value, bytes) and value:
        spoilt, place = bytearray(value), rng.randrange(len(value))
        match rng.randrange(3):
            case 0:
                return bytes(spoilt[:place])
            case 1:
                return bytes(spoilt) + bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
            case _:
                spoilt[place] = rng.randrange(256)
        return bytes(spoilt)
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 0.5, 1e15))
    return deepcopy(rng.choice(STRANGE))


@pytest.mark.parametrize("count", SIZES)
def test_mutated_answers_crash_nothing_and_pass_nothing_unchecked(count):
    rng, reader = random.Random(16), Reader(lambda data: "digest", check)
    sound = {
        "key": "t",
        "steps": 8,
        "examples": 40,
        "loss": 0.5,
        "score": [4, 4, 5, 5, 5, 5, 3.0],
        "cohort": "",
        "signature": "0f" * 96,
    }
    scored = {"key": "t", "score": [4, 4, 5, 5, 5, 5, 3.0]}
    rules = Rules(learners=3, rounds=10, **POLICIES["AsyncDVW(na)"])
    begun, said = State(), ()
    for name in ("site0", "site1", "site2"):
        begun, said = step(rules, begun, Joined(0.0, name, 40, "", (5, 5)))
    task = next(each.task for each in said if isinstance(each, Train) and each.learner == "site0")
    passed = 0
    for _ in range(count):
        training = rng.random() < 0.5
        about = mutated(sound if training else scored, rng)
        payload = PAYLOAD if rng.random() < 0.7 else mutated(PAYLOAD, rng)
        event = reader.event(1.0, TASKS[not training], Reply(about, payload if training else b""))
        if isinstance(event, Failed):
            continue
        passed += 1
        assert json.dumps([event.score, getattr(event, "metrics", {})], allow_nan=False)
        assert counts.sound(event.score)
        if isinstance(event, Arrived):
            assert event.signature in ("", "0f" * 96)
            assert 0 <= event.steps <= SETTINGS.epochs * max(1, event.examples)
            own = event.score
        else:
            assert isinstance(event, Scored)
            own = (4, 4, 5, 5, 5, 5)
        state, asked = step(rules, begun, Arrived(1.0, "site0", task, "digest", 9, 8, 40, {}, own))
        for one in asked:
            if isinstance(one, Evaluate):
                state, more = step(rules, state, Scored(2.0, one.learner, one.task, event.score))
        assert state.version == 1
        assert all(0 <= each.weight <= 1 for each in more if hasattr(each, "weight"))
    assert passed > count / 100, "some answers must get through, or nothing was tried"


def questions(centre: Centre) -> list[Parcel]:
    """Sound questions of every kind."""
    from dataclasses import asdict, astuple

    from abaton.engines.flower.flower_messages import encode, model_name
    from abaton.study_run.model_signatures import new_key

    start = centre.start()
    near = start + np.float32(0.01)
    about = {**centre.about, "layout": centre.model.layout.digest, "committed": 0}
    settings = asdict(centre.study.learning.training.plain())
    named, data = {"model": model_name(near), "base": None}, encode(near)
    one = [{"key": "x@athens", **named}]
    signed = astuple(centre.signed("made up", 1, near, new_key()))
    scale = {"columns": {}, "label": [0.0, 1.0]}
    return [
        Parcel(
            "train", {**about, "key": "1.a", "version": 1, "settings": settings, **named}, {"model": data}
        ),
        Parcel("evaluate", {**about, "tasks": [{**one[0], "signed": list(signed)}]}, {"model/0": data}),
        Parcel("judge", {**about, "tasks": one}, {"model/0": data}),
        Parcel("gain", {**about, "tasks": one, "epochs": 1, "seed": 1, "resamples": 20}, {"model/0": data}),
        Parcel("explain", {**about, "tasks": one}, {"model/0": data}),
        Parcel("query", about),
        Parcel("tell", about),
        worded("deal", centre.about, centre.body),
        worded("scale", centre.about, {**centre.body, "scale": scale}),
    ]


@pytest.mark.slow
def test_mutated_questions_crash_nothing_and_nothing_unlisted_leaves(four, tmp_path):
    centre = Centre(four, tmp_path, site="trikala")  # few people: every question asks who is still in
    centre.prepare()
    centre.train(0, centre.start())
    rng, sound = random.Random(17), questions(centre)
    unchecked, answered = [], 0
    for _ in range(MANY):
        asked = rng.choice(sound)
        about = mutated(dict(asked.about), rng) if rng.random() < 0.7 else dict(asked.about)
        blobs = mutated(dict(asked.blobs), rng) if rng.random() < 0.5 else dict(asked.blobs)
        answer = centre.desk.answer(Parcel(asked.kind, about, blobs))
        if answer.reason is not None:
            assert answer.reason in REASONS
            if answer.reason == FAILED:
                unchecked.append(
                    (asked.kind, about, {name: len(data) for name, data in blobs.items()} if blobs else blobs)
                )
            continue
        answered += 1
        assert set(fields_of(answer)) <= {"reason", *FIELDS[asked.kind]}
    assert not unchecked, unchecked[:3]
    assert answered
