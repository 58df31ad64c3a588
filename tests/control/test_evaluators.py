"""Evaluators chosen by lot or by their labels."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from test_step import arrived, of

from abaton.controller import ByValidation, Evaluate, Joined, Left, Rules, State, step
from abaton.controller.evaluator_selection import difference, together

# Five pairs of learners, each pair with two classes of ten.
LABELS = {f"site{i}": tuple(10 if j // 2 == i % 5 else 0 for j in range(10)) for i in range(10)}


def begun(policy: ByValidation, seed: int = 0, labels=LABELS):
    rules, state = Rules(learners=len(labels), rounds=9, weighting=(policy,), seed=seed), State()
    for name, counts in labels.items():
        state, said = step(rules, state, Joined(0.0, name, 100, labels=counts))
    return rules, state, said


def chosen(policy: ByValidation, seed: int = 0) -> dict[str, list[str]]:
    rules, state, tasks = begun(policy, seed)
    return {t.learner: [e.learner for e in of(Evaluate, step(rules, state, arrived(t))[1])] for t in tasks}


def misfit(owner: str, evaluators: list[str]) -> float:
    seen = together([LABELS[owner], *(LABELS[name] for name in evaluators)])
    return difference(seen, together(LABELS.values()))


def misfit_of_the_best(owner: str, count: int) -> float:
    others = [name for name in LABELS if name != owner]
    return min(misfit(owner, list(lot)) for lot in combinations(others, count))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_labels_of_chosen_evaluators_resemble_the_federations_more_than_those_drawn_by_lot(count):
    totals, best = Counter(), Counter()
    for seed in range(5):
        for choice in ("lot", "labels"):
            for owner, names in chosen(ByValidation(evaluators=count, choice=choice), seed).items():
                assert len(set(names)) == count
                assert owner not in names
                totals[choice] += misfit(owner, names)
                best[choice] += misfit_of_the_best(owner, count)
    assert totals["labels"] < totals["lot"]
    assert totals["labels"] <= 1.2 * best["labels"], "of all subsets there are"


def test_labels_of_the_models_own_learner_count_only_if_its_score_does():
    """With a class that only the owner and one other hold, the other is needed only if the owner has no say."""
    labels = {"owner": (10, 0), "same": (10, 0), "b": (0, 10), "c": (0, 10), "d": (0, 10)}
    asked = {}
    for own in (True, False):
        rules, state, tasks = begun(ByValidation(evaluators=2, choice="labels", own=own), labels=labels)
        (task,) = (t for t in tasks if t.learner == "owner")
        asked[own] = {e.learner for e in of(Evaluate, step(rules, state, arrived(task))[1])}
    assert "same" not in asked[True], "10 of 30 is nearer to 20 of 50 than 20 of 30"
    assert "same" in asked[False]


def test_the_choice_is_a_function_of_the_seed_and_spreads_the_work():
    """Invariant 16."""
    policy = ByValidation(evaluators=3, choice="labels")
    assert chosen(policy, 1) == chosen(policy, 1) != chosen(policy, 2)
    work = Counter(name for seed in range(10) for names in chosen(policy, seed).values() for name in names)
    assert min(work[name] for name in LABELS) > 10, "30 on average"


def test_labels_of_who_leaves_or_comes_again_are_not_counted_any_more_or_twice():
    rules, state, _ = begun(ByValidation(evaluators=2, choice="labels"))
    whole = state.labels
    state, _ = step(rules, state, Left(1.0, "site3"))
    assert sum(state.labels) == sum(whole) - 20
    state, _ = step(rules, state, Joined(1.0, "site3", 100, labels=LABELS["site3"]))
    state, _ = step(rules, state, Joined(1.0, "site3", 100, labels=LABELS["site3"]))
    assert state.labels == whole


def test_learners_that_tell_no_labels_are_drawn_by_lot():
    labels = dict.fromkeys(LABELS, ())
    rules, state, tasks = begun(ByValidation(evaluators=2, choice="labels"), labels=labels)
    assert len(of(Evaluate, step(rules, state, arrived(tasks[0]))[1])) == 2
