"""The learning rate comes down when the distributed validation loss does not, through the controller."""

from __future__ import annotations

from dataclasses import replace

from test_step import arrived, joined, of

from abaton.controller import (
    Asynchronous,
    ByExamples,
    ByValidation,
    Evaluate,
    Failed,
    Rules,
    Scored,
    Synchronous,
    Train,
    TrainSettings,
    step,
)

DRIVEN = TrainSettings(schedule="driven", decay=0.5, period=2)


def told(rules: Rules, losses: list[float]) -> list[float]:
    """The decay that learners are told in each round whose models all have one of these losses."""
    state, said = joined(rules)
    tasks, seen = of(Train, said), []
    for loss in losses:
        seen.append({t.settings.decay for t in tasks})
        following = []
        for task in tasks:
            # The learner's own ten examples, and ten of each evaluator: the loss counts by examples.
            state, said = step(rules, state, replace(arrived(task), score=(4, 4, 5, 5, 5, 5, 10 * loss)))
            for asked in of(Evaluate, said):
                counts = (3, 3, 5, 5, 5, 5, 10 * loss)
                state, said = step(rules, state, Scored(1.0, asked.learner, asked.task, counts))
                following += of(Train, said)
        tasks = following
    return [decay for (decay,) in seen]


LOSSES = [1.0, 0.9, 0.95, 0.92, 0.91, 0.90, 0.8, 0.7]
EXPECTED = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_two_rounds_in_a_row_without_a_new_best_halve_the_rate():
    rules = Rules(learners=3, rounds=99, training=DRIVEN, weighting=(ByValidation(),))
    assert told(rules, LOSSES) == EXPECTED


def test_asynchronous_commits_of_as_many_as_there_are_learners_count_as_a_round():
    rules = Rules(3, 99, training=DRIVEN, weighting=(ByValidation(),), pacing=Asynchronous())
    state, said = joined(rules)
    tasks, seen = of(Train, said), []
    for loss in LOSSES:
        for _ in range(3):
            task, *tasks = tasks
            state, said = step(rules, state, replace(arrived(task), score=(4, 4, 5, 5, 5, 5, 10 * loss)))
            for asked in of(Evaluate, said):
                counts = (3, 3, 5, 5, 5, 5, 10 * loss)
                state, said = step(rules, state, Scored(1.0, asked.learner, asked.task, counts))
            tasks += of(Train, said)
        seen.append(tasks[-1].settings.decay)
    assert seen == [*EXPECTED[1:], 0.25]


def test_the_loss_is_the_sum_over_all_evaluators_not_the_learners_own():
    rules = Rules(learners=2, rounds=99, training=replace(DRIVEN, period=1), weighting=(ByValidation(),))
    state, said = joined(rules)
    for own, others, decay in ((1.0, 3.0, 1.0), (0.1, 3.8, 1.0), (0.0, 3.95, 0.5)):
        tasks = of(Train, said)
        asked = []
        for task in tasks:
            state, said = step(rules, state, replace(arrived(task), score=(4, 4, 5, 5, 5, 5, 10 * own)))
            asked += of(Evaluate, said)
        for one in asked:
            counts = (3, 3, 5, 5, 5, 5, 10 * others)
            state, said = step(rules, state, Scored(1.0, one.learner, one.task, counts))
        assert {t.settings.decay for t in of(Train, said)} == {decay}


def test_without_evaluators_that_tell_a_loss_the_rate_stays():
    rules = Rules(learners=2, rounds=99, training=DRIVEN, weighting=(ByValidation(),))
    state, said = joined(rules)
    for _ in range(5):
        asked = []
        for task in of(Train, said):
            state, said = step(rules, state, arrived(task))
            asked += of(Evaluate, said)
        for one in asked:
            state, said = step(rules, state, Failed(1.0, one.learner, one.task, "lost"))
    assert {t.settings.decay for t in of(Train, said)} == {1.0}


def test_other_schedules_hear_how_many_epochs_lie_behind():
    training = TrainSettings(epochs=3, schedule="step", decay=0.5, period=4)
    for pacing, expected in ((Synchronous(), [0, 3, 6, 9]), (Asynchronous(), [0, 0, 3, 3])):
        rules = Rules(learners=2, rounds=99, training=training, weighting=(ByExamples(),), pacing=pacing)
        state, said = joined(rules)
        tasks, seen = of(Train, said), []
        for _ in range(4):
            task, *tasks = tasks
            seen.append(task.settings.elapsed)
            state, said = step(rules, state, arrived(task))
            if isinstance(pacing, Synchronous):
                state, said = step(rules, state, arrived(tasks.pop()))
            tasks = [*of(Train, said), *tasks]
        assert seen == expected
