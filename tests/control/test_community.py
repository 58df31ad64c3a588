from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from abaton.codecs import Key, parse
from abaton.controller import POLICIES, Rules, community_model
from abaton.controller.aggregation import Newest
from abaton.errors import AbatonError, LayoutError
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout([Tensor("weight", (50,), Role.DENSE)])
CODEC = parse("raw")


def community(policy: str, start: np.ndarray, **rules):
    return community_model(Rules(learners=3, rounds=5, **POLICIES[policy], **rules), LAYOUT, CODEC, start)


def send(model, learner: str, weight: float, start: np.ndarray, target: np.ndarray) -> None:
    key = Key(b"round", learner)
    payload, _ = CODEC.encode(target - start, LAYOUT, key, CODEC.start(LAYOUT))
    model.commit(weight, start, payload, key)


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 50)).astype(np.float32)


@pytest.mark.parametrize("policy", ["SyncFedAvg", "AsyncFedAvg"])
def test_the_mix_is_the_weighted_mean_of_the_models(policy):
    start, *models = vectors(4)
    weights = [3.0, 1.0, 6.0]
    mix = community(policy, start)
    for i, (model, weight) in enumerate(zip(models, weights, strict=True)):
        send(mix, f"site{i}", weight, start, model)
    before = start.copy()
    mixed = mix.publish()
    assert mixed == pytest.approx(np.average(models, axis=0, weights=weights), rel=1e-5, abs=1e-6)
    assert np.array_equal(before, start), "older versions keep their numbers"
    assert mix.publish() is mixed, "nothing committed, nothing changed"


WEIGHTS = st.just(0.0) | st.floats(1e-9, 1e4)
commits = st.lists(
    st.tuples(st.integers(0, 4), WEIGHTS, st.integers(0, 9), st.floats(1e-3, 1e3), st.booleans()),
    min_size=1, max_size=30,
)  # fmt: skip


@given(commits)
@example([(0, 1e-7, 0, 1.0, False), (1, 1.0, 0, 312.0, True)])  # what stays is far smaller than what leaves
def test_the_cached_mix_equals_the_full_recomputation_after_any_sequence(sequence):
    """Invariant 13."""
    pool, mix = vectors(10).astype(np.float64), Newest(LAYOUT, CODEC, LAYOUT.zeros())
    newest: dict[str, tuple[float, np.ndarray]] = {}
    for site, weight, index, size, leaves in sequence:
        model = (pool[index] * size).astype(np.float32)
        mix.replace(f"site{site}", model, weight)
        newest[f"site{site}"] = (weight, model.astype(np.float64))
        if leaves and len(newest) > 1:
            mix.retire(f"site{site}")
            del newest[f"site{site}"]
    total = sum(weight for weight, _ in newest.values())
    if total > 0:
        expected = sum(weight * model for weight, model in newest.values()) / total
        largest = max(np.abs(model).max() for _, model in newest.values())
        assert np.abs(mix.publish() - expected).max() <= 1e-6 * largest


@given(commits, st.sampled_from(["SyncFedAvg", "AsyncFedAvg"]))
def test_weights_sum_to_one(sequence, policy):
    """Invariant 14: if all learners send the same model, it is the mix, whatever their weights are."""
    start, same = vectors(2, seed=3)
    mix = community(policy, start)
    for i, (site, weight, *_) in enumerate(sequence):
        name = f"site{site}" if policy == "AsyncFedAvg" else f"site{i}"  # a learner is once in a round
        send(mix, name, weight, start, same)
    newest = {f"site{site}": weight for site, weight, *_ in sequence}
    weights = newest.values() if policy == "AsyncFedAvg" else [weight for _, weight, *_ in sequence]
    if any(weights):
        assert mix.publish() == pytest.approx(same, rel=1e-5, abs=1e-6)


def test_any_order_of_the_same_commits_gives_the_same_bits_and_leaving_undoes_joining():
    models = vectors(4)
    made = set()
    for order in itertools.permutations(range(4)):
        mix = Newest(LAYOUT, CODEC, LAYOUT.zeros())
        mix.replace("first", vectors(1, 9)[0], 2.0)
        for i in order:
            mix.replace(f"site{i}", models[i], 0.1 + i)
        made.add(mix.publish().tobytes())
    assert len(made) == 1
    before = mix.publish().copy()
    mix.replace("guest", vectors(1, 5)[0], 3.0)
    mix.retire("guest")
    assert np.array_equal(mix.publish(), before)


def test_no_drift_after_many_replacements():
    mix = Newest(LAYOUT, CODEC, LAYOUT.zeros())
    models = vectors(7)
    for i in range(5000):
        mix.replace(f"site{i % 5}", models[i % 7], 1.0 + i % 3)
    expected = np.average(
        [models[i % 7] for i in range(4995, 5000)], axis=0, weights=[1.0 + i % 3 for i in range(4995, 5000)]
    )
    assert np.abs(mix.publish() - expected).max() < 1e-6


def test_models_without_weight_leave_the_initial_model():
    start = vectors(1)[0]
    mix = community("AsyncDVW(na)", start)
    send(mix, "site0", 0.0, start, vectors(1, 3)[0])
    assert mix.publish() is start


def test_fedasync_pulls_by_alpha_times_weight():
    start, model = vectors(2)
    mix = community("FedAsync", start)
    send(mix, "site0", 0.5, start, model)
    assert mix.publish() == pytest.approx(0.75 * start + 0.25 * model, abs=1e-6)


def test_what_does_not_fit_is_refused_before_the_sum_is_touched():
    with pytest.raises(LayoutError, match="the initial model"):
        community("SyncFedAvg", np.zeros(4, np.float32))
    start, good = vectors(2)
    mix = community("AsyncFedAvg", start, longest=0)
    send(mix, "site0", 1.0, start, good)
    before = mix.publish().copy()
    key, huge = Key(b"round", "site1"), np.full(50, 3e38, np.float32)
    payload, _ = CODEC.encode(huge, LAYOUT, key, {})
    with np.errstate(over="ignore"), pytest.raises(LayoutError, match="site1"):
        mix.commit(1.0, huge, payload, key)
    with pytest.raises(AbatonError, match="weight"):
        send(mix, "site1", float("nan"), start, good)
    assert np.array_equal(mix.publish(), before)
