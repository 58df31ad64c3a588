"""A hostile site against the controller: each attack distorted or crashed a run before there was a defence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import (
    STRATEGIES,
    Commit,
    ControllerState,
    EvaluationReceived,
    LearnerJoined,
    StartEvaluation,
    StartTraining,
    Strategy,
    UpdateReceived,
    transition,
)
from abaton.controller.aggregation import community_model
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout([Tensor("weight", (50,), TensorRole.DENSE)])
CODEC = parse_codec("raw")
HONEST = (4, 4, 5, 5, 5, 5)  # four of five subjects of each class are correct
BAD_MODEL = (1, 1, 5, 5, 5, 5)

INVALID_COUNTS = {
    "counts of another length": (1, 1, 1, 2, 2, 2, 2, 2, 2),
    "negative counts": (-9, -9, 5, 5, 5, 5),
    "counts that are not integers": (4.5, 4, 5, 5, 5, 5),
    "counts with an infinite sum": (1e308,) * 6,
    "more correct than subjects": (500, 500, 5, 5, 5, 5),
    "implausibly large counts": (0, 0, 1e15, 1e15, 1e15, 1e15),
    "not a number": (math.nan, 4, 5, 5, 5, 5),
    "one value": (1,),
}


def start_run(policy: str, sites: int = 4) -> tuple[Strategy, ControllerState, dict[str, StartTraining]]:
    rules = Strategy(learners=sites, rounds=50, **STRATEGIES[policy])
    state, instructions = ControllerState(), ()
    for i in range(sites):
        state, instructions = transition(rules, state, LearnerJoined(0.0, f"site{i}", 40, "", (5, 5)))
    return rules, state, {train.learner: train for train in instructions if isinstance(train, StartTraining)}


def weight(scores: dict[str, tuple], policy: str = "AsyncDVW(na)") -> float:
    """Return the weight of site0's model from the evaluations of the other sites."""
    rules, state, trains = start_run(policy)
    task = trains["site0"].task
    state, requests = transition(
        rules, state, UpdateReceived(1.0, "site0", task, "payload", 100, 10, 40, {}, HONEST)
    )
    instructions: tuple = ()
    for one in requests:
        assert isinstance(one, StartEvaluation)
        state, more = transition(
            rules, state, EvaluationReceived(2.0, one.learner, one.task, scores[one.learner])
        )
        instructions += more
    return next(instruction.weight for instruction in instructions if isinstance(instruction, Commit))


@pytest.mark.parametrize("policy", ["AsyncDVW(na)", "FedBuffDVW"])
@pytest.mark.parametrize("name", INVALID_COUNTS)
def test_impossible_counts_of_an_evaluator_are_ignored(name, policy):
    if policy == "FedBuffDVW":  # weights are known when the buffer is full; here only errors matter
        rules, state, trains = start_run(policy)
        for i, score in enumerate((HONEST, INVALID_COUNTS[name])):
            task = trains[f"site{i}"].task
            update = UpdateReceived(1.0, f"site{i}", task, "payload", 100, 10, 40, {}, score)
            state, requests = transition(rules, state, update)
            for one in requests:
                if isinstance(one, StartEvaluation):
                    state, _ = transition(
                        rules, state, EvaluationReceived(2.0, one.learner, one.task, INVALID_COUNTS[name])
                    )
        assert state.stop_reason is None
        return
    honest = {f"site{i}": HONEST for i in range(4)}
    assert weight({**honest, "site3": INVALID_COUNTS[name]}) == weight(honest)


def test_counts_of_another_length_do_not_exclude_the_others():
    three = (1, 1, 1, 2, 2, 2, 2, 2, 2)
    scores = {"site1": three, "site2": HONEST, "site3": HONEST}
    assert weight(scores) == pytest.approx(0.8)


