"""Task queue of real-time engines, with a simulated clock."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engines.test_engine_contract import SETTINGS, learners

from abaton.controller import EvaluationReceived, LearnerJoined, LearnerLeft, TaskFailed, TrainSettings
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.task_queue import MAX_DEATHS, TaskQueue, TaskRole

ZEROS = np.zeros(5, np.float32)
TRAINS, EVALUATES = TaskRole("a", evaluates=False), TaskRole("a", evaluates=True)


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def task_queue(clock) -> TaskQueue:
    queue = TaskQueue(learners("a", "b"), {"a": "fast"}, 60.0, clock)
    assert [(type(e), e.learner, e.group) for e in queue.take_events()] == [
        (LearnerJoined, "a", "fast"),
        (LearnerJoined, "b", ""),
    ]
    return queue


def train(task_id: str, learner: str = "a", settings: TrainSettings = SETTINGS) -> TrainTask:
    return TrainTask(task_id, learner, 0, ZEROS, settings)


def evaluate(task_id: str, learner: str = "a") -> EvaluateTask:
    return EvaluateTask(task_id, learner, ZEROS)


def task_ids(tasks) -> list[str]:
    return [task.task_id for task in tasks]


def test_each_role_has_one_task_at_a_time_and_evaluations_come_first(task_queue):
    task_queue.add([train("t1"), train("t2"), train("t3", "b"), evaluate("e1"), evaluate("e2")])
    assert task_ids(task_queue.ready()) == ["e1", "t1", "t3"]
    assert task_ids(task_queue.ready(2)) == ["e1", "t1"]
    for task in list(task_queue.ready()):
        task_queue.begin(task)
    assert task_ids(task_queue.ready()) == []
    assert task_queue.current_task(TRAINS).task_id == "t1"
    assert task_queue.next(TRAINS) is None
    task_queue.end(task_queue.current_task(TRAINS), EvaluationReceived(0.0, "a", "t1", ()))
    assert task_queue.next(TRAINS).task_id == "t2"
    assert task_ids(task_queue.ready()) == ["t2"]


def test_a_finished_task_is_not_accepted_again(task_queue):
    task_queue.add([train("t"), train("t")])
    (task,) = task_queue.ready()
    task_queue.begin(task)
    task_queue.fail(task, "learner_failed")
    task_queue.add([train("t")])
    assert [(e.task, e.reason) for e in task_queue.take_events()] == [("t", "learner_failed")]
    assert task_ids(task_queue.ready()) == []


def test_only_a_waiting_task_is_cancelled(task_queue):
    task_queue.add([train("t1"), train("t2")])
    task_queue.begin(train("t1"))
    for task_id in ("t1", "t2", "no such task"):
        task_queue.cancel(task_id)
    assert task_queue.current_task(TRAINS).task_id == "t1"
    task_queue.fail(task_queue.current_task(TRAINS), "learner_failed")
    assert task_ids(task_queue.ready()) == []


def test_a_role_with_too_many_losses_in_a_row_is_given_up(task_queue):
    task_queue.add([train(str(i)) for i in range(MAX_DEATHS + 3)])
    for i in range(MAX_DEATHS + 1):
        task_queue.begin(task_queue.next(TRAINS))
        assert task_queue.record_loss(TRAINS, "process_exited") == (i == MAX_DEATHS)
    events = task_queue.take_events()
    reasons = [event.reason for event in events if isinstance(event, TaskFailed)]
    assert reasons == ["process_exited"] * (MAX_DEATHS + 1) + ["learner_gone"] * 2
    assert [event.learner for event in events if isinstance(event, LearnerLeft)] == ["a"]
    task_queue.add([train("later"), evaluate("e"), train("unknown learner", "c")])
    assert [(e.task, e.reason) for e in task_queue.take_events()] == [
        ("later", "learner_gone"),
        ("unknown learner", "learner_gone"),
    ]
    assert task_ids(task_queue.ready()) == ["e"], "its evaluator still works"


def test_a_reply_resets_the_number_of_losses(task_queue):
    for i in range(3 * MAX_DEATHS):
        task_queue.add([train(str(i))])
        task_queue.begin(task_queue.next(TRAINS))
        if i % MAX_DEATHS == MAX_DEATHS - 1:
            task_queue.end(task_queue.current_task(TRAINS), EvaluationReceived(0.0, "a", str(i), ()))
        else:
            assert not task_queue.record_loss(TRAINS, "process_exited")
    assert not any(isinstance(event, LearnerLeft) for event in task_queue.take_events())


def test_a_lost_evaluator_does_not_make_the_learner_leave(task_queue):
    for _ in range(MAX_DEATHS + 1):
        is_given_up = task_queue.record_loss(EVALUATES, "process_exited")
    assert is_given_up
    assert task_queue.take_events() == []


def test_the_timeout_starts_after_the_time_budget(task_queue, clock):
    task_queue.add([train("t", settings=TrainSettings(time_budget_seconds=30.0)), evaluate("e")])
    for task in list(task_queue.ready()):
        task_queue.begin(task)
    assert task_queue.pause(5.0) == 5.0
    assert task_queue.pause(1000.0) == 60.0
    clock.time += 61.0
    assert task_queue.overdue_roles() == [EVALUATES]
    task_queue.record_loss(EVALUATES, "timeout")
    assert task_queue.pause(1000.0) == 29.0
    task_queue.timers.set("timer", 70.0)
    assert task_queue.pause(1000.0) == 9.0
    clock.time += 30.0
    assert task_queue.overdue_roles() == [TRAINS]
    assert task_queue.pause(1000.0) == 0.0
    task_queue.take_events()
    task_queue.fire_timers()
    assert [event.name for event in task_queue.take_events()] == ["timer"]
