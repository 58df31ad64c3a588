"""A hostile learner against the rules of a run: what it declares, scores, sends or leaves unsaid, in every pacing."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engines.flower.test_flower_engine import TRAINER, Federation

from abaton.codecs import Key, parse
from abaton.controller import (
    POLICIES,
    Arrived,
    Asynchronous,
    ByValidation,
    Commit,
    Evaluate,
    Failed,
    Joined,
    Left,
    Rules,
    Scored,
    State,
    Synchronous,
    Train,
    step,
)
from abaton.controller.aggregation import community_model
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout([Tensor("weight", (50,), Role.DENSE)])
CODEC = parse("raw")
RIGHT, WRONG = (4, 4, 5, 5, 5, 5), (0, 0, 5, 5, 5, 5)


def begun(rules: Rules, declared: dict[str, tuple[int, tuple[int, ...]]]) -> tuple[State, dict[str, Train]]:
    state, said = State(), ()
    for name, (examples, labels) in declared.items():
        state, said = step(rules, state, Joined(0.0, name, examples, "", labels))
    return state, {train.learner: train for train in said if isinstance(train, Train)}


def weights(rules: Rules, declared, examples: dict[str, int]) -> dict[str, float]:
    """What each update of one round weighs."""
    state, trains = begun(rules, declared)
    found: dict[str, float] = {}
    for name, train in trains.items():
        state, said = step(rules, state, Arrived(1.0, name, train.task, "p", 9, 1, examples[name]))
        found |= {each.learner: each.weight for each in said if isinstance(each, Commit)}
    return found


def test_whoever_declares_all_the_examples_of_the_world_has_two_thirds_of_the_mix():
    declared = {"a": (40, ()), "b": (60, ()), "liar": (2**53, ())}
    rules = Rules(learners=3, rounds=5, **POLICIES["SyncFedAvg"])
    found = weights(rules, declared, {"a": 40, "b": 60, "liar": 2**53})
    assert found == {"a": 40, "b": 60, "liar": 200}


def test_a_large_hospital_counts_for_what_it_has_among_others_that_are_not_small():
    declared = {"a": (300, ()), "b": (200, ()), "large": (900, ())}
    rules = Rules(learners=3, rounds=5, **POLICIES["SyncFedAvg"])
    assert weights(rules, declared, {"a": 300, "b": 200, "large": 900})["large"] == 900


def test_what_was_declared_first_holds_for_whoever_leaves_and_joins_again():
    """More examples, more labels and another group do not count; fewer examples do: people withdraw."""
    rules = Rules(learners=3, rounds=5, **POLICIES["AsyncDVW(na)"])
    state, _ = begun(rules, dict.fromkeys(("a", "b", "liar"), (40, (5, 5))))
    state, _ = step(rules, state, Left(1.0, "liar"))
    state, _ = step(rules, state, Joined(2.0, "liar", 10**9, "fast", (10**9, 3, 10**9)))
    assert (state.present["liar"].examples, state.present["liar"].labels) == (40, (5, 3))
    assert state.present["liar"].group == ""
    assert state.examples == 120
    state, _ = step(rules, state, Joined(3.0, "liar", 7, "", (5, 5)))
    assert state.present["liar"].examples == 7
    assert state.labels == (15, 15)


def test_batches_that_nobody_can_have_trained_do_not_make_the_others_seem_stale():
    rules = Rules(learners=3, rounds=50, **POLICIES["AsyncFedAvg"])
    state, trains = begun(rules, dict.fromkeys(("a", "b", "liar"), (40, ())))
    state, _ = step(rules, state, Arrived(1.0, "liar", trains["liar"].task, "p", 9, 2**53, 2**53))
    assert state.committed <= rules.training.epochs * 2 * 40


@pytest.mark.parametrize("measure", ["closeness", "r_squared", "likelihood", "micro_f1", "mcc"])
@pytest.mark.parametrize("counts", [(9.0, 0.5), (9.0, 1.0, 2.0, 9.0), RIGHT, (1, 1, 1, 3, 3, 3, 3, 3, 3)])
@pytest.mark.parametrize("first", [True, False])
def test_counts_of_another_outcome_neither_crash_nor_count_also_between_two(measure, counts, first):
    """Between two there is no majority: counts in the form of another measure ended the run."""
    honest = {"closeness": (9.0, 1.0, 2.0, 9.0), "r_squared": (9.0, 1.0, 2.0, 9.0), "likelihood": (9.0, 0.5)}
    own = honest.get(measure, RIGHT)
    rules = Rules(2, rounds=5, pacing=Asynchronous(), weighting=(ByValidation(measure=measure),))
    state, trains = begun(rules, {"a": (40, ()), "liar": (40, ())})
    whose = "liar" if first else "a"
    state, asked = step(
        rules, state, Arrived(1.0, whose, trains[whose].task, "p", 9, 1, 40, {}, counts if first else own)
    )
    (one,) = (each for each in asked if isinstance(each, Evaluate))
    state, said = step(rules, state, Scored(2.0, one.learner, one.task, own if first else counts))
    (commit,) = (each for each in said if isinstance(each, Commit))
    assert 0 <= commit.weight <= 1
    assert state.stopped is None


@pytest.mark.parametrize("labels", [(), (5, 5)])
def test_whoever_declares_no_labels_cannot_count_more_than_its_examples(labels):
    rules = Rules(learners=4, rounds=5, **POLICIES["AsyncDVW(na)"])
    state, trains = begun(rules, {**dict.fromkeys(("a", "b", "c"), (40, (5, 5))), "liar": (40, labels)})
    state, asked = step(rules, state, Arrived(1.0, "a", trains["a"].task, "p", 9, 1, 40, {}, RIGHT))
    said: tuple = ()
    for one in asked:
        many = (0, 0, 10**15, 10**15, 10**15, 10**15)
        state, said = step(
            rules, state, Scored(2.0, one.learner, one.task, many if one.learner == "liar" else RIGHT)
        )
    (commit,) = (each for each in said if isinstance(each, Commit))
    assert commit.weight == pytest.approx(0.8), "what it says is not counted at all"


def shares(liar: int) -> dict[str, float]:
    """Each learner's share of a round weighted by validation, if one always praises itself and damns the others."""
    names = ("a", "b", "c", "liar")
    declared = {**dict.fromkeys(names, (40, (5, 5))), "liar": (40, (liar, liar))}
    rules = Rules(learners=4, rounds=5, **POLICIES["SyncDVW"])
    state, trains = begun(rules, declared)
    found: dict[str, float] = {}
    for name, train in trains.items():
        own = (liar, liar, *[liar] * 4) if name == "liar" else RIGHT
        state, said = step(rules, state, Arrived(1.0, name, train.task, "p", 9, 1, 40, {}, own))
        for one in (each for each in said if isinstance(each, Evaluate)):
            lie = (0, 0, *[liar] * 4)
            state, more = step(
                rules, state, Scored(2.0, one.learner, one.task, lie if one.learner == "liar" else RIGHT)
            )
            found |= {each.learner: each.weight for each in more if isinstance(each, Commit)}
    return {name: weight / sum(found.values()) for name, weight in found.items()}


