"""Buffered scheduler (FedBuff): restarts of learners, publication of versions and their content."""

from __future__ import annotations

import numpy as np
import pytest
from tests.controller.test_state_machine import evaluation_for, join_all, of_type, update_for

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import (
    BUDGET_SPENT,
    STRATEGIES,
    BufferedScheduler,
    Commit,
    ControllerState,
    CoordinateMedian,
    DifferentialPrivacy,
    ExampleWeighting,
    Krum,
    LearnerJoined,
    LearnerLeft,
    PublishVersion,
    ServerMomentum,
    StalenessWeighting,
    StartEvaluation,
    StartTraining,
    StopRun,
    Strategy,
    TaskFailed,
    TrainSettings,
    UpdateReceived,
    community_model,
    transition,
)
from abaton.errors import SettingsError
from abaton.layout import Layout, Tensor, TensorRole
from abaton.training import round_key

LAYOUT = Layout([Tensor("weight", (8,), TensorRole.DENSE)])


def buffered_strategy(buffer_size: int | None = 2, **settings) -> Strategy:
    defaults = {
        "learners": 3,
        "rounds": 9,
        "scheduler": BufferedScheduler(buffer_size),
        "weighting": (StalenessWeighting(),),
        **settings,
    }
    return Strategy(**defaults)


def test_learners_restart_at_once_and_a_full_buffer_publishes_a_version():
    """Invariant 19."""
    strategy = buffered_strategy()
    state, (a, b, c) = join_all(strategy)
    state, instructions = transition(strategy, state, update_for(b))
    assert [(type(s), s.learner, s.version) for s in instructions] == [(StartTraining, "site1", 0)]
    state, instructions = transition(strategy, state, update_for(instructions[0], timestamp=2.0))
    assert [type(s) for s in instructions] == [Commit, Commit, PublishVersion, StartTraining]
    assert [s.learner for s in of_type(Commit, instructions)] == ["site1", "site1"], (
        "both updates of the quickest count"
    )
    assert of_type(StartTraining, instructions)[0].version == 1
    state, instructions = transition(strategy, state, update_for(c, timestamp=3.0))
    state, instructions = transition(strategy, state, update_for(a, timestamp=4.0))
    assert [(c.learner, c.versions_missed) for c in of_type(Commit, instructions)] == [
        ("site2", 1),
        ("site0", 1),
    ], "as they arrived"
    assert of_type(Commit, instructions)[0].weight == pytest.approx(2**-0.5)


def test_without_a_number_the_buffer_holds_half_of_the_learners():
    assert [BufferedScheduler().min_updates(Strategy(learners=n)) for n in (1, 2, 3, 10)] == [1, 1, 2, 5]
    assert BufferedScheduler(7).min_updates(Strategy(learners=3)) == 7


def test_with_validation_an_update_enters_the_buffer_once_its_evaluators_have_answered():
    strategy = Strategy(learners=3, rounds=9, **STRATEGIES["FedBuffDVW"])
    state, (a, b, _) = join_all(strategy)
    state, requests = transition(strategy, state, update_for(a))
    assert [type(s) for s in requests] == [StartEvaluation, StartEvaluation], (
        "a learner continues when its update is evaluated"
    )
    state, settings = transition(strategy, state, update_for(b))
    for task in (*requests, *settings):
        state, instructions = transition(
            strategy, state, evaluation_for(task, right=5 if task.model == a.task else 0)
        )
    weights = [c.weight for c in of_type(Commit, instructions)]
    assert weights == pytest.approx([(4 + 5 + 5) * 2 / 30, 4 * 2 / 30])
    assert state.version == 1


def test_updates_of_a_departed_learner_stay_in_the_buffer():
    strategy = buffered_strategy()
    state, (a, b, _) = join_all(strategy)
    state, _ = transition(strategy, state, update_for(a))
    state, instructions = transition(strategy, state, LearnerLeft(2.0, "site0"))
    assert instructions == ()
    state, instructions = transition(strategy, state, update_for(b, timestamp=3.0))
    assert [c.learner for c in of_type(Commit, instructions)] == ["site0", "site1"]
    state, instructions = transition(strategy, state, LearnerJoined(4.0, "late", 5))
    assert [(t.learner, t.version) for t in instructions] == [("late", 1)]


