"""Buffered pacing (FedBuff): who trains on, when a version is made, and what it is made of."""

from __future__ import annotations

import numpy as np
import pytest
from test_step import arrived, joined, of, scored

from abaton.codecs import Key, parse
from abaton.controller import (
    POLICIES,
    SPENT,
    Arrived,
    Buffered,
    ByExamples,
    ByStaleness,
    Commit,
    Evaluate,
    Failed,
    Joined,
    Krum,
    Left,
    Median,
    Momentum,
    Privacy,
    Publish,
    Rules,
    State,
    Stop,
    Train,
    TrainSettings,
    community_model,
    step,
)
from abaton.errors import SettingsError
from abaton.kernels import Layout, Role, Tensor
from abaton.training import round_key

LAYOUT = Layout([Tensor("weight", (8,), Role.DENSE)])


def rules(buffer: int | None = 2, **more) -> Rules:
    given = {"learners": 3, "rounds": 9, "pacing": Buffered(buffer), "weighting": (ByStaleness(),), **more}
    return Rules(**given)


def test_learners_go_on_at_once_and_a_full_buffer_makes_a_version():
    """Invariant 19."""
    made = rules()
    state, (a, b, c) = joined(made)
    state, said = step(made, state, arrived(b))
    assert [(type(s), s.learner, s.version) for s in said] == [(Train, "site1", 0)]
    state, said = step(made, state, arrived(said[0], at=2.0))
    assert [type(s) for s in said] == [Commit, Commit, Publish, Train]
    assert [s.learner for s in of(Commit, said)] == ["site1", "site1"], "both updates of the quickest count"
    assert of(Train, said)[0].version == 1
    state, said = step(made, state, arrived(c, at=3.0))
    state, said = step(made, state, arrived(a, at=4.0))
    assert [(c.learner, c.missed) for c in of(Commit, said)] == [("site2", 1), ("site0", 1)], (
        "as they arrived"
    )
    assert of(Commit, said)[0].weight == pytest.approx(2**-0.5)


def test_without_a_number_the_buffer_holds_half_of_the_learners():
    assert [Buffered().fewest(Rules(learners=n)) for n in (1, 2, 3, 10)] == [1, 1, 2, 5]
    assert Buffered(7).fewest(Rules(learners=3)) == 7


def test_with_validation_an_update_enters_the_buffer_once_its_evaluators_have_answered():
    made = Rules(learners=3, rounds=9, **POLICIES["FedBuffDVW"])
    state, (a, b, _) = joined(made)
    state, asked = step(made, state, arrived(a))
    assert [type(s) for s in asked] == [Evaluate, Evaluate], "a learner goes on when its update is judged"
    state, more = step(made, state, arrived(b))
    for task in (*asked, *more):
        state, said = step(made, state, scored(task, right=5 if task.model == a.task else 0))
    weights = [c.weight for c in of(Commit, said)]
    assert weights == pytest.approx([(4 + 5 + 5) * 2 / 30, 4 * 2 / 30])
    assert state.version == 1


def test_a_leaver_is_not_waited_for_and_what_it_sent_counts():
    made = rules()
    state, (a, b, _) = joined(made)
    state, _ = step(made, state, arrived(a))
    state, said = step(made, state, Left(2.0, "site0"))
    assert said == ()
    state, said = step(made, state, arrived(b, at=3.0))
    assert [c.learner for c in of(Commit, said)] == ["site0", "site1"]
    state, said = step(made, state, Joined(4.0, "late", 5))
    assert [(t.learner, t.version) for t in said] == [("late", 1)]


def test_what_is_left_in_the_buffer_is_the_last_mix():
    """Invariant 18."""
    made = rules(buffer=3)
    state, (a, *_) = joined(made)
    state, _ = step(made, state, arrived(a))
    for name in ("site1", "site2"):
        state, said = step(made, state, Left(2.0, name))
        assert said == ()
    state, said = step(made, state, Left(2.0, "site0"))
    assert [type(s) for s in said] == [Commit, Publish, Stop]
    assert said[-1].reason == "too few learners are left"
    assert not state.ready


def test_learners_that_keep_failing_are_left_out_and_the_rest_is_mixed():
    made = rules(buffer=2, learners=1, pacing=Buffered(2, attempts=2))
    state, (task,) = joined(made)
    state, (task,) = step(made, state, arrived(task))
    state, (task,) = step(made, state, Failed(1.0, "site0", task.task, "lost"))
    state, said = step(made, state, Failed(1.0, "site0", task.task, "lost"))
    assert [type(s) for s in said] == [Commit, Publish, Stop]
    assert said[-1].reason == "every learner's tasks keep failing"


def test_the_run_ends_with_the_last_version_and_not_before():
    made = rules(rounds=2, learners=1)
    state, said = joined(made)
    versions = []
    while state.stopped is None:
        state, said = step(made, state, arrived(of(Train, said)[0]))
        versions += [p.version for p in of(Publish, said)]
    assert (versions, state.stopped, state.asked) == ([1, 2], "all rounds are done", 4)


def test_in_the_last_phase_every_learner_does_its_tasks_and_nothing_stays_behind():
    made = rules(rounds=1, learners=3, finishing=1, weighting=(ByExamples(),))
    state, said = joined(made)
    open_tasks, complete, last = list(of(Train, said)), {}, ()
    while state.stopped is None:
        task = open_tasks.pop(0)
        complete.setdefault(task.learner, []).append(task.settings.complete)
        state, last = step(made, state, arrived(task))
        open_tasks += of(Train, last)
    assert sorted(complete) == ["site0", "site1", "site2"]
    assert all(sum(done) == 1 and done[-1] for done in complete.values()), (
        "one task on all data, the last one"
    )
    assert not state.ready
    assert state.stopped == "all rounds are done"
    assert [type(s) for s in last[-2:]] == [Publish, Stop]


