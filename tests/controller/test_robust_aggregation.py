import numpy as np
import pytest

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import (
    AsynchronousScheduler,
    CoordinateMedian,
    Krum,
    NormBound,
    ServerAdam,
    ServerMomentum,
    ServerSgd,
    Strategy,
    SynchronousScheduler,
    TrimmedMean,
    community_model,
)
from abaton.errors import SettingsError
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout([Tensor("weight", (20,), TensorRole.DENSE)])
CODEC = parse_codec("raw")
HONEST = np.random.default_rng(0).normal(1.0, 0.1, (9, 20)).astype(np.float32)
WEIGHTS = np.ones(10)


@pytest.mark.parametrize(
    "robust", [CoordinateMedian(), TrimmedMean(0.2), Krum(byzantine=1, keep=5), NormBound()]
)
@pytest.mark.parametrize(
    "byzantine_update", [np.full(20, 1e6), np.full(20, -1e6), np.random.default_rng(1).normal(0, 50, 20)]
)
def test_one_byzantine_update_in_ten_does_not_move_the_aggregate_far(robust, byzantine_update):
    rows = np.vstack([HONEST, byzantine_update.astype(np.float32)])
    honest, mean = HONEST.mean(0), rows.mean(0)
    moved = np.linalg.norm(robust.aggregate(rows, WEIGHTS) - honest)
    assert moved < 1.5
    assert moved < 0.2 * np.linalg.norm(mean - honest)


def test_each_method_is_what_its_name_says():
    rows = HONEST[:5]
    assert np.array_equal(CoordinateMedian().aggregate(rows, WEIGHTS[:5]), np.median(rows, axis=0))
    assert TrimmedMean(0.0).aggregate(rows, WEIGHTS[:5]) == pytest.approx(rows.mean(0), rel=1e-6)
    assert TrimmedMean(0.2).aggregate(rows, WEIGHTS[:5]) == pytest.approx(
        np.sort(rows, axis=0)[1:4].mean(0), rel=1e-6
    )
    distances = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    best = np.sort(distances, axis=1)[:, :3].sum(1).argmin()
    assert np.array_equal(Krum(byzantine=1).aggregate(rows, WEIGHTS[:5]), rows[best])
    weights = np.array([1, 2, 3, 4, 5.0])
    assert NormBound(1e9).aggregate(rows, weights) == pytest.approx(
        np.average(rows, axis=0, weights=weights), rel=1e-5
    )
    assert np.linalg.norm(NormBound(0.5).aggregate(rows, weights)) <= 0.5 + 1e-6


def test_krum_scores_by_the_n_minus_f_minus_2_closest_others():
    """Blanchard et al., 2017, section 4, by hand: n = 5 updates, f = 1 of them Byzantine, so 2 neighbours count.

    | update | squared distances to the others | sum of the 2 smallest | of 3, which would be n - f - 1 |
    |---|---|---|---|
    | 0 | 1, 4, 25, 36 | 5 | 30 |
    | 1 | 1, 1, 16, 25 | **2** | 18 |
    | 2 | 1, 4, 9, 16 | 5 | **14** |
    | 5 | 1, 9, 16, 25 | 10 | 26 |
    | 6 | 1, 16, 25, 36 | 17 | 42 |
    """
    rows = np.array([[0], [1], [2], [5], [6]], np.float32)
    assert Krum(byzantine=1).aggregate(rows, WEIGHTS[:5]).tolist() == [1.0]
    assert Krum(byzantine=0).aggregate(rows, WEIGHTS[:5]).tolist() == [2.0], (
        "without a Byzantine update 3 neighbours count"
    )


def test_server_optimisers_follow_their_equations():
    change = HONEST[0]
    assert ServerSgd().apply(change, ())[0] is change
    momentum = ServerMomentum(rate=0.5, beta=0.9)
    step, state = momentum.apply(change, momentum.start(20))
    assert step == pytest.approx(0.5 * change)
    assert momentum.apply(change, state)[0] == pytest.approx(0.5 * 1.9 * change, rel=1e-6)
    for yogi in (False, True):
        adam = ServerAdam(rate=0.1, yogi=yogi)
        step, (_, square) = adam.apply(change, adam.start(20))
        expected = 1e-6 + 0.01 * (change**2) if yogi else 0.99e-6 + 0.01 * change**2
        assert square == pytest.approx(expected, rel=1e-4)
        assert step == pytest.approx(0.1 * 0.1 * change / (np.sqrt(expected) + 1e-3), rel=1e-4)


@pytest.mark.parametrize("scheduler", [SynchronousScheduler(), AsynchronousScheduler()])
def test_a_server_optimiser_acts_on_the_aggregated_change(scheduler):
    strategy = Strategy(
        learners=1, rounds=5, scheduler=scheduler, server_optimiser=ServerMomentum(rate=1.0, beta=0.5)
    )
    start = LAYOUT.zeros()
    model = community_model(strategy, LAYOUT, CODEC, start)
    for expected in (1.0, 1.0 + 1.0 * 0.5 + (1.0 if isinstance(scheduler, SynchronousScheduler) else 0.0)):
        base, key = model.vector, CodecKey(b"round", "site0")
        target = base + 1 if isinstance(scheduler, SynchronousScheduler) else np.ones(20, np.float32)
        payload, _ = CODEC.encode((target - base).astype(np.float32), LAYOUT, key, {})
        model.commit(1.0, base, payload, key)
        assert model.publish() == pytest.approx(np.full(20, expected))


def test_a_robust_round_ignores_a_byzantine_update():
    strategy = Strategy(learners=5, rounds=5, robust_aggregation=CoordinateMedian())
    model = community_model(strategy, LAYOUT, CODEC, LAYOUT.zeros())
    for i, row in enumerate([*HONEST[:4], np.full(20, 1e9, np.float32)]):
        key = CodecKey(b"round", f"site{i}")
        model.commit(1e9 if i == 4 else 1.0, model.vector, CODEC.encode(row, LAYOUT, key, {})[0], key)
    assert np.abs(model.publish() - 1).max() < 0.5


@pytest.mark.parametrize(
    "build",
    [
        lambda: TrimmedMean(0.5),
        lambda: Krum(byzantine=-1),
        lambda: NormBound(0.0),
        lambda: ServerMomentum(rate=0.0),
        lambda: ServerAdam(beta2=1.0),
        lambda: Strategy(5, 5, scheduler=AsynchronousScheduler(), robust_aggregation=CoordinateMedian()),
        lambda: Strategy(5, 5, robust_aggregation=Krum(byzantine=1)),
    ],
)
def test_wrong_settings_are_refused(build):
    with pytest.raises(SettingsError):
        build()