def test_an_evaluator_that_damns_all_others_gains_little_with_a_set_like_theirs_and_is_capped_with_a_huge_one():
    """Measured: of four equals, 32% of the mix instead of 25%; with a validation set of 10^12, 54%, and no more."""
    assert shares(5)["liar"] == pytest.approx(0.32, abs=0.02)
    assert shares(10**12)["liar"] == pytest.approx(shares(10**6)["liar"], abs=1e-6)
    assert shares(10**12)["liar"] < 0.55


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("greedy", [True, False])
def test_a_bound_by_others_lengths_is_not_ratcheted_up(policy, greedy):
    """Others' updates grow as they come back from where a liar has carried the model; in each round the bound grew."""
    rules = Rules(learners=4, rounds=200, **POLICIES[policy])
    mix = community_model(rules, LAYOUT, CODEC, LAYOUT.zeros())
    rng, together = np.random.default_rng(0), rules.pacing.mixes == "mean"
    target, away = rng.normal(0, 1, 50).astype(np.float32), np.full(50, 1 / np.sqrt(50), np.float32)
    far = []
    for turn in range(150):
        start = mix.vector
        pulls = [(0.1 * (target - start) + rng.normal(0, 0.01, 50)).astype(np.float32) for _ in range(3)]
        usual = float(np.median([np.linalg.norm(pull) for pull in pulls]))
        push = np.float32(9.99 * usual if greedy else 1e6) * away
        for i, update in enumerate([*pulls, push]):
            key = Key(f"{turn}".encode(), f"site{i}")
            mix.commit(1.0, start if together else mix.vector, CODEC.encode(update, LAYOUT, key, {})[0], key)
            if not together:
                mix.publish()
        mix.publish()
        far.append(float(np.linalg.norm(mix.vector - target)))
    assert far[-1] < 40 * np.linalg.norm(target)
    assert far[-1] == pytest.approx(far[100], rel=0.05), "it does not grow any more"


def test_a_run_begins_without_whoever_never_came_or_has_gone_again():
    for pacing in (Synchronous(), Asynchronous()):
        rules = Rules(learners=3, rounds=5, pacing=pacing)
        state, _ = step(rules, State(), Joined(0.0, "a", 40))
        state, said = step(rules, state, Joined(0.0, "b", 40))
        assert not said
        state, said = step(rules, state, Left(300.0, "liar"))
        assert [each.learner for each in said if isinstance(each, Train)] == ["a", "b"]
        state, said = step(rules, state, Joined(301.0, "liar", 40))
        assert state.missing == frozenset()


def test_a_site_that_never_answers_is_given_up_in_less_than_twice_its_time(tmp_path):
    """Its node is there, and it says nothing; before, every round waited for it as long as the first."""
    federation = Federation(tmp_path, patience=100.0)
    federation.until(Joined)
    federation.post.busy = {TRAINER}
    events: list = []
    for turn in range(5):
        federation.train(f"t{turn}")
        events += federation.until(Failed)
    assert [e.reason for e in events if isinstance(e, Failed)][:4] == ["no answer in time"] * 4
    assert [e for e in events if isinstance(e, Left)]
    assert federation.time < 2 * 100.0 + 20.0


def test_a_site_that_answers_late_or_twice_is_not_heard_a_second_time(tmp_path):
    federation = Federation(tmp_path, patience=100.0)
    federation.until(Joined)
    federation.post.busy = {TRAINER}
    federation.train("t")
    assert federation.until(Failed)
    federation.post.busy = set()
    late = federation.pause(50.0)
    assert not [e for e in late if isinstance(e, Arrived)]
    federation.train("u")
    (update,) = (e for e in federation.until(Arrived) if isinstance(e, Arrived))
    letter = f"{len(federation.post.sent) - 1:06}"
    federation.post.answers[letter] = federation.sent("train")[-1]
    assert not [e for e in federation.pause(50.0) if isinstance(e, Arrived)]
    assert update.task == "u"
