"""Survival models: their loss computed by hand, and concordant pairs counted one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lifelines.utils import concordance_index

from abaton.controller import TrainSettings
from abaton.metrics.predictions import score_metrics, validation_counts
from abaton.metrics.survival import (
    ConcordanceSums,
    add_pairs,
    compare_survival_models,
    count_pairs,
    evaluate_survival,
    sum_pairs,
)
from abaton.models import Examples, TorchModel, time_to_event, train_model
from abaton.models.discrete_hazard import DiscreteHazardNetwork, event_probability, hazard_loss

SUBJECTS = st.lists(
    st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.9]), st.integers(1, 6), st.booleans()),
    min_size=1,
    max_size=24,
)


@given(SUBJECTS)
def test_every_pair_counts_for_both_subjects(subjects):
    probabilities = np.array([probability for probability, _, _ in subjects])
    y = np.array([[float(follow_up), float(has_event)] for _, follow_up, has_event in subjects])
    right, pairs = [0.0] * len(subjects), [0.0] * len(subjects)
    for i, (own_probability, time, has_event) in enumerate(subjects):
        for j, (other_probability, other_time, other_has_event) in enumerate(subjects):
            if has_event and (time < other_time or (time == other_time and not other_has_event)):
                for k in (i, j):
                    pairs[k] += 1
                    right[k] += (
                        1.0
                        if own_probability > other_probability
                        else 0.5
                        if own_probability == other_probability
                        else 0.0
                    )
    counted = count_pairs(probabilities, y)
    assert counted[0].tolist() == right
    assert counted[1].tolist() == pairs


def sample(rng, count, strength=1.0):
    risk = rng.normal(size=count)
    event, censoring = rng.exponential(np.exp(-strength * risk)), rng.exponential(2.0, count)
    return risk, np.stack([np.minimum(event, censoring), event <= censoring], axis=1)


def test_interval_has_its_nominal_coverage_and_sums_add_up():
    rng = np.random.default_rng(3)
    population = sample(rng, 4000)
    truth = evaluate_survival(sum_pairs(*population))["concordance"].value
    covered = 0
    for _ in range(200):
        risk, y = sample(rng, 150)
        estimate = evaluate_survival(sum_pairs(risk, y))["concordance"]
        covered += estimate.low <= truth <= estimate.high
    assert 0.9 <= covered / 200 <= 0.99
    site_sums = [sum_pairs(*sample(rng, 100)) for _ in range(3)]
    total = add_pairs(site_sums)
    assert total.subjects == 300
    assert total.concordant == pytest.approx(sum(sums.concordant for sums in site_sums))


@given(st.integers(0, 10_000), st.sampled_from([1, 8]), st.sampled_from([0.1, 0.5, 1.0]))
def test_concordance_of_one_site_is_that_of_lifelines(seed, digits, fraction):
    rng = np.random.default_rng(seed)
    y = np.stack([rng.integers(1, 20, 50), rng.random(50) < fraction], axis=1).astype(float)
    y[:2] = [[1.0, 1.0], [30.0, 0.0]]  # a comparable pair
    risk = np.round(rng.random(50), digits)
    estimate = evaluate_survival(sum_pairs(risk, y))["concordance"]
    assert estimate.value == pytest.approx(concordance_index(y[:, 0], -risk, y[:, 1]), abs=1e-12)
    assert math.isfinite(estimate.low) == (y[:, 1].sum() >= 15)


def test_over_sites_only_pairs_within_sites_count():
    y, later = np.array([[1.0, 1], [2.0, 1]]), np.array([[3.0, 1], [4.0, 1]])
    concordant, discordant = np.array([0.9, 0.8]), np.array([0.1, 0.2])
    within = evaluate_survival(add_pairs([sum_pairs(concordant, y, 0), sum_pairs(discordant, later, 0)]))
    pooled = evaluate_survival(sum_pairs(np.append(concordant, discordant), np.concatenate([y, later]), 0))
    assert within["concordance"].value == 1 / 2
    assert pooled["concordance"].value == 5 / 6


def test_sums_of_few_events_or_few_censored_are_suppressed():
    y = np.array([[float(i), i < 3] for i in range(1, 12)])
    assert sum_pairs(np.arange(11), y, 5) == ConcordanceSums()
    assert sum_pairs(np.arange(11), y, 2).events == 2
    assert math.isnan(evaluate_survival(ConcordanceSums())["concordance"].value)


def test_two_models_are_compared_on_the_same_subjects():
    risk, y = sample(np.random.default_rng(5), 400)
    noise = np.random.default_rng(6).normal(size=400)
    comparison = compare_survival_models({"noise": noise, "risk": risk}, y)
    assert comparison.estimate("noise").low < 0.5 < comparison.estimate("noise").high
    difference = comparison.difference("risk", "noise")
    assert difference.value == pytest.approx(
        comparison.estimate("risk").value - comparison.estimate("noise").value
    )
    assert difference.low > 0
    same = comparison.difference("risk", "risk")
    assert (same.value, same.low, same.high) == (0, 0, 0)
    without_events = compare_survival_models({"risk": risk[:3]}, np.array([[1.0, 0], [2.0, 0], [3.0, 0]]))
    assert math.isnan(without_events.estimate("risk").value)


def test_loss_is_that_of_the_observed_intervals():
    odds = torch.tensor([[-1.0, 0.5, 2.0, -0.5]]).repeat(5, 1)
    hazard = 1 / (1 + np.exp(-odds[0].numpy().astype(float)))
    times = [(0.6, 1.0), (0.6, 0.0), (0.65, 0.0), (1.0, 0.0), (0.1, 0.0)]  # of four intervals
    expected_losses = [
        -math.log((1 - hazard[0]) * (1 - hazard[1]) * hazard[2]),
        -math.log((1 - hazard[0]) * (1 - hazard[1])),  # less than half of the third interval
        -math.log(np.prod(1 - hazard[:3])),  # more than half
        -math.log(np.prod(1 - hazard)),
        0.0,
    ]
    for (time, has_event), expected in zip(times, expected_losses, strict=True):
        loss = hazard_loss(odds[:1], torch.tensor([[time, has_event]]))
        assert float(loss) == pytest.approx(expected, abs=1e-6)
    assert float(hazard_loss(odds, torch.tensor(times))) == pytest.approx(np.mean(expected_losses), abs=1e-6)
    assert float(event_probability(odds[:1])[0]) == pytest.approx(1 - np.prod(1 - hazard), abs=1e-6)


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_survival_model_learns_the_risk(hidden):
    rng = np.random.default_rng(1)
    risk, y = sample(rng, 600)
    y = np.stack([np.minimum(y[:, 0], 2.0) / 2.0, y[:, 1] * (y[:, 0] <= 2.0)], axis=1).astype(np.float32)
    data = Examples(np.stack([risk, rng.normal(size=600)], axis=1).astype(np.float32), y)
    model = time_to_event(features=2, intervals=8, hidden=hidden)
    settings = TrainSettings(epochs=30, batch_size=32, learning_rate=0.1)
    trained = train_model(model, model.initial(0), data, settings, np.random.default_rng(0)).vector
    before, after = (model.score(vector, data) for vector in (model.initial(0), trained))
    assert after.loss < before.loss
    assert evaluate_survival(sum_pairs(after.predictions, y))["concordance"].value > 0.7
    assert validation_counts(after.predictions, y, after.loss) == (600, pytest.approx(600 * after.loss))
    assert score_metrics(after, y) == {"loss": after.loss}
    unknown = model.score(trained, Examples(data.x[:3], np.zeros(3, np.int64))).predictions
    assert unknown.tolist() == after.predictions[:3].tolist()
    assert [t.name for t in model.layout] == (
        ["0.weight", "0.bias", "2.weight", "2.bias"] if hidden else ["weight", "bias"]
    )


def test_linear_hazard_model_has_one_weight_per_input():
    model = TorchModel(lambda: DiscreteHazardNetwork(3, 7), task="survival")
    assert [(t.name, t.shape, str(t.role)) for t in model.layout] == [
        ("weight", (1, 3), "dense"), ("bias", (7,), "bias"),
    ]  # fmt: skip
    assert model.dense is None
