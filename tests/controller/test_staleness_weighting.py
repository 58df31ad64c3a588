"""Learning rate schedules driven by the controller: the rate falls on a plateau of the distributed validation loss."""

from __future__ import annotations

from dataclasses import replace

from tests.controller.test_state_machine import join_all, of_type, update_for

from abaton.controller import (
    AsynchronousScheduler,
    EvaluationReceived,
    ExampleWeighting,
    StartEvaluation,
    StartTraining,
    Strategy,
    SynchronousScheduler,
    TaskFailed,
    TrainSettings,
    ValidationWeighting,
    transition,
)

PLATEAU = TrainSettings(learning_rate_schedule="plateau", learning_rate_decay=0.5, schedule_period=2)


def decays_per_round(strategy: Strategy, losses: list[float]) -> list[float]:
    """Return the decay of each round, in which all models have the round's loss."""
    state, instructions = join_all(strategy)
    tasks, observed = of_type(StartTraining, instructions), []
    for loss in losses:
        observed.append({t.settings.learning_rate_decay for t in tasks})
        following = []
        for task in tasks:
            # The learner's own ten examples, and ten of each evaluator: the loss counts by examples.
            state, instructions = transition(
                strategy, state, replace(update_for(task), counts=(4, 4, 5, 5, 5, 5, 10 * loss))
            )
            for requests in of_type(StartEvaluation, instructions):
                counts = (3, 3, 5, 5, 5, 5, 10 * loss)
                state, instructions = transition(
                    strategy, state, EvaluationReceived(1.0, requests.learner, requests.task, counts)
                )
                following += of_type(StartTraining, instructions)
        tasks = following
    return [decay for (decay,) in observed]


LOSSES = [1.0, 0.9, 0.95, 0.92, 0.91, 0.90, 0.8, 0.7]
EXPECTED = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_two_rounds_in_a_row_without_a_new_best_halve_the_rate():
    strategy = Strategy(learners=3, rounds=99, training=PLATEAU, weighting=(ValidationWeighting(),))
    assert decays_per_round(strategy, LOSSES) == EXPECTED


def test_asynchronous_commits_of_as_many_as_there_are_learners_count_as_a_round():
    strategy = Strategy(
        3, 99, training=PLATEAU, weighting=(ValidationWeighting(),), scheduler=AsynchronousScheduler()
    )
    state, instructions = join_all(strategy)
    tasks, observed = of_type(StartTraining, instructions), []
    for loss in LOSSES:
        for _ in range(3):
            task, *tasks = tasks
            state, instructions = transition(
                strategy, state, replace(update_for(task), counts=(4, 4, 5, 5, 5, 5, 10 * loss))
            )
            for requests in of_type(StartEvaluation, instructions):
                counts = (3, 3, 5, 5, 5, 5, 10 * loss)
                state, instructions = transition(
                    strategy, state, EvaluationReceived(1.0, requests.learner, requests.task, counts)
                )
            tasks += of_type(StartTraining, instructions)
        observed.append(tasks[-1].settings.learning_rate_decay)
    assert observed == [*EXPECTED[1:], 0.25]


def test_the_loss_is_the_sum_over_all_evaluators_not_the_learners_own():
    strategy = Strategy(
        learners=2,
        rounds=99,
        training=replace(PLATEAU, schedule_period=1),
        weighting=(ValidationWeighting(),),
    )
    state, instructions = join_all(strategy)
    for own_loss, other_loss, decay in ((1.0, 3.0, 1.0), (0.1, 3.8, 1.0), (0.0, 3.95, 0.5)):
        tasks = of_type(StartTraining, instructions)
        requests = []
        for task in tasks:
            state, instructions = transition(
                strategy, state, replace(update_for(task), counts=(4, 4, 5, 5, 5, 5, 10 * own_loss))
            )
            requests += of_type(StartEvaluation, instructions)
        for one in requests:
            counts = (3, 3, 5, 5, 5, 5, 10 * other_loss)
            state, instructions = transition(
                strategy, state, EvaluationReceived(1.0, one.learner, one.task, counts)
            )
        assert {t.settings.learning_rate_decay for t in of_type(StartTraining, instructions)} == {decay}


def test_without_validation_losses_the_rate_is_unchanged():
    strategy = Strategy(learners=2, rounds=99, training=PLATEAU, weighting=(ValidationWeighting(),))
    state, instructions = join_all(strategy)
    for _ in range(5):
        requests = []
        for task in of_type(StartTraining, instructions):
            state, instructions = transition(strategy, state, update_for(task))
            requests += of_type(StartEvaluation, instructions)
        for one in requests:
            state, instructions = transition(strategy, state, TaskFailed(1.0, one.learner, one.task, "lost"))
    assert {t.settings.learning_rate_decay for t in of_type(StartTraining, instructions)} == {1.0}


def test_other_schedules_get_the_elapsed_epochs():
    training = TrainSettings(
        epochs=3, learning_rate_schedule="step", learning_rate_decay=0.5, schedule_period=4
    )
    for scheduler, expected in (
        (SynchronousScheduler(), [0, 3, 6, 9]),
        (AsynchronousScheduler(), [0, 0, 3, 3]),
    ):
        strategy = Strategy(
            learners=2, rounds=99, training=training, weighting=(ExampleWeighting(),), scheduler=scheduler
        )
        state, instructions = join_all(strategy)
        tasks, observed = of_type(StartTraining, instructions), []
        for _ in range(4):
            task, *tasks = tasks
            observed.append(task.settings.elapsed_epochs)
            state, instructions = transition(strategy, state, update_for(task))
            if isinstance(scheduler, SynchronousScheduler):
                state, instructions = transition(strategy, state, update_for(tasks.pop()))
            tasks = [*of_type(StartTraining, instructions), *tasks]
        assert observed == expected
