"""A hostile site against the controller: each attack spoiled or crashed a run before there was a defence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from abaton.codecs import Key, parse
from abaton.controller import POLICIES, Arrived, Commit, Evaluate, Joined, Rules, Scored, State, Train, step
from abaton.controller.aggregation import community_model
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout([Tensor("weight", (50,), Role.DENSE)])
CODEC = parse("raw")
HONEST = (4, 4, 5, 5, 5, 5)  # of five people of each class, four were right
BAD_MODEL = (1, 1, 5, 5, 5, 5)

SPOILT = {
    "counts of another form": (1, 1, 1, 2, 2, 2, 2, 2, 2),
    "counts below nothing": (-9, -9, 5, 5, 5, 5),
    "counts that are not whole": (4.5, 4, 5, 5, 5, 5),
    "so many that the sum is endless": (1e308,) * 6,
    "more right than there are": (500, 500, 5, 5, 5, 5),
    "a thousand million million": (0, 0, 1e15, 1e15, 1e15, 1e15),
    "not a number": (math.nan, 4, 5, 5, 5, 5),
    "one number": (1,),
}


def begun(policy: str, sites: int = 4) -> tuple[Rules, State, dict[str, Train]]:
    rules = Rules(learners=sites, rounds=50, **POLICIES[policy])
    state, said = State(), ()
    for i in range(sites):
        state, said = step(rules, state, Joined(0.0, f"site{i}", 40, "", (5, 5)))
    return rules, state, {train.learner: train for train in said if isinstance(train, Train)}


def weight(scores: dict[str, tuple], policy: str = "AsyncDVW(na)") -> float:
    """What the model of site0 weighs by what others say of it."""
    rules, state, trains = begun(policy)
    task = trains["site0"].task
    state, asked = step(rules, state, Arrived(1.0, "site0", task, "payload", 100, 10, 40, {}, HONEST))
    said: tuple = ()
    for one in asked:
        assert isinstance(one, Evaluate)
        state, more = step(rules, state, Scored(2.0, one.learner, one.task, scores[one.learner]))
        said += more
    return next(each.weight for each in said if isinstance(each, Commit))


@pytest.mark.parametrize("policy", ["AsyncDVW(na)", "FedBuffDVW"])
@pytest.mark.parametrize("name", SPOILT)
def test_what_an_evaluator_cannot_have_counted_neither_crashes_nor_counts(name, policy):
    if (
        policy == "FedBuffDVW"
    ):  # weights are told when the buffer is full; it is enough that nothing is raised
        rules, state, trains = begun(policy)
        for i, score in enumerate((HONEST, SPOILT[name])):
            task = trains[f"site{i}"].task
            arrived = Arrived(1.0, f"site{i}", task, "payload", 100, 10, 40, {}, score)
            state, asked = step(rules, state, arrived)
            for one in asked:
                if isinstance(one, Evaluate):
                    state, _ = step(rules, state, Scored(2.0, one.learner, one.task, SPOILT[name]))
        assert state.stopped is None
        return
    honest = {f"site{i}": HONEST for i in range(4)}
    assert weight({**honest, "site3": SPOILT[name]}) == weight(honest)


def test_who_answers_in_another_form_first_does_not_silence_the_others():
    three = (1, 1, 1, 2, 2, 2, 2, 2, 2)
    scores = {"site1": three, "site2": HONEST, "site3": HONEST}
    assert weight(scores) == pytest.approx(0.8)


def test_one_evaluator_does_not_own_the_weights():
    """It declares a large validation set, and says of a good model that it is bad."""
    rules = Rules(learners=4, rounds=50, **POLICIES["AsyncDVW(na)"])
    state, said = State(), ()
    for i in range(4):
        labels = (10**12, 10**12) if i == 3 else (5, 5)
        state, said = step(rules, state, Joined(0.0, f"site{i}", 40, "", labels))
    task = next(train.task for train in said if train.learner == "site0")
    state, asked = step(rules, state, Arrived(1.0, "site0", task, "payload", 100, 10, 40, {}, HONEST))
    for one in asked:
        score = (0, 0, 10**12, 10**12, 10**12, 10**12) if one.learner == "site3" else HONEST
        state, said = step(rules, state, Scored(2.0, one.learner, one.task, score))
    assert said[0].weight == pytest.approx(0.8 / 3), "a third is what the others say, not a millionth"


def test_a_site_that_says_it_has_all_the_examples_of_the_world_counts_for_what_it_declared():
    rules, state, trains = begun("SyncFedAvg")
    weights = {}
    for i in range(4):
        many = 2**53 if i == 3 else 40
        task = trains[f"site{i}"].task
        state, said = step(rules, state, Arrived(1.0, f"site{i}", task, "payload", 100, 10, many))
        weights |= {each.learner: each.weight for each in said if isinstance(each, Commit)}
    assert weights["site3"] <= 90
    assert weights["site0"] == 40


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", [True, False])
def test_an_update_of_huge_length_does_not_carry_the_model_away(policy, first):
    """Also the first one of a run, and under every pacing; before, the model of asynchronous runs followed it."""
    rules = Rules(learners=4, rounds=5, **POLICIES[policy])
    mix = community_model(rules, LAYOUT, CODEC, LAYOUT.zeros())
    rng = np.random.default_rng(0)
    updates = {f"site{i}": rng.normal(0, 0.1, 50).astype(np.float32) for i in range(3)}
    order = ["liar", *updates] if first else [*updates, "liar"]
    for name in order:
        key = Key(b"round", name)
        update = updates.get(name, np.full(50, 1e30, np.float32))
        payload, _ = CODEC.encode(update, LAYOUT, key, {})
        mix.commit(1.0, LAYOUT.zeros(), payload, key)
    moved = float(np.linalg.norm(mix.publish()))
    assert moved <= (0.05 * 100 * math.sqrt(50) if first else 10 * 0.1 * math.sqrt(50) * 1.5)
    assert mix.reach.shortened == 1


def test_a_bound_that_does_not_bite_changes_no_bit():
    rng = np.random.default_rng(1)
    updates = [rng.normal(0, 0.1, 50).astype(np.float32) for _ in range(12)]
    for policy in POLICIES:
        made = []
        for longest in (0.0, 10.0):
            rules = Rules(learners=4, rounds=5, longest=longest, **POLICIES[policy])
            mix = community_model(rules, LAYOUT, CODEC, LAYOUT.zeros())
            for i, update in enumerate(updates):
                key = Key(b"round", f"site{i % 4}")
                mix.commit(1.0, mix.vector, CODEC.encode(update, LAYOUT, key, {})[0], key)
                mix.publish()
            made.append(mix.vector.tobytes())
        assert made[0] == made[1], policy


def test_a_replayed_bound_shortens_the_same():
    rules = Rules(learners=3, rounds=5, **POLICIES["AsyncFedAvg"])
    one, other = (community_model(rules, LAYOUT, CODEC, LAYOUT.zeros()) for _ in range(2))
    for i in range(6):
        key = Key(b"round", f"site{i % 3}")
        payload, _ = CODEC.encode(np.full(50, 10.0 ** (i % 4), np.float32), LAYOUT, key, {})
        one.commit(1.0, LAYOUT.zeros(), payload, key)
        one.publish()
        if i == 2:
            other.load(one.save())
        elif i > 2:
            other.commit(1.0, LAYOUT.zeros(), payload, key)
            other.publish()
    assert one.vector.tobytes() == other.vector.tobytes()
    assert one.reach.shortened == other.reach.shortened > 0
