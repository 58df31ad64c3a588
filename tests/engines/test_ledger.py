"""The ledger of real engines, by a clock that a test moves."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engines.test_engine_contract import SETTINGS, learners

from abaton.controller import Failed, Joined, Left, Scored, TrainSettings
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.task_queue import MOST_DEATHS, Duty, Ledger

ZEROS = np.zeros(5, np.float32)
TRAINS, EVALUATES = Duty("a", evaluates=False), Duty("a", evaluates=True)


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock) -> Ledger:
    made = Ledger(learners("a", "b"), {"a": "fast"}, 60.0, clock)
    assert [(type(e), e.learner, e.group) for e in made.tell()] == [(Joined, "a", "fast"), (Joined, "b", "")]
    return made


def train(key: str, learner: str = "a", settings: TrainSettings = SETTINGS) -> TrainTask:
    return TrainTask(key, learner, 0, ZEROS, settings)


def evaluate(key: str, learner: str = "a") -> EvaluateTask:
    return EvaluateTask(key, learner, ZEROS)


def keys(tasks) -> list[str]:
    return [task.key for task in tasks]


def test_each_duty_has_one_task_at_a_time_and_evaluations_go_first(ledger):
    ledger.take_on([train("t1"), train("t2"), train("t3", "b"), evaluate("e1"), evaluate("e2")])
    assert keys(ledger.ready()) == ["e1", "t1", "t3"]
    assert keys(ledger.ready(2)) == ["e1", "t1"]
    for task in list(ledger.ready()):
        ledger.begin(task)
    assert keys(ledger.ready()) == []
    assert ledger.under_way(TRAINS).key == "t1"
    assert ledger.next(TRAINS) is None
    ledger.end(ledger.under_way(TRAINS), Scored(0.0, "a", "t1", ()))
    assert ledger.next(TRAINS).key == "t2"
    assert keys(ledger.ready()) == ["t2"]


def test_a_task_counts_once_also_after_its_end(ledger):
    ledger.take_on([train("t"), train("t")])
    (task,) = ledger.ready()
    ledger.begin(task)
    ledger.fail(task, "learner failed")
    ledger.take_on([train("t")])
    assert [(e.task, e.reason) for e in ledger.tell()] == [("t", "learner failed")]
    assert keys(ledger.ready()) == []


def test_a_task_is_cancelled_only_before_it_begins(ledger):
    ledger.take_on([train("t1"), train("t2")])
    ledger.begin(train("t1"))
    for key in ("t1", "t2", "no such task"):
        ledger.cancel(key)
    assert ledger.under_way(TRAINS).key == "t1"
    ledger.fail(ledger.under_way(TRAINS), "learner failed")
    assert keys(ledger.ready()) == []


def test_who_dies_more_often_in_a_row_than_is_borne_is_gone(ledger):
    ledger.take_on([train(str(i)) for i in range(MOST_DEATHS + 3)])
    for i in range(MOST_DEATHS + 1):
        ledger.begin(ledger.next(TRAINS))
        assert ledger.lost(TRAINS, "process ended") == (i == MOST_DEATHS)
    told = ledger.tell()
    reasons = [event.reason for event in told if isinstance(event, Failed)]
    assert reasons == ["process ended"] * (MOST_DEATHS + 1) + ["learner is gone"] * 2
    assert [event.learner for event in told if isinstance(event, Left)] == ["a"]
    ledger.take_on([train("later"), evaluate("e"), train("nobody's", "c")])
    assert [(e.task, e.reason) for e in ledger.tell()] == [
        ("later", "learner is gone"),
        ("nobody's", "learner is gone"),
    ]
    assert keys(ledger.ready()) == ["e"], "its evaluator is there"


def test_an_answer_in_between_makes_up_for_deaths(ledger):
    for i in range(3 * MOST_DEATHS):
        ledger.take_on([train(str(i))])
        ledger.begin(ledger.next(TRAINS))
        if i % MOST_DEATHS == MOST_DEATHS - 1:
            ledger.end(ledger.under_way(TRAINS), Scored(0.0, "a", str(i), ()))
        else:
            assert not ledger.lost(TRAINS, "process ended")
    assert not any(isinstance(event, Left) for event in ledger.tell())


def test_an_evaluator_that_is_gone_has_not_left(ledger):
    for _ in range(MOST_DEATHS + 1):
        gone = ledger.lost(EVALUATES, "process ended")
    assert gone
    assert ledger.tell() == []


def test_patience_ends_after_the_time_that_a_task_was_given(ledger, clock):
    ledger.take_on([train("t", settings=TrainSettings(budget=30.0)), evaluate("e")])
    for task in list(ledger.ready()):
        ledger.begin(task)
    assert ledger.pause(5.0) == 5.0
    assert ledger.pause(1000.0) == 60.0
    clock.time += 61.0
    assert ledger.late() == [EVALUATES]
    ledger.lost(EVALUATES, "no answer in time")
    assert ledger.pause(1000.0) == 29.0
    ledger.timers.set("bell", 70.0)
    assert ledger.pause(1000.0) == 9.0
    clock.time += 30.0
    assert ledger.late() == [TRAINS]
    assert ledger.pause(1000.0) == 0.0
    ledger.tell()
    ledger.ring()
    assert [event.name for event in ledger.tell()] == ["bell"]