def test_one_evaluator_does_not_determine_the_weights():
    """It declares a large validation set, and reports a good model as bad."""
    rules = Strategy(learners=4, rounds=50, robustness="capped", **STRATEGIES["AsyncDVW(na)"])
    state, instructions = ControllerState(), ()
    for i in range(4):
        labels = (10**12, 10**12) if i == 3 else (5, 5)
        state, instructions = transition(rules, state, LearnerJoined(0.0, f"site{i}", 40, "", labels))
    task = next(train.task for train in instructions if train.learner == "site0")
    state, requests = transition(
        rules, state, UpdateReceived(1.0, "site0", task, "payload", 100, 10, 40, {}, HONEST)
    )
    for one in requests:
        score = (0, 0, 10**12, 10**12, 10**12, 10**12) if one.learner == "site3" else HONEST
        state, instructions = transition(rules, state, EvaluationReceived(2.0, one.learner, one.task, score))
    assert state.capped_evaluations == 1
    assert instructions[0].weight == pytest.approx(0.8 / 3), (
        "other evaluators determine a third of the weight, not a millionth"
    )


def test_the_weight_of_a_site_is_limited_by_its_declared_examples():
    rules, state, trains = start_run("SyncFedAvg")
    weights = {}
    for i in range(4):
        many = 2**53 if i == 3 else 40
        task = trains[f"site{i}"].task
        state, instructions = transition(
            rules, state, UpdateReceived(1.0, f"site{i}", task, "payload", 100, 10, many)
        )
        weights |= {
            instruction.learner: instruction.weight
            for instruction in instructions
            if isinstance(instruction, Commit)
        }
    assert weights["site3"] <= 90
    assert weights["site0"] == 40


@pytest.mark.parametrize("policy", STRATEGIES)
@pytest.mark.parametrize("first", [True, False])
def test_an_update_with_a_huge_norm_is_clipped(policy, first):
    """Also the first update of a run, and with every scheduler; before, asynchronous runs followed it."""
    rules = Strategy(learners=4, rounds=5, robustness="capped", **STRATEGIES[policy])
    mix = community_model(rules, LAYOUT, CODEC, LAYOUT.zeros())
    rng = np.random.default_rng(0)
    updates = {f"site{i}": rng.normal(0, 0.1, 50).astype(np.float32) for i in range(3)}
    order = ["liar", *updates] if first else [*updates, "liar"]
    for name in order:
        key = CodecKey(b"round", name)
        update = updates.get(name, np.full(50, 1e30, np.float32))
        payload, _ = CODEC.encode(update, LAYOUT, key, {})
        mix.commit(1.0, LAYOUT.zeros(), payload, key)
    moved = float(np.linalg.norm(mix.publish()))
    assert moved <= (0.05 * 100 * math.sqrt(50) if first else 10 * 0.1 * math.sqrt(50) * 1.5)
    assert mix.norm_bound.clipped_updates == 1


def test_an_inactive_norm_bound_changes_no_bit():
    rng = np.random.default_rng(1)
    updates = [rng.normal(0, 0.1, 50).astype(np.float32) for _ in range(12)]
    for policy in STRATEGIES:
        vectors = []
        for robustness in ("none", "capped"):
            rules = Strategy(learners=4, rounds=5, robustness=robustness, **STRATEGIES[policy])
            mix = community_model(rules, LAYOUT, CODEC, LAYOUT.zeros())
            for i, update in enumerate(updates):
                key = CodecKey(b"round", f"site{i % 4}")
                mix.commit(1.0, mix.vector, CODEC.encode(update, LAYOUT, key, {})[0], key)
                mix.publish()
            vectors.append(mix.vector.tobytes())
        assert vectors[0] == vectors[1], policy


def test_a_restored_norm_bound_clips_equally():
    rules = Strategy(learners=3, rounds=5, robustness="capped", **STRATEGIES["AsyncFedAvg"])
    one, other = (community_model(rules, LAYOUT, CODEC, LAYOUT.zeros()) for _ in range(2))
    for i in range(6):
        key = CodecKey(b"round", f"site{i % 3}")
        payload, _ = CODEC.encode(np.full(50, 10.0 ** (i % 4), np.float32), LAYOUT, key, {})
        one.commit(1.0, LAYOUT.zeros(), payload, key)
        one.publish()
        if i == 2:
            other.load(one.save())
        elif i > 2:
            other.commit(1.0, LAYOUT.zeros(), payload, key)
            other.publish()
    assert one.vector.tobytes() == other.vector.tobytes()
    assert one.norm_bound.clipped_updates == other.norm_bound.clipped_updates > 0
