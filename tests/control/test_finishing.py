"""The post-validation phase: all data, nobody scored, weights as they were."""

from __future__ import annotations

import pytest
from test_step import arrived, joined, of, scored

from abaton.controller import (
    Asynchronous,
    ByValidation,
    Commit,
    Evaluate,
    Failed,
    Joined,
    Left,
    Publish,
    Rules,
    Stop,
    Thresholds,
    Train,
    TrainSettings,
    step,
)

DVW = (ByValidation(),)


def round_of(rules, state, tasks, rights):
    """Answer all tasks and their evaluations; the first learner's model is right so often, and so on."""
    asked, said = [], ()
    right = {t.task: r for t, r in zip(tasks, rights, strict=True)}
    for task in tasks:
        state, said = step(rules, state, arrived(task))
        asked += of(Evaluate, said)
    for one in asked:
        state, said = step(rules, state, scored(one, right=right[one.model]))
    return state, said


def test_rounds_follow_on_all_data_with_frozen_weights_and_no_evaluation():
    rules = Rules(learners=3, rounds=2, finishing=2, weighting=DVW)
    state, tasks = joined(rules)
    state, said = round_of(rules, state, tasks, (1, 1, 1))
    assert not any(t.settings.complete for t in of(Train, said))
    state, said = round_of(rules, state, of(Train, said), (1, 3, 5))
    weights = {c.learner: c.weight for c in of(Commit, said)}
    assert len(set(weights.values())) == 3
    for version in (3, 4):
        tasks = of(Train, said)
        assert all(t.settings.complete for t in tasks)
        for task in tasks:
            state, said = step(rules, state, arrived(task))
            assert not of(Evaluate, said)
        assert {c.learner: c.weight for c in of(Commit, said)} == weights
        assert of(Publish, said) == [Publish(version)]
    assert of(Stop, said) == [Stop("all rounds are done")]


def test_a_learner_that_is_new_weighs_as_much_as_the_others_on_average():
    rules = Rules(learners=2, rounds=1, finishing=1, weighting=DVW)
    state, tasks = joined(rules)
    state, _ = step(rules, state, Joined(0.5, "late", 10))
    state, said = round_of(rules, state, tasks, (2, 5))
    first, second = (c.weight for c in of(Commit, said))
    tasks = of(Train, said)
    commits = []
    for task in tasks:
        state, said = step(rules, state, arrived(task))
        commits += of(Commit, said)
    weights = {c.learner: c.weight for c in commits}
    assert weights.get("late", (first + second) / 2) == pytest.approx((first + second) / 2)
    assert state.stopped == "all rounds are done"


def test_asynchronous_learners_do_so_many_more_tasks_each_and_old_ones_are_not_scored():
    rules = Rules(learners=3, rounds=1, finishing=2, weighting=DVW, pacing=Asynchronous())
    state, tasks = joined(rules)
    state, asked = step(rules, state, arrived(tasks[0]))
    for one in of(Evaluate, asked):
        state, said = step(rules, state, scored(one))
    assert of(Publish, said) == [Publish(1)]
    frozen = of(Commit, said)[0].weight
    waiting = [*tasks[1:], *of(Train, said)]
    assert [t.settings.complete for t in waiting] == [False, False, True]
    complete = []
    while waiting:
        task, *waiting = waiting
        state, said = step(rules, state, arrived(task))
        assert not of(Evaluate, said)
        assert [c.weight for c in of(Commit, said)] == [pytest.approx(frozen)]
        complete += [task.learner] if task.settings.complete else []
        waiting += of(Train, said)
    assert sorted(complete) == ["site0", "site0", "site1", "site1", "site2", "site2"]
    assert of(Stop, said) == [Stop("all rounds are done")]
    assert state.version == 1 + 2 + 6


@pytest.mark.parametrize("event", [Left, Failed])
def test_the_run_ends_when_the_last_one_at_work_is_lost(event):
    rules = Rules(learners=2, rounds=1, finishing=1, pacing=Asynchronous(attempts=1))
    state, tasks = joined(rules)
    state, said = step(rules, state, arrived(tasks[0]))
    state, said = step(rules, state, arrived(of(Train, said)[0]))
    assert said == (said[0], said[1]), "committed and published, and nothing more to do"
    lost = Left(2.0, "site1") if event is Left else Failed(2.0, "site1", tasks[1].task, "lost")
    state, said = step(rules, state, lost)
    assert said == (Stop("all rounds are done"),)


def test_adaptive_learners_take_as_many_steps_as_in_their_last_cycle():
    pacing = Asynchronous(adaptive={"": Thresholds(0.0, 1)})
    training = TrainSettings(epochs=4)
    rules = Rules(learners=1, rounds=1, finishing=1, pacing=pacing, training=training)
    state, (task,) = joined(rules)
    state, said = step(rules, state, arrived(task, steps=37))
    (task,) = of(Train, said)
    assert (task.settings.adaptive, task.settings.steps, task.settings.complete) == (None, 37, True)
