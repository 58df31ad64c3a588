"""Semi-synchronous scheduler: rounds of equal duration with as many batches as each learner can train."""

from __future__ import annotations

from tests.controller.test_state_machine import join_all, of_type, update_for

from abaton.controller import (
    CancelTask,
    Commit,
    PublishVersion,
    SemiSynchronousScheduler,
    SetTimer,
    StartTraining,
    StopRun,
    Strategy,
    TaskFailed,
    TimerFired,
    transition,
)

SCHEDULER = SemiSynchronousScheduler(time_budget_seconds=2.5)


def test_every_learner_gets_the_time_budget_and_the_round_waits_for_all():
    strategy = Strategy(learners=3, rounds=1, scheduler=SCHEDULER)
    state, tasks = join_all(strategy)
    assert {task.settings.time_budget_seconds for task in tasks} == {2.5}
    assert {task.settings.steps for task in tasks} == {0}, "the learner determines how many fit"
    for task, steps in zip(tasks[:2], (4, 40), strict=True):
        state, instructions = transition(strategy, state, update_for(task, steps=steps))
        assert instructions == ()
    state, instructions = transition(strategy, state, update_for(tasks[2], steps=400))
    assert [type(s) for s in instructions] == [Commit, Commit, Commit, PublishVersion, StopRun]
    assert state.committed_steps == 444


def test_quorum_deadline_and_repetition_are_those_of_synchronous_rounds():
    strategy = Strategy(
        learners=3,
        rounds=2,
        scheduler=SemiSynchronousScheduler(time_budget_seconds=1.0, quorum=2, deadline=4.0),
    )
    state, instructions = join_all(strategy)
    first, second, third = of_type(StartTraining, instructions)
    (timer,) = of_type(SetTimer, instructions)
    state, _ = transition(strategy, state, update_for(first))
    state, _ = transition(strategy, state, TaskFailed(2.0, second.learner, second.task, "lost"))
    state, instructions = transition(strategy, state, TimerFired(4.0, timer.name))
    assert instructions == (), "one update is no quorum"
    state, instructions = transition(strategy, state, TaskFailed(5.0, third.learner, third.task, "lost"))
    again = of_type(StartTraining, instructions)
    assert [t.learner for t in again] == [second.learner, third.learner], "what arrived is kept"
    assert {t.settings.time_budget_seconds for t in again} == {1.0}
    state, instructions = transition(strategy, state, update_for(again[0]))
    assert instructions == ()
    state, instructions = transition(
        strategy,
        state,
        TimerFired(
            9.0,
            of_type(SetTimer, instructions)[0].name if of_type(SetTimer, instructions) else "deadline.0.2",
        ),
    )
    assert (len(of_type(Commit, instructions)), of_type(CancelTask, instructions)) == (
        2,
        [CancelTask(again[1].task)],
    )
