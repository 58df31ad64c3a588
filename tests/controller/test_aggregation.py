from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import (
    STRATEGIES,
    CoordinateMedian,
    ServerAdam,
    ServerMomentum,
    Strategy,
    community_model,
)
from abaton.controller.aggregation import LatestMeanModel
from abaton.errors import AbatonError, LayoutError, SettingsError
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout([Tensor("weight", (50,), TensorRole.DENSE)])
CODEC = parse_codec("raw")


def community(strategy_name: str, start: np.ndarray, **settings):
    return community_model(
        Strategy(learners=3, rounds=5, **STRATEGIES[strategy_name], **settings), LAYOUT, CODEC, start
    )


def send(model, learner: str, weight: float, start: np.ndarray, target: np.ndarray) -> None:
    key = CodecKey(b"round", learner)
    payload, _ = CODEC.encode(target - start, LAYOUT, key, CODEC.initial_state(LAYOUT))
    model.commit(weight, start, payload, key)


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 50)).astype(np.float32)


@pytest.mark.parametrize("strategy_name", ["SyncFedAvg", "AsyncFedAvg"])
def test_the_aggregate_is_the_weighted_mean_of_the_models(strategy_name):
    start, *models = vectors(4)
    weights = [3.0, 1.0, 6.0]
    model_under_test = community(strategy_name, start)
    for i, (model, weight) in enumerate(zip(models, weights, strict=True)):
        send(model_under_test, f"site{i}", weight, start, model)
    before = start.copy()
    version = model_under_test.publish()
    assert version == pytest.approx(np.average(models, axis=0, weights=weights), rel=1e-5, abs=1e-6)
    assert np.array_equal(before, start), "older versions keep their numbers"
    assert model_under_test.publish() is version, "nothing committed, nothing changed"


WEIGHTS = st.just(0.0) | st.floats(1e-9, 1e4)
commits = st.lists(
    st.tuples(st.integers(0, 4), WEIGHTS, st.integers(0, 9), st.floats(1e-3, 1e3), st.booleans()),
    min_size=1, max_size=30,
)  # fmt: skip


@given(commits)
@example([(0, 1e-7, 0, 1.0, False), (1, 1.0, 0, 312.0, True)])  # what stays is far smaller than what leaves
def test_the_cached_mean_equals_the_full_recomputation_after_any_sequence(sequence):
    """Invariant 13."""
    pool, model_under_test = vectors(10).astype(np.float64), LatestMeanModel(LAYOUT, CODEC, LAYOUT.zeros())
    latest: dict[str, tuple[float, np.ndarray]] = {}
    for site, weight, index, size, leaves in sequence:
        model = (pool[index] * size).astype(np.float32)
        model_under_test.replace(f"site{site}", model, weight)
        latest[f"site{site}"] = (weight, model.astype(np.float64))
        if leaves and len(latest) > 1:
            model_under_test.remove_learner(f"site{site}")
            del latest[f"site{site}"]
    total = sum(weight for weight, _ in latest.values())
    if total > 0:
        expected = sum(weight * model for weight, model in latest.values()) / total
        largest = max(np.abs(model).max() for _, model in latest.values())
        assert np.abs(model_under_test.publish() - expected).max() <= 1e-6 * largest


@given(commits, st.sampled_from(["SyncFedAvg", "AsyncFedAvg"]))
def test_weights_sum_to_one(sequence, strategy_name):
    """Invariant 14: if all learners send the same model, it is the mix, whatever their weights are."""
    start, same = vectors(2, seed=3)
    model_under_test = community(strategy_name, start)
    for i, (site, weight, *_) in enumerate(sequence):
        name = f"site{site}" if strategy_name == "AsyncFedAvg" else f"site{i}"  # a learner is once in a round
        send(model_under_test, name, weight, start, same)
    latest = {f"site{site}": weight for site, weight, *_ in sequence}
    weights = latest.values() if strategy_name == "AsyncFedAvg" else [weight for _, weight, *_ in sequence]
    if any(weights):
        assert model_under_test.publish() == pytest.approx(same, rel=1e-5, abs=1e-6)


