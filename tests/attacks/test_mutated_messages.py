"""Fuzz tests with seeded mutations of replies and requests: nothing crashes, and nothing passes unchecked.

`make fuzz` runs a million of each, the full tests twenty thousand, the quick tests two thousand.
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

from abaton.controller import (
    STRATEGIES,
    ControllerState,
    EvaluationReceived,
    LearnerJoined,
    StartEvaluation,
    StartTraining,
    Strategy,
    TaskFailed,
    UpdateReceived,
    transition,
)
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.base import LEARNER_FAILED, SITE_FAILURE_CODES
from abaton.engines.flower import Message
from abaton.engines.reply_validation import ReplyValidator
from abaton.learners import SiteReply
from abaton.metrics import counts
from abaton.study_run.messages import FIELDS, field_names, make_message

ZEROS = np.zeros(MODEL.layout.size, np.float32)
TASKS = TrainTask("t", "site0", 0, ZEROS, SETTINGS), EvaluateTask("t", "site0", ZEROS)
PAYLOAD = learners("site0")["site0"].train("t", 0, ZEROS, SETTINGS).payload
UNEXPECTED: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**53 + 1, -(2**63), 10**400, 0.5, -0.0, 1e15, 1e308, math.inf,
    -math.inf, math.nan, "", "t", "0" * 64, "\x00", "../../x", "9" * 5000, b"", b"\xff" * 40, [], {}, [[]], [None],
    {"a": 1},
)  # fmt: skip
MANY = int(os.environ.get("ABATON_FUZZ", "20000"))
SIZES = [pytest.param(2000, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]


def mutated(value: Any, rng: random.Random) -> Any:
    """Return the value with one change somewhere inside it."""
    if rng.random() < 0.15:
        return deepcopy(rng.choice(UNEXPECTED))
    if isinstance(value, dict) and value:
        changed, key = dict(value), rng.choice(sorted(value))
        match rng.randrange(6):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(("patient", "key", "", "reason"))] = deepcopy(rng.choice(UNEXPECTED))
            case _:
                changed[key] = mutated(changed[key], rng)
        return changed
    if isinstance(value, list) and value:
        changed, index = list(value), rng.randrange(len(value))
        match rng.randrange(5):
            case 0:
                del changed[index]
            case 1:
                changed.insert(index, deepcopy(rng.choice(UNEXPECTED)))
            case _:
                changed[index] = mutated(changed[index], rng)
        return changed
    if isinstance(value, bytes) and value:
        changed_bytes, index = bytearray(value), rng.randrange(len(value))
        match rng.randrange(3):
            case 0:
                return bytes(changed_bytes[:index])
            case 1:
                return bytes(changed_bytes) + bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
            case _:
                changed_bytes[index] = rng.randrange(256)
        return bytes(changed_bytes)
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 0.5, 1e15))
    return deepcopy(rng.choice(UNEXPECTED))


@pytest.mark.parametrize("count", SIZES)
def test_mutated_replies_neither_crash_nor_pass_validation(count):
    rng, reader = random.Random(16), ReplyValidator(lambda data: "digest", check)
    valid = {
        "task_id": "t",
        "steps": 8,
        "examples": 40,
        "loss": 0.5,
        "counts": [4, 4, 5, 5, 5, 5, 3.0],
        "cohort": "",
        "signature": "0f" * 96,
    }
    scored = {"task_id": "t", "counts": [4, 4, 5, 5, 5, 5, 3.0]}
    rules = Strategy(learners=3, rounds=10, **STRATEGIES["AsyncDVW(na)"])
    initial_state, instructions = ControllerState(), ()
    for name in ("site0", "site1", "site2"):
        initial_state, instructions = transition(
            rules, initial_state, LearnerJoined(0.0, name, 40, "", (5, 5))
        )
    task = next(
        instruction.task
        for instruction in instructions
        if isinstance(instruction, StartTraining) and instruction.learner == "site0"
    )
    passed = 0
    for _ in range(count):
        training = rng.random() < 0.5
        about = mutated(valid if training else scored, rng)
        payload = PAYLOAD if rng.random() < 0.7 else mutated(PAYLOAD, rng)
        event = reader.event(1.0, TASKS[not training], SiteReply(about, payload if training else b""))
        if isinstance(event, TaskFailed):
            continue
        passed += 1
        assert json.dumps([event.counts, getattr(event, "metrics", {})], allow_nan=False)
        assert counts.is_plausible(event.counts)
        if isinstance(event, UpdateReceived):
            assert event.signature in ("", "0f" * 96)
            assert 0 <= event.steps <= SETTINGS.epochs * max(1, event.examples)
            own = event.counts
        else:
            assert isinstance(event, EvaluationReceived)
            own = (4, 4, 5, 5, 5, 5)
        state, requests = transition(
            rules, initial_state, UpdateReceived(1.0, "site0", task, "digest", 9, 8, 40, {}, own)
        )
        for one in requests:
            if isinstance(one, StartEvaluation):
                state, more = transition(
                    rules, state, EvaluationReceived(2.0, one.learner, one.task, event.counts)
                )
        assert state.version == 1
        assert all(0 <= instruction.weight <= 1 for instruction in more if hasattr(instruction, "weight"))
    assert passed > count / 100, "some replies must pass, or nothing was tested"


def questions(centre: Centre) -> list[Message]:
    """Return valid requests of every type."""
    from dataclasses import asdict, astuple

    from abaton.engines.flower.flower_messages import encode_model, model_digest
    from abaton.study_run.model_signatures import new_key

    start = centre.start()
    model = start + np.float32(0.01)
    about = {**centre.header, "layout": centre.model.layout.digest, "committed_steps": 0}
    settings = asdict(centre.study.learning.training.to_settings())
    named, data = {"model": model_digest(model), "base": None}, encode_model(model)
    one = [{"key": "x@athens", **named}]
    signed = astuple(centre.signed("made up", 1, model, new_key()))
    scale = {"columns": {}, "label": [0.0, 1.0]}
    return [
        Message(
            "train", {**about, "key": "1.a", "version": 1, "settings": settings, **named}, {"model": data}
        ),
        Message(
            "evaluate",
            {**about, "evaluations": [{**one[0], "signed_model": list(signed)}]},
            {"model/0": data},
        ),
        Message("evaluate_test", {**about, "evaluations": one}, {"model/0": data}),
        Message(
            "local_benefit",
            {**about, "evaluations": one, "epochs": 1, "seed": 1, "bootstrap_resamples": 20},
            {"model/0": data},
        ),
        Message("interpretability", {**about, "evaluations": one}, {"model/0": data}),
        Message("introduce", about),
        Message("progress", about),
        make_message("split", centre.header, centre.body),
        make_message("scale", centre.header, {**centre.body, "scale": scale}),
    ]


@pytest.mark.slow
def test_mutated_requests_neither_crash_nor_release_unlisted_fields(four, tmp_path):
    centre = Centre(four, tmp_path, site="trikala")  # few subjects: every request checks consents
    centre.prepare()
    centre.train(0, centre.start())
    rng, valid = random.Random(17), questions(centre)
    unchecked, answered = [], 0
    for _ in range(MANY):
        request = rng.choice(valid)
        about = mutated(dict(request.header), rng) if rng.random() < 0.7 else dict(request.header)
        blobs = mutated(dict(request.attachments), rng) if rng.random() < 0.5 else dict(request.attachments)
        answer = centre.service.reply(Message(request.message_type, about, blobs))
        if answer.reason is not None:
            assert answer.reason in SITE_FAILURE_CODES
            if answer.reason == LEARNER_FAILED:
                unchecked.append(
                    (
                        request.message_type,
                        about,
                        {name: len(data) for name, data in blobs.items()} if blobs else blobs,
                    )
                )
            continue
        answered += 1
        assert set(field_names(answer)) <= {"reason", *FIELDS[request.message_type]}
    assert not unchecked, unchecked[:3]
    assert answered