def test_the_time_of_a_run_ends_it():
    made = rules(seconds=3.0)
    state, (a, *_) = joined(made)
    assert step(made, state, arrived(a, at=3.1))[1] == (Stop("the time is up"),)


def test_a_privacy_budget_is_kept_for_each_learner():
    made = rules(privacy=Privacy(epsilon=2.0, delta=1e-5, noise=8.0), learners=1, rounds=10_000, buffer=1)
    assert made.privacy is not None
    state, said = joined(made)
    while state.stopped is None:
        state, said = step(made, state, arrived(of(Train, said)[0]))
    assert state.stopped == SPENT
    assert state.releases["site0"] == made.privacy.allowance


def test_a_schedule_counts_as_many_updates_as_there_are_learners_as_a_round():
    training = TrainSettings(schedule="step", decay=0.5, period=1)
    made = rules(buffer=2, learners=4, rounds=20, training=training)
    state, said = joined(made)
    elapsed = set()
    for task in [t for t in said]:
        while state.version < 6:
            state, said = step(made, state, arrived(task))
            (task,) = of(Train, said)
            elapsed.add((task.version, task.settings.elapsed))
    assert sorted(elapsed) == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)]


def payloads(codec, versions: list[int], changes: np.ndarray) -> list[tuple[Key, bytes]]:
    made = []
    for i, (version, change) in enumerate(zip(versions, changes, strict=True)):
        key = Key(round_key(5, version), f"site{i}", b"secret")
        made.append((key, codec.encode(change, LAYOUT, key, codec.start(LAYOUT))[0]))
    return made


@pytest.mark.parametrize("line", ["raw", "quicfl(bits=4)", "eden(bits=3)"])
def test_a_version_is_the_one_before_plus_the_discounted_mean_of_the_buffer(line):
    """Algorithm 1 of FedBuff: the sum of s(tau) times each update, over their number; codecs of any start."""
    codec, start = parse(line), np.arange(8, dtype=np.float32)
    changes = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    discounts = [(1 + missed) ** -0.5 for missed in (0, 3, 8)]
    community = community_model(rules(buffer=3, seed=5), LAYOUT, codec, start)
    sent = payloads(codec, [8, 5, 0], changes)
    for (key, payload), weight in zip(sent, discounts, strict=True):
        community.commit(weight, start, payload, key)
    read = [codec.decode(payload, LAYOUT, key) for key, payload in sent]
    expected = start + np.average(read, axis=0, weights=discounts) * sum(discounts) / 3
    assert community.publish() == pytest.approx(expected, abs=1e-5)


def test_weights_above_one_are_shares_and_no_weight_at_all_changes_nothing():
    codec, start = parse("raw"), np.ones(8, np.float32)
    changes = np.stack([np.full(8, 2.0, np.float32), np.full(8, -1.0, np.float32)])
    community = community_model(rules(seed=5), LAYOUT, codec, start)
    for (key, payload), weight in zip(payloads(codec, [0, 0], changes), (30.0, 10.0), strict=True):
        community.commit(weight, start, payload, key)
    assert community.publish().tolist() == [1 + 1.25] * 8
    for key, payload in payloads(codec, [1, 1], changes):
        community.commit(0.0, start, payload, key)
    assert community.publish().tolist() == [1 + 1.25] * 8


def test_server_optimisers_and_robust_mixes_act_on_a_buffer():
    codec, start = parse("raw"), np.zeros(8, np.float32)
    changes = np.stack([np.full(8, v, np.float32) for v in (1.0, 2.0, 1000.0)])
    community = community_model(
        rules(buffer=3, seed=5, robust=Median(), server=Momentum(rate=0.5)), LAYOUT, codec, start
    )
    for key, payload in payloads(codec, [0, 1, 2], changes):
        community.commit(1.0, start, payload, key)
    assert community.publish().tolist() == [1.0] * 8


def test_a_buffer_that_is_none_or_too_small_for_a_robust_mix_is_refused():
    with pytest.raises(SettingsError, match=r"pacing\.buffer is 0"):
        rules(buffer=0)
    with pytest.raises(
        SettingsError, match="the fewest updates of a mix is 2 .*at least 5, which Krum needs"
    ):
        rules(buffer=2, robust=Krum(liars=1))
    assert rules(buffer=5, robust=Krum(liars=1))
    with pytest.raises(SettingsError, match="readers"):
        rules(privacy=Privacy(8.0, 1e-5, 9.0, "readers"))


def test_a_robust_mix_is_not_asked_to_judge_too_few_at_the_end():
    made = rules(buffer=5, robust=Krum(liars=1), learners=1)
    state, (task,) = joined(made)
    state, _ = step(made, state, arrived(task))
    state, said = step(made, state, Left(1.0, "site0"))
    assert [type(s) for s in said] == [Stop]


def test_an_update_that_was_judged_late_is_as_stale_as_when_it_arrived():
    made = Rules(learners=2, rounds=9, pacing=Buffered(1), weighting=POLICIES["FedBuffDVW"]["weighting"])
    state, (a, b) = joined(made)
    state, (first,) = step(made, state, arrived(a))
    state, (second,) = step(made, state, arrived(b))
    state, said = step(made, state, scored(first))
    state, said = step(made, state, scored(second))
    assert [(c.learner, c.missed) for c in of(Commit, said)] == [("site1", 0)]
    assert isinstance(of(Commit, said)[0].update, Arrived)
    assert isinstance(state, State)