def test_any_order_of_the_same_commits_gives_the_same_bits_and_leaving_undoes_joining():
    models = vectors(4)
    digests = set()
    for order in itertools.permutations(range(4)):
        model_under_test = LatestMeanModel(LAYOUT, CODEC, LAYOUT.zeros())
        model_under_test.replace("first", vectors(1, 9)[0], 2.0)
        for i in order:
            model_under_test.replace(f"site{i}", models[i], 0.1 + i)
        digests.add(model_under_test.publish().tobytes())
    assert len(digests) == 1
    before = model_under_test.publish().copy()
    model_under_test.replace("guest", vectors(1, 5)[0], 3.0)
    model_under_test.remove_learner("guest")
    assert np.array_equal(model_under_test.publish(), before)


def test_no_drift_after_many_replacements():
    model_under_test = LatestMeanModel(LAYOUT, CODEC, LAYOUT.zeros())
    models = vectors(7)
    for i in range(5000):
        model_under_test.replace(f"site{i % 5}", models[i % 7], 1.0 + i % 3)
    expected = np.average(
        [models[i % 7] for i in range(4995, 5000)], axis=0, weights=[1.0 + i % 3 for i in range(4995, 5000)]
    )
    assert np.abs(model_under_test.publish() - expected).max() < 1e-6


def test_models_without_weight_leave_the_initial_model():
    start = vectors(1)[0]
    model_under_test = community("AsyncDVW(na)", start)
    send(model_under_test, "site0", 0.0, start, vectors(1, 3)[0])
    assert model_under_test.publish() is start


def test_fedasync_moves_by_alpha_times_weight():
    start, model = vectors(2)
    model_under_test = community("FedAsync", start)
    send(model_under_test, "site0", 0.5, start, model)
    assert model_under_test.publish() == pytest.approx(0.75 * start + 0.25 * model, abs=1e-6)


def test_invalid_models_are_refused_before_the_sum_changes():
    with pytest.raises(LayoutError, match="the initial model"):
        community("SyncFedAvg", np.zeros(4, np.float32))
    start, good = vectors(2)
    model_under_test = community("AsyncFedAvg", start)
    send(model_under_test, "site0", 1.0, start, good)
    before = model_under_test.publish().copy()
    key, huge = CodecKey(b"round", "site1"), np.full(50, 3e38, np.float32)
    payload, _ = CODEC.encode(huge, LAYOUT, key, {})
    with np.errstate(over="ignore"), pytest.raises(LayoutError, match="site1"):
        model_under_test.commit(1.0, huge, payload, key)
    with pytest.raises(AbatonError, match="weight"):
        send(model_under_test, "site1", float("nan"), start, good)
    assert np.array_equal(model_under_test.publish(), before)


FULL_LAYOUT = Layout(
    [
        Tensor("weight", (4,), TensorRole.DENSE),
        Tensor("running_var", (3,), TensorRole.STATISTIC),
        Tensor("base", (40,), TensorRole.FROZEN),
    ]
)


@pytest.mark.parametrize("strategy_name", STRATEGIES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"server_optimiser": ServerMomentum()},
        {"server_optimiser": ServerAdam(rate=1.0)},
        {"robustness": "capped"},
        {"robust_aggregation": CoordinateMedian()},
    ],
    ids=["plain", "momentum", "adam", "norm bound", "median"],
)
def test_statistics_stay_between_those_of_the_learners_and_frozen_tensors_unchanged(strategy_name, settings):
    """All updates start from version 0, whose variance is 100 times that of the data."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=FULL_LAYOUT.size).astype(np.float32)
    start[4:7] = 1.0
    try:
        strategy = Strategy(learners=3, rounds=5, **{**STRATEGIES[strategy_name], **settings})
    except SettingsError:
        pytest.skip("the strategy does not support this setting")
    model_under_test = community_model(strategy, FULL_LAYOUT, CODEC, start)
    for i in range(9):
        target = start.copy()
        target[:4] += rng.normal(size=4)
        target[4:7] = rng.uniform(0.005, 0.015, 3)
        key = CodecKey(b"round", f"site{i % 3}")
        payload, _ = CODEC.encode(target - start, FULL_LAYOUT, key, {})
        model_under_test.commit(0.3 + i / 7, start, payload, key)
        if i % 3 == 2 or not strategy_name.startswith("Sync"):
            version = model_under_test.publish()
            assert (version[4:7] > 0.004).all(), f"after update {i}"
            assert (version[4:7] < 1.001).all()
            assert np.array_equal(version[7:], start[7:])
    if not settings:
        assert (version[4:7] < 0.5).all()