def test_remaining_buffer_is_the_last_aggregation():
    """Invariant 18."""
    strategy = buffered_strategy(buffer_size=3)
    state, (a, *_) = join_all(strategy)
    state, _ = transition(strategy, state, update_for(a))
    for name in ("site1", "site2"):
        state, instructions = transition(strategy, state, LearnerLeft(2.0, name))
        assert instructions == ()
    state, instructions = transition(strategy, state, LearnerLeft(2.0, "site0"))
    assert [type(s) for s in instructions] == [Commit, PublishVersion, StopRun]
    assert instructions[-1].reason == "too few learners are left"
    assert not state.ready


def test_failing_learners_are_dropped_and_the_remaining_buffer_is_aggregated():
    strategy = buffered_strategy(buffer_size=2, learners=1, scheduler=BufferedScheduler(2, max_attempts=2))
    state, (task,) = join_all(strategy)
    state, (task,) = transition(strategy, state, update_for(task))
    state, (task,) = transition(strategy, state, TaskFailed(1.0, "site0", task.task, "lost"))
    state, instructions = transition(strategy, state, TaskFailed(1.0, "site0", task.task, "lost"))
    assert [type(s) for s in instructions] == [Commit, PublishVersion, StopRun]
    assert instructions[-1].reason == "every learner's tasks keep failing"


def test_the_run_ends_with_the_last_version_and_not_before():
    strategy = buffered_strategy(rounds=2, learners=1)
    state, instructions = join_all(strategy)
    versions = []
    while state.stop_reason is None:
        state, instructions = transition(strategy, state, update_for(of_type(StartTraining, instructions)[0]))
        versions += [p.version for p in of_type(PublishVersion, instructions)]
    assert (versions, state.stop_reason, state.requested) == ([1, 2], "all rounds are done", 4)


def test_in_the_last_phase_every_learner_does_its_tasks_and_nothing_stays_behind():
    strategy = buffered_strategy(rounds=1, learners=3, final_rounds=1, weighting=(ExampleWeighting(),))
    state, instructions = join_all(strategy)
    open_tasks, on_all_data, last = list(of_type(StartTraining, instructions)), {}, ()
    while state.stop_reason is None:
        task = open_tasks.pop(0)
        on_all_data.setdefault(task.learner, []).append(task.settings.use_validation_data)
        state, last = transition(strategy, state, update_for(task))
        open_tasks += of_type(StartTraining, last)
    assert sorted(on_all_data) == ["site0", "site1", "site2"]
    assert all(sum(done) == 1 and done[-1] for done in on_all_data.values()), (
        "one task on all data, the last one"
    )
    assert not state.ready
    assert state.stop_reason == "all rounds are done"
    assert [type(s) for s in last[-2:]] == [PublishVersion, StopRun]


def test_the_time_of_a_run_ends_it():
    strategy = buffered_strategy(max_seconds=3.0)
    state, (a, *_) = join_all(strategy)
    assert transition(strategy, state, update_for(a, timestamp=3.1))[1] == (StopRun("the time is up"),)


def test_a_privacy_budget_is_kept_for_each_learner():
    strategy = buffered_strategy(
        privacy=DifferentialPrivacy(epsilon=2.0, delta=1e-5, noise_multiplier=8.0),
        learners=1,
        rounds=10_000,
        buffer_size=1,
    )
    assert strategy.privacy is not None
    state, instructions = join_all(strategy)
    while state.stop_reason is None:
        state, instructions = transition(strategy, state, update_for(of_type(StartTraining, instructions)[0]))
    assert state.stop_reason == BUDGET_SPENT
    assert state.releases["site0"] == strategy.privacy.allowance


def test_a_schedule_counts_as_many_updates_as_there_are_learners_as_a_round():
    training = TrainSettings(learning_rate_schedule="step", learning_rate_decay=0.5, schedule_period=1)
    strategy = buffered_strategy(buffer_size=2, learners=4, rounds=20, training=training)
    state, instructions = join_all(strategy)
    elapsed_epochs = set()
    for task in [t for t in instructions]:
        while state.version < 6:
            state, instructions = transition(strategy, state, update_for(task))
            (task,) = of_type(StartTraining, instructions)
            elapsed_epochs.add((task.version, task.settings.elapsed_epochs))
    assert sorted(elapsed_epochs) == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)]


def payloads(codec, versions: list[int], changes: np.ndarray) -> list[tuple[CodecKey, bytes]]:
    encoded = []
    for i, (version, change) in enumerate(zip(versions, changes, strict=True)):
        key = CodecKey(round_key(5, version), f"site{i}", b"secret")
        encoded.append((key, codec.encode(change, LAYOUT, key, codec.initial_state(LAYOUT))[0]))
    return encoded


