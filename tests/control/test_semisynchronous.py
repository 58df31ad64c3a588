"""Semi-synchronous pacing: rounds of the same time, each learner with as many batches as it can do in it."""

from __future__ import annotations

from test_step import arrived, joined, of

from abaton.controller import (
    Cancel,
    Commit,
    Failed,
    Publish,
    Rules,
    SemiSynchronous,
    Stop,
    Tick,
    Train,
    Wake,
    step,
)

PACING = SemiSynchronous(budget=2.5)


def test_everybody_is_told_the_budget_and_the_mix_waits_for_all():
    rules = Rules(learners=3, rounds=1, pacing=PACING)
    state, tasks = joined(rules)
    assert {task.settings.budget for task in tasks} == {2.5}
    assert {task.settings.steps for task in tasks} == {0}, "how many fit is for the learner to find out"
    for task, steps in zip(tasks[:2], (4, 40), strict=True):
        state, said = step(rules, state, arrived(task, steps=steps))
        assert said == ()
    state, said = step(rules, state, arrived(tasks[2], steps=400))
    assert [type(s) for s in said] == [Commit, Commit, Commit, Publish, Stop]
    assert state.committed == 444


def test_quorum_deadline_and_repetition_are_those_of_synchronous_rounds():
    rules = Rules(learners=3, rounds=2, pacing=SemiSynchronous(budget=1.0, quorum=2, deadline=4.0))
    state, said = joined(rules)
    first, second, third = of(Train, said)
    (wake,) = of(Wake, said)
    state, _ = step(rules, state, arrived(first))
    state, _ = step(rules, state, Failed(2.0, second.learner, second.task, "lost"))
    state, said = step(rules, state, Tick(4.0, wake.name))
    assert said == (), "one update is no quorum"
    state, said = step(rules, state, Failed(5.0, third.learner, third.task, "lost"))
    again = of(Train, said)
    assert [t.learner for t in again] == [second.learner, third.learner], "what arrived is kept"
    assert {t.settings.budget for t in again} == {1.0}
    state, said = step(rules, state, arrived(again[0]))
    assert said == ()
    state, said = step(rules, state, Tick(9.0, of(Wake, said)[0].name if of(Wake, said) else "deadline.0.2"))
    assert (len(of(Commit, said)), of(Cancel, said)) == (2, [Cancel(again[1].task)])
