"""The one reader of answers: whatever a learner sends is an event, and what is not sound is a failed task."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.test_engine_contract import MODEL, SETTINGS, Kept, check, learners

from abaton.controller import Arrived, Failed, Scored
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.reply_validation import Reader, header
from abaton.learners import Reply

ZEROS = np.zeros(MODEL.layout.size, np.float32)
TRAIN, EVALUATE = TrainTask("t", "a", 0, ZEROS, SETTINGS), EvaluateTask("t", "a", ZEROS)
PAYLOAD = learners("a")["a"].train("t", 0, ZEROS, SETTINGS).payload
SOUND = {"key": "t", "steps": 8, "examples": 40, "loss": 0.5, "score": [1, 2, 2, 2, 2, 2, 2.5], "cohort": ""}
SCORE = (1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.5)

WRONG = {
    "no key": {name: value for name, value in SOUND.items() if name != "key"},
    "another's key": {**SOUND, "key": "u"},
    "a field too many": {**SOUND, "patient": "4711"},
    "a reason as well": {**SOUND, "reason": "learner failed"},
    **{f"no {field}": {n: v for n, v in SOUND.items() if n != field} for field in SOUND if field != "key"},
    "steps below 0": {**SOUND, "steps": -1},
    "steps that are none": {**SOUND, "steps": 1.5},
    "too many steps": {**SOUND, "steps": 1 << 60},
    "true examples": {**SOUND, "examples": True},
    "words for examples": {**SOUND, "examples": "40"},
    "a loss that is no number": {**SOUND, "loss": float("nan")},
    "an endless loss": {**SOUND, "loss": float("inf")},
    "a loss too large for a number": {**SOUND, "loss": 10**400},
    "words for a loss": {**SOUND, "loss": "0.5"},
    "words for a score": {**SOUND, "score": "aaaa"},
    "bytes for a score": {**SOUND, "score": b"aaaa"},
    "nothing for a score": {**SOUND, "score": None},
    "a score that is no number": {**SOUND, "score": [1, float("nan")]},
    "a score of scores": {**SOUND, "score": [[1]]},
    "too many counts": {**SOUND, "score": [0] * 70_000},
    "a score below 0": {**SOUND, "score": [-1, 2, 2, 2, 2, 2]},
    "a score that is not whole": {**SOUND, "score": [1.5, 2, 2, 2, 2, 2]},
    "more right than there are": {**SOUND, "score": [3, 2, 2, 2, 3, 1]},
    "more predicted than there are": {**SOUND, "score": [1, 2, 2, 2, 2, 3]},
    "a score too large to be exact": {**SOUND, "score": [1e16, 0, 1e16, 0, 1e16, 0]},
    "counts of no form": {**SOUND, "score": [1, 2, 3, 4, 5]},
    "errors below 0": {**SOUND, "score": [4, -1.0, 0.0, 1.0]},
    "a sum that its squares do not allow": {**SOUND, "score": [4, 1.0, 9.0, 1.0]},
    "a cohort in words": {**SOUND, "cohort": "patient 4711"},
    "a cohort that is none": {**SOUND, "cohort": 7},
    "a list": [SOUND],
    "nothing": None,
}  # fmt: skip


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_sound_answer_is_an_event(kept):
    reader = Reader(kept.put, check)
    event = reader.event(3.0, TRAIN, Reply(SOUND, PAYLOAD))
    (digest,) = kept
    told = (digest, len(PAYLOAD), 8, 40, {"loss": 0.5}, SCORE, "")
    assert event == Arrived(3.0, "a", "t", *told)
    assert reader.event(3.0, EVALUATE, Reply({"key": "t", "score": list(SCORE)})) == Scored(
        3.0, "a", "t", SCORE
    )


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_is_not_sound_is_a_failed_task(kept, name):
    event = Reader(kept.put, check).event(3.0, TRAIN, Reply(WRONG[name], PAYLOAD))
    assert event == Failed(3.0, "a", "t", "unreadable update")
    assert not kept


@pytest.mark.parametrize(
    "payload", [b"", b"\xff" * 9999, PAYLOAD[:-1], PAYLOAD + b"x", None, "text", [1]], ids=repr
)
def test_an_update_that_cannot_be_decoded_is_a_failed_task(kept, payload):
    event = Reader(kept.put, check).event(3.0, TRAIN, Reply(SOUND, payload))
    assert event == Failed(3.0, "a", "t", "unreadable update")
    assert not kept


def test_a_decoder_that_breaks_over_an_update_breaks_nothing_else(kept):
    def breaks(*_: object) -> None:
        raise IndexError("patient Zanzibar-4711")

    event = Reader(kept.put, breaks).event(3.0, TRAIN, Reply(SOUND, PAYLOAD))
    assert event == Failed(3.0, "a", "t", "unreadable update")


@pytest.mark.parametrize(
    ("about", "payload"),
    [
        ({"key": "t", "score": [float("inf")]}, b""),
        ({"key": "t", "score": [1], "loss": 1.0}, b""),
        ({"key": "t", "score": [1]}, b"more"),
        ({"key": "t"}, b""),
        (SOUND, PAYLOAD),
    ],
)
def test_a_score_that_is_not_sound_is_a_failed_task(kept, about, payload):
    event = Reader(kept.put, check).event(3.0, EVALUATE, Reply(about, payload))
    assert event == Failed(3.0, "a", "t", "unreadable answer")


@pytest.mark.parametrize("task", [TRAIN, EVALUATE])
def test_a_reason_is_passed_on_if_it_is_one_of_ours(kept, task):
    reader = Reader(kept.put, check)
    said_and_heard = {
        "task was refused": "task was refused",
        "patient 4711": "learner failed",
        7: "learner failed",
    }
    for said, heard in said_and_heard.items():
        assert reader.event(3.0, task, Reply({"key": "t", "reason": said})).reason == heard


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'"' + b"x" * (1 << 23) + b'"', None, 7]
)
def test_a_header_that_is_none_holds_nothing(data):
    assert header(data) == {}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(
    about=ANYTHING
    | st.fixed_dictionaries({name: st.just(value) | ANYTHING for name, value in SOUND.items()}),
    payload=st.just(PAYLOAD) | st.binary(max_size=200) | ANYTHING,
    task=st.sampled_from([TRAIN, EVALUATE]),
)
def test_nothing_that_is_sent_raises(about, payload, task):
    event = Reader(lambda data: "", check).event(3.0, task, Reply(about, payload))
    assert isinstance(event, Arrived | Scored | Failed)
    if isinstance(event, Arrived):
        assert json.dumps([event.metrics, event.score], allow_nan=False)
