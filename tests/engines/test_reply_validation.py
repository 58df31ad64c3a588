"""Validation of replies: every reply is an event, and an invalid one is a failed task."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.test_engine_contract import MODEL, SETTINGS, PayloadStore, check, learners

from abaton.controller import EvaluationReceived, TaskFailed, UpdateReceived
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.reply_validation import ReplyValidator, parse_header
from abaton.learners import SiteReply

ZEROS = np.zeros(MODEL.layout.size, np.float32)
TRAIN, EVALUATE = TrainTask("t", "a", 0, ZEROS, SETTINGS), EvaluateTask("t", "a", ZEROS)
PAYLOAD = learners("a")["a"].train("t", 0, ZEROS, SETTINGS).payload
VALID = {
    "task_id": "t",
    "steps": 8,
    "examples": 40,
    "loss": 0.5,
    "counts": [1, 2, 2, 2, 2, 2, 2.5],
    "cohort": "",
}
COUNTS = (1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.5)

INVALID = {
    "no task id": {name: value for name, value in VALID.items() if name != "task_id"},
    "another task id": {**VALID, "task_id": "u"},
    "a field too many": {**VALID, "patient": "4711"},
    "a reason as well": {**VALID, "reason": "learner_failed"},
    **{f"no {field}": {n: v for n, v in VALID.items() if n != field} for field in VALID if field != "task_id"},
    "steps below 0": {**VALID, "steps": -1},
    "fractional steps": {**VALID, "steps": 1.5},
    "too many steps": {**VALID, "steps": 1 << 60},
    "boolean examples": {**VALID, "examples": True},
    "text for examples": {**VALID, "examples": "40"},
    "a loss that is no number": {**VALID, "loss": float("nan")},
    "an infinite loss": {**VALID, "loss": float("inf")},
    "a loss too large for a number": {**VALID, "loss": 10**400},
    "text for a loss": {**VALID, "loss": "0.5"},
    "text for counts": {**VALID, "counts": "aaaa"},
    "bytes for counts": {**VALID, "counts": b"aaaa"},
    "null for counts": {**VALID, "counts": None},
    "a count that is no number": {**VALID, "counts": [1, float("nan")]},
    "nested counts": {**VALID, "counts": [[1]]},
    "too many counts": {**VALID, "counts": [0] * 70_000},
    "a count below 0": {**VALID, "counts": [-1, 2, 2, 2, 2, 2]},
    "a fractional count": {**VALID, "counts": [1.5, 2, 2, 2, 2, 2]},
    "more correct than examples": {**VALID, "counts": [3, 2, 2, 2, 3, 1]},
    "more predictions than examples": {**VALID, "counts": [1, 2, 2, 2, 2, 3]},
    "a count too large to be exact": {**VALID, "counts": [1e16, 0, 1e16, 0, 1e16, 0]},
    "counts of unknown form": {**VALID, "counts": [1, 2, 3, 4, 5]},
    "errors below 0": {**VALID, "counts": [4, -1.0, 0.0, 1.0]},
    "a sum that contradicts the squared sum": {**VALID, "counts": [4, 1.0, 9.0, 1.0]},
    "a cohort as text": {**VALID, "cohort": "patient 4711"},
    "a cohort as number": {**VALID, "cohort": 7},
    "a list": [VALID],
    "nothing": None,
}  # fmt: skip


@pytest.fixture
def payloads() -> PayloadStore:
    return PayloadStore()


def test_a_valid_reply_is_an_event(payloads):
    validator = ReplyValidator(payloads.put, check)
    event = validator.event(3.0, TRAIN, SiteReply(VALID, PAYLOAD))
    (digest,) = payloads
    fields = (digest, len(PAYLOAD), 8, 40, {"loss": 0.5}, COUNTS, "")
    assert event == UpdateReceived(3.0, "a", "t", *fields)
    assert validator.event(
        3.0, EVALUATE, SiteReply({"task_id": "t", "counts": list(COUNTS)})
    ) == EvaluationReceived(3.0, "a", "t", COUNTS)


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_reply_is_a_failed_task(payloads, name):
    event = ReplyValidator(payloads.put, check).event(3.0, TRAIN, SiteReply(INVALID[name], PAYLOAD))
    assert event == TaskFailed(3.0, "a", "t", "invalid_update")
    assert not payloads


@pytest.mark.parametrize(
    "payload", [b"", b"\xff" * 9999, PAYLOAD[:-1], PAYLOAD + b"x", None, "text", [1]], ids=repr
)
def test_an_update_that_cannot_be_decoded_is_a_failed_task(payloads, payload):
    event = ReplyValidator(payloads.put, check).event(3.0, TRAIN, SiteReply(VALID, payload))
    assert event == TaskFailed(3.0, "a", "t", "invalid_update")
    assert not payloads


def test_an_error_of_the_decoder_is_a_failed_task(payloads):
    def fail(*_: object) -> None:
        raise IndexError("patient Zanzibar-4711")

    event = ReplyValidator(payloads.put, fail).event(3.0, TRAIN, SiteReply(VALID, PAYLOAD))
    assert event == TaskFailed(3.0, "a", "t", "invalid_update")


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        ({"task_id": "t", "counts": [float("inf")]}, b""),
        ({"task_id": "t", "counts": [1], "loss": 1.0}, b""),
        ({"task_id": "t", "counts": [1]}, b"more"),
        ({"task_id": "t"}, b""),
        (VALID, PAYLOAD),
    ],
)
def test_invalid_counts_are_a_failed_task(payloads, header, payload):
    event = ReplyValidator(payloads.put, check).event(3.0, EVALUATE, SiteReply(header, payload))
    assert event == TaskFailed(3.0, "a", "t", "invalid_reply")


@pytest.mark.parametrize("task", [TRAIN, EVALUATE])
def test_only_known_failure_codes_are_forwarded(payloads, task):
    validator = ReplyValidator(payloads.put, check)
    expected_codes = {
        "refused": "refused",
        "patient 4711": "learner_failed",
        7: "learner_failed",
    }
    for code, expected in expected_codes.items():
        assert validator.event(3.0, task, SiteReply({"task_id": "t", "reason": code})).reason == expected


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'"' + b"x" * (1 << 23) + b'"', None, 7]
)
def test_an_invalid_header_is_empty(data):
    assert parse_header(data) == {}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(
    header=ANYTHING
    | st.fixed_dictionaries({name: st.just(value) | ANYTHING for name, value in VALID.items()}),
    payload=st.just(PAYLOAD) | st.binary(max_size=200) | ANYTHING,
    task=st.sampled_from([TRAIN, EVALUATE]),
)
def test_no_reply_raises(header, payload, task):
    event = ReplyValidator(lambda data: "", check).event(3.0, task, SiteReply(header, payload))
    assert isinstance(event, UpdateReceived | EvaluationReceived | TaskFailed)
    if isinstance(event, UpdateReceived):
        assert json.dumps([event.metrics, event.counts], allow_nan=False)
