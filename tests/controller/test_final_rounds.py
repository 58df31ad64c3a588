"""Final rounds: training on all data, no evaluation, weights of the last commits."""

from __future__ import annotations

import pytest
from tests.controller.test_state_machine import evaluation_for, join_all, of_type, update_for

from abaton.controller import (
    AsynchronousScheduler,
    Commit,
    LearnerJoined,
    LearnerLeft,
    PublishVersion,
    StartEvaluation,
    StartTraining,
    StopRun,
    Strategy,
    TaskFailed,
    TrainSettings,
    UpdateThresholds,
    ValidationWeighting,
    transition,
)

DVW = (ValidationWeighting(),)


def answer_round(strategy, state, tasks, rights):
    """Reply to all tasks and evaluations; `rights` has the correct predictions of each learner's model."""
    requests, instructions = [], ()
    right = {t.task: r for t, r in zip(tasks, rights, strict=True)}
    for task in tasks:
        state, instructions = transition(strategy, state, update_for(task))
        requests += of_type(StartEvaluation, instructions)
    for evaluation in requests:
        state, instructions = transition(
            strategy, state, evaluation_for(evaluation, right=right[evaluation.model])
        )
    return state, instructions


def test_final_rounds_use_all_data_and_fixed_weights_without_evaluation():
    strategy = Strategy(learners=3, rounds=2, final_rounds=2, weighting=DVW)
    state, tasks = join_all(strategy)
    state, instructions = answer_round(strategy, state, tasks, (1, 1, 1))
    assert not any(t.settings.use_validation_data for t in of_type(StartTraining, instructions))
    state, instructions = answer_round(strategy, state, of_type(StartTraining, instructions), (1, 3, 5))
    weights = {c.learner: c.weight for c in of_type(Commit, instructions)}
    assert len(set(weights.values())) == 3
    for version in (3, 4):
        tasks = of_type(StartTraining, instructions)
        assert all(t.settings.use_validation_data for t in tasks)
        for task in tasks:
            state, instructions = transition(strategy, state, update_for(task))
            assert not of_type(StartEvaluation, instructions)
        assert {c.learner: c.weight for c in of_type(Commit, instructions)} == weights
        assert of_type(PublishVersion, instructions) == [PublishVersion(version)]
    assert of_type(StopRun, instructions) == [StopRun("all rounds are done")]


def test_a_new_learner_gets_the_mean_weight():
    strategy = Strategy(learners=2, rounds=1, final_rounds=1, weighting=DVW)
    state, tasks = join_all(strategy)
    state, _ = transition(strategy, state, LearnerJoined(0.5, "late", 10))
    state, instructions = answer_round(strategy, state, tasks, (2, 5))
    first, second = (c.weight for c in of_type(Commit, instructions))
    tasks = of_type(StartTraining, instructions)
    commits = []
    for task in tasks:
        state, instructions = transition(strategy, state, update_for(task))
        commits += of_type(Commit, instructions)
    weights = {c.learner: c.weight for c in commits}
    assert weights.get("late", (first + second) / 2) == pytest.approx((first + second) / 2)
    assert state.stop_reason == "all rounds are done"


def test_asynchronous_learners_do_final_tasks_without_evaluation():
    strategy = Strategy(
        learners=3, rounds=1, final_rounds=2, weighting=DVW, scheduler=AsynchronousScheduler()
    )
    state, tasks = join_all(strategy)
    state, requests = transition(strategy, state, update_for(tasks[0]))
    for evaluation in of_type(StartEvaluation, requests):
        state, instructions = transition(strategy, state, evaluation_for(evaluation))
    assert of_type(PublishVersion, instructions) == [PublishVersion(1)]
    last_weight = of_type(Commit, instructions)[0].weight
    waiting = [*tasks[1:], *of_type(StartTraining, instructions)]
    assert [t.settings.use_validation_data for t in waiting] == [False, False, True]
    on_all_data = []
    while waiting:
        task, *waiting = waiting
        state, instructions = transition(strategy, state, update_for(task))
        assert not of_type(StartEvaluation, instructions)
        assert [c.weight for c in of_type(Commit, instructions)] == [pytest.approx(last_weight)]
        on_all_data += [task.learner] if task.settings.use_validation_data else []
        waiting += of_type(StartTraining, instructions)
    assert sorted(on_all_data) == ["site0", "site0", "site1", "site1", "site2", "site2"]
    assert of_type(StopRun, instructions) == [StopRun("all rounds are done")]
    assert state.version == 1 + 2 + 6


@pytest.mark.parametrize("event", [LearnerLeft, TaskFailed])
def test_the_run_ends_when_the_last_one_at_work_is_lost(event):
    strategy = Strategy(learners=2, rounds=1, final_rounds=1, scheduler=AsynchronousScheduler(max_attempts=1))
    state, tasks = join_all(strategy)
    state, instructions = transition(strategy, state, update_for(tasks[0]))
    state, instructions = transition(strategy, state, update_for(of_type(StartTraining, instructions)[0]))
    assert instructions == (instructions[0], instructions[1]), (
        "committed and published, and nothing more to do"
    )
    lost = (
        LearnerLeft(2.0, "site1") if event is LearnerLeft else TaskFailed(2.0, "site1", tasks[1].task, "lost")
    )
    state, instructions = transition(strategy, state, lost)
    assert instructions == (StopRun("all rounds are done"),)


def test_adaptive_learners_take_as_many_steps_as_in_their_last_cycle():
    scheduler = AsynchronousScheduler(adaptive={"": UpdateThresholds(0.0, 1)})
    training = TrainSettings(epochs=4)
    strategy = Strategy(learners=1, rounds=1, final_rounds=1, scheduler=scheduler, training=training)
    state, (task,) = join_all(strategy)
    state, instructions = transition(strategy, state, update_for(task, steps=37))
    (task,) = of_type(StartTraining, instructions)
    assert (task.settings.update_thresholds, task.settings.steps, task.settings.use_validation_data) == (
        None,
        37,
        True,
    )