@pytest.mark.parametrize("line", ["raw", "quicfl(bits=4)", "eden(bits=3)"])
def test_a_version_is_the_one_before_plus_the_discounted_mean_of_the_buffer(line):
    """Algorithm 1 of FedBuff: the sum of s(tau) times each update, over their number; codecs of any start."""
    codec, start = parse_codec(line), np.arange(8, dtype=np.float32)
    changes = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    discounts = [(1 + missed) ** -0.5 for missed in (0, 3, 8)]
    community = community_model(buffered_strategy(buffer_size=3, seed=5), LAYOUT, codec, start)
    sent = payloads(codec, [8, 5, 0], changes)
    for (key, payload), weight in zip(sent, discounts, strict=True):
        community.commit(weight, start, payload, key)
    read = [codec.decode(payload, LAYOUT, key) for key, payload in sent]
    expected = start + np.average(read, axis=0, weights=discounts) * sum(discounts) / 3
    assert community.publish() == pytest.approx(expected, abs=1e-5)


def test_weights_above_one_are_shares_and_no_weight_at_all_changes_nothing():
    codec, start = parse_codec("raw"), np.ones(8, np.float32)
    changes = np.stack([np.full(8, 2.0, np.float32), np.full(8, -1.0, np.float32)])
    community = community_model(buffered_strategy(seed=5), LAYOUT, codec, start)
    for (key, payload), weight in zip(payloads(codec, [0, 0], changes), (30.0, 10.0), strict=True):
        community.commit(weight, start, payload, key)
    assert community.publish().tolist() == [1 + 1.25] * 8
    for key, payload in payloads(codec, [1, 1], changes):
        community.commit(0.0, start, payload, key)
    assert community.publish().tolist() == [1 + 1.25] * 8


def test_server_optimiser_and_robust_aggregation_apply_to_a_buffer():
    codec, start = parse_codec("raw"), np.zeros(8, np.float32)
    changes = np.stack([np.full(8, v, np.float32) for v in (1.0, 2.0, 1000.0)])
    community = community_model(
        buffered_strategy(
            buffer_size=3,
            seed=5,
            robust_aggregation=CoordinateMedian(),
            server_optimiser=ServerMomentum(rate=0.5),
        ),
        LAYOUT,
        codec,
        start,
    )
    for key, payload in payloads(codec, [0, 1, 2], changes):
        community.commit(1.0, start, payload, key)
    assert community.publish().tolist() == [1.0] * 8


def test_a_buffer_that_is_empty_or_too_small_for_robust_aggregation_is_refused():
    with pytest.raises(SettingsError, match=r"scheduler\.buffer_size is 0"):
        buffered_strategy(buffer_size=0)
    with pytest.raises(
        SettingsError, match="the minimum number of updates of an aggregation is 2 .*>= 5, which Krum needs"
    ):
        buffered_strategy(buffer_size=2, robust_aggregation=Krum(byzantine=1))
    assert buffered_strategy(buffer_size=5, robust_aggregation=Krum(byzantine=1))
    with pytest.raises(SettingsError, match="readers"):
        buffered_strategy(privacy=DifferentialPrivacy(8.0, 1e-5, 9.0, "readers"))


def test_robust_aggregation_skips_a_final_buffer_below_its_minimum():
    strategy = buffered_strategy(buffer_size=5, robust_aggregation=Krum(byzantine=1), learners=1)
    state, (task,) = join_all(strategy)
    state, _ = transition(strategy, state, update_for(task))
    state, instructions = transition(strategy, state, LearnerLeft(1.0, "site0"))
    assert [type(s) for s in instructions] == [StopRun]


def test_staleness_is_fixed_when_an_update_arrives():
    strategy = Strategy(
        learners=2, rounds=9, scheduler=BufferedScheduler(1), weighting=STRATEGIES["FedBuffDVW"]["weighting"]
    )
    state, (a, b) = join_all(strategy)
    state, (first,) = transition(strategy, state, update_for(a))
    state, (second,) = transition(strategy, state, update_for(b))
    state, instructions = transition(strategy, state, evaluation_for(first))
    state, instructions = transition(strategy, state, evaluation_for(second))
    assert [(c.learner, c.versions_missed) for c in of_type(Commit, instructions)] == [("site1", 0)]
    assert isinstance(of_type(Commit, instructions)[0].update, UpdateReceived)
    assert isinstance(state, ControllerState)
