"""Weighting by the mean of evaluators' scores, evaluated at an interval of versions."""

from __future__ import annotations

import random
from math import exp

import pytest

from abaton.controller import LossWeighting, Strategy, SynchronousScheduler, ValidationWeighting
from abaton.controller.evaluator_selection import add_evaluation, add_scores, mean_score, request_evaluations
from abaton.controller.events import StartEvaluation, UpdateReceived
from abaton.controller.state import (
    Contribution,
    ControllerState,
    LearnerInfo,
    Map,
    from_json_value,
    to_json_value,
)
from abaton.errors import SettingsError
from abaton.metrics.counts import accuracy, from_confusion, mcc

NAMES = ("athens", "kos", "trikala", "lebena")


def _strategy(weighting: ValidationWeighting | LossWeighting) -> Strategy:
    return Strategy(scheduler=SynchronousScheduler(), weighting=(weighting,), rounds=20)


def _state() -> ControllerState:
    return ControllerState(present=Map({name: LearnerInfo(100) for name in NAMES}))


def _contribution(version: int, learner: str = "athens") -> Contribution:
    update = UpdateReceived(0.0, learner, f"{version}.{learner}", "", 0, 10, 100)
    return Contribution(update, version, 0, 10)


def _evaluate(strategy: Strategy, state: ControllerState, version: int, replies: list[tuple[float, ...]]):
    contribution, requests = request_evaluations(strategy, state, _contribution(version))
    if not requests:
        return state, contribution
    task = contribution.update.task
    state = state._replace(awaiting_evaluation=state.awaiting_evaluation.set(task, contribution))
    evaluators = [request.learner for request in requests if isinstance(request, StartEvaluation)]
    for evaluator, counts in zip(evaluators, replies, strict=True):
        state = add_evaluation(strategy, state, task, evaluator, counts)
    return state, state.awaiting_evaluation[task]


def _random_counts(rng: random.Random) -> tuple[float, ...]:
    return from_confusion([[rng.randrange(1, 30) for _ in range(2)] for _ in range(2)])


def test_weight_is_the_mean_of_the_scores_of_all_evaluators_and_versions() -> None:
    weighting = ValidationWeighting("mcc", include_own_validation=False, combination="mean")
    strategy, state, rng, expected = _strategy(weighting), _state(), random.Random(7), []
    for version in range(6):
        replies = [_random_counts(rng) for _ in range(3)]
        state, contribution = _evaluate(strategy, state, version, replies)
        expected += [mcc(counts) for counts in replies]
        assert weighting.weight(contribution) == pytest.approx(sum(expected) / len(expected), abs=1e-12)


def test_one_evaluator_with_flipped_labels_counts_once_whatever_its_size() -> None:
    good, flipped = from_confusion([[45, 5], [5, 45]]), from_confusion([[50, 450], [450, 50]])
    by_sum = ValidationWeighting("accuracy", include_own_validation=False)
    by_mean = ValidationWeighting("accuracy", include_own_validation=False, combination="mean")
    weights = []
    for weighting in (by_sum, by_mean):
        present = {name: LearnerInfo(10_000) for name in NAMES}
        state = ControllerState(present=Map(present))
        _, contribution = _evaluate(_strategy(weighting), state, 0, [good, good, flipped])
        weights.append(weighting.weight(contribution))
    assert weights[0] == pytest.approx((90 + 90 + 100) / 1200)
    assert weights[1] == pytest.approx((0.9 + 0.9 + 0.1) / 3)


def test_models_between_evaluations_have_the_last_mean_and_start_no_evaluation() -> None:
    weighting = ValidationWeighting("accuracy", include_own_validation=False, combination="mean", interval=5)
    strategy, state = _strategy(weighting), _state()
    state, first = _evaluate(strategy, state, 0, [from_confusion([[9, 1], [1, 9]])] * 3)
    for version in (1, 2, 3, 4):
        contribution, requests = request_evaluations(strategy, state, _contribution(version))
        assert requests == ()
        assert weighting.weight(contribution) == weighting.weight(first) == pytest.approx(0.9)
    _, requests = request_evaluations(strategy, state, _contribution(5))
    assert len(requests) == 3
    other, _ = request_evaluations(strategy, state, _contribution(1, "kos"))
    assert weighting.weight(other) == 1.0


def test_evaluators_that_abstain_do_not_change_the_mean() -> None:
    weighting = ValidationWeighting("accuracy", include_own_validation=False, combination="mean")
    counts = from_confusion([[8, 2], [2, 8]])
    _, contribution = _evaluate(_strategy(weighting), _state(), 0, [(), counts, ()])
    assert weighting.weight(contribution) == pytest.approx(accuracy(counts))
    _, contribution = _evaluate(_strategy(weighting), _state(), 0, [(), (), ()])
    assert weighting.weight(contribution) == 1.0


def test_loss_weighting_uses_the_mean_relative_loss() -> None:
    weighting = LossWeighting(k=4.0, is_relative=True, combination="mean", interval=5)
    replies = [(5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 10 * loss) for loss in (0.5, 0.7, 1.2)]
    state, contribution = _evaluate(_strategy(weighting), _state(), 0, replies)
    assert weighting.weight(contribution) == pytest.approx(exp(-4 * 0.8))
    assert mean_score(state, "athens") == pytest.approx(0.8)


def test_scores_are_part_of_a_checkpoint() -> None:
    strategy = _strategy(ValidationWeighting("accuracy", combination="mean"))
    state = add_scores(strategy, _state(), "kos", [from_confusion([[3, 1], [0, 4]])])
    assert from_json_value(to_json_value(state)).scores == state.scores


@pytest.mark.parametrize(
    ("combination", "interval"), [("sum", 2), ("mean", 0), ("median", 1), ("mean", True)]
)
def test_impossible_settings_are_refused(combination: str, interval: int) -> None:
    with pytest.raises(SettingsError):
        ValidationWeighting(combination=combination, interval=interval)  # type: ignore[arg-type]
