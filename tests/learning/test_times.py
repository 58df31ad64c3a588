"""Models of times until something happens: their loss by hand, and the pairs by which they are judged one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from abaton.controller import TrainSettings
from abaton.learners import Examples, TorchModel, time_to_event, train_model
from abaton.models.discrete_hazard import Hazards, event_chance, hazard_loss
from abaton.metrics.predictions import count, measures
from abaton.metrics.survival import PairSums, add_pairs, compare_times, judge_pairs, pairs_of, sum_pairs

PEOPLE = st.lists(
    st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.9]), st.integers(1, 6), st.booleans()),
    min_size=1,
    max_size=24,
)


@given(PEOPLE)
def test_every_pair_is_counted_from_both_sides(people):
    chances = np.array([chance for chance, _, _ in people])
    y = np.array([[float(time), float(happened)] for _, time, happened in people])
    right, pairs = [0.0] * len(people), [0.0] * len(people)
    for i, (mine, first, happened) in enumerate(people):
        for j, (other, second, too) in enumerate(people):
            if happened and (first < second or (first == second and not too)):
                for k in (i, j):
                    pairs[k] += 1
                    right[k] += 1.0 if mine > other else 0.5 if mine == other else 0.0
    found = pairs_of(chances, y)
    assert found[0].tolist() == right
    assert found[1].tolist() == pairs


def sample(rng, number, strength=1.0):
    risk = rng.normal(size=number)
    event, left = rng.exponential(np.exp(-strength * risk)), rng.exponential(2.0, number)
    return risk, np.stack([np.minimum(event, left), event <= left], axis=1)


def test_the_interval_covers_as_often_as_it_says_and_sums_add_up():
    rng = np.random.default_rng(3)
    whole = sample(rng, 4000)
    truth = judge_pairs(sum_pairs(*whole))["concordance"].value
    inside = 0
    for _ in range(200):
        risk, y = sample(rng, 150)
        told = judge_pairs(sum_pairs(risk, y))["concordance"]
        inside += told.low <= truth <= told.high
    assert 0.9 <= inside / 200 <= 0.99
    parts = [sum_pairs(*sample(rng, 100)) for _ in range(3)]
    both = add_pairs(parts)
    assert both.subjects == 300
    assert both.right == pytest.approx(sum(part.right for part in parts))


def test_nothing_is_told_of_few_events_or_few_without_one():
    y = np.array([[float(i), i < 3] for i in range(1, 12)])
    assert sum_pairs(np.arange(11), y, 5) == PairSums()
    assert sum_pairs(np.arange(11), y, 2).events == 2
    assert math.isnan(judge_pairs(PairSums())["concordance"].value)


def test_two_models_are_compared_on_the_same_people():
    risk, y = sample(np.random.default_rng(5), 400)
    noise = np.random.default_rng(6).normal(size=400)
    found = compare_times({"noise": noise, "risk": risk}, y)
    assert found.of("noise").low < 0.5 < found.of("noise").high
    better = found.difference("risk", "noise")
    assert better.value == pytest.approx(found.of("risk").value - found.of("noise").value)
    assert better.low > 0
    same = found.difference("risk", "risk")
    assert (same.value, same.low, same.high) == (0, 0, 0)
    nobody = compare_times({"risk": risk[:3]}, np.array([[1.0, 0], [2.0, 0], [3.0, 0]]))
    assert math.isnan(nobody.of("risk").value)


def test_the_loss_is_that_of_the_intervals_that_were_seen():
    odds = torch.tensor([[-1.0, 0.5, 2.0, -0.5]]).repeat(5, 1)
    hazard = 1 / (1 + np.exp(-odds[0].numpy().astype(float)))
    times = [(0.6, 1.0), (0.6, 0.0), (0.65, 0.0), (1.0, 0.0), (0.1, 0.0)]  # of four intervals
    seen = [
        -math.log((1 - hazard[0]) * (1 - hazard[1]) * hazard[2]),
        -math.log((1 - hazard[0]) * (1 - hazard[1])),  # less than half of the third
        -math.log(np.prod(1 - hazard[:3])),  # more than half
        -math.log(np.prod(1 - hazard)),
        0.0,
    ]
    for (time, happened), expected in zip(times, seen, strict=True):
        found = hazard_loss(odds[:1], torch.tensor([[time, happened]]))
        assert float(found) == pytest.approx(expected, abs=1e-6)
    assert float(hazard_loss(odds, torch.tensor(times))) == pytest.approx(np.mean(seen), abs=1e-6)
    assert float(event_chance(odds[:1])[0]) == pytest.approx(1 - np.prod(1 - hazard), abs=1e-6)


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_a_model_of_times_learns_who_is_sooner(hidden):
    rng = np.random.default_rng(1)
    risk, y = sample(rng, 600)
    y = np.stack([np.minimum(y[:, 0], 2.0) / 2.0, y[:, 1] * (y[:, 0] <= 2.0)], axis=1).astype(np.float32)
    data = Examples(np.stack([risk, rng.normal(size=600)], axis=1).astype(np.float32), y)
    model = time_to_event(features=2, intervals=8, hidden=hidden)
    settings = TrainSettings(epochs=30, batch_size=32, learning_rate=0.1)
    trained = train_model(model, model.initial(0), data, settings, np.random.default_rng(0)).vector
    before, after = (model.score(vector, data) for vector in (model.initial(0), trained))
    assert after.loss < before.loss
    assert judge_pairs(sum_pairs(after.predictions, y))["concordance"].value > 0.7
    assert count(after.predictions, y, after.loss) == (600, pytest.approx(600 * after.loss))
    assert measures(after, y) == {"loss": after.loss}
    unknown = model.score(trained, Examples(data.x[:3], np.zeros(3, np.int64))).predictions
    assert unknown.tolist() == after.predictions[:3].tolist()
    assert [t.name for t in model.layout] == (
        ["0.weight", "0.bias", "2.weight", "2.bias"] if hidden else ["weight", "bias"]
    )


def test_a_line_for_all_intervals_has_one_weight_an_input():
    model = TorchModel(lambda: Hazards(3, 7), task="time")
    assert [(t.name, t.shape, str(t.role)) for t in model.layout] == [
        ("weight", (1, 3), "dense"), ("bias", (7,), "bias"),
    ]  # fmt: skip
    assert model.dense is None
