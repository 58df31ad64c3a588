"""Asking evaluators what a learner's model is worth, and adding up what they say.

Which ones are asked: all of them, some by lot, or some whose labels together resemble everybody's.

A few evaluators cost less, but few validation sets with few classes each judge a model by a part of what it must know.
Learners tell the label counts of their validation sets when they join; of several lots drawn, the one is taken whose
labels, together with the model's own learner's if its own score counts, are distributed most like everybody's. Lots
keep the work spread over evaluators, and cost the same however many learners there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from abaton import training
from abaton.controller.events import Evaluate, Instruction
from abaton.controller.state import Contribution, Member, State
from abaton.controller.strategies import Rules
from abaton.controller.weighting import ByValidation
from abaton.metrics import counts as score
from abaton.metrics.counts import Counts

LOTS = 32


def evaluation(task: str, evaluator: str) -> str:
    """The key of one evaluation: the model's task and who scores it."""
    return f"{task}@{evaluator}"


def scored_task(key: str, evaluator: str) -> str:
    """The task whose model an evaluation is of.

    >>> scored_task(evaluation("7.kos", "north@clinic"), "north@clinic")
    '7.kos'
    """
    return key.removesuffix(f"@{evaluator}")


def ask(rules: Rules, state: State, made: Contribution) -> tuple[Contribution, tuple[Instruction, ...]]:
    """The update as it waits for the other learners' evaluators, and what they are asked, if the weighting wants it."""
    policy = rules.validation
    if policy is None or made.frozen:
        return made, ()
    task, owner = made.update.task, made.update.learner
    others = choose(policy, state, rules.seed, task, owner)
    own = (made.update.score,) if policy.own else ()
    waiting = made._replace(waiting=frozenset(others), heard=own, score=() if others else score.combined(own))
    return waiting, tuple(Evaluate(evaluation(task, name), name, task) for name in others)


def hear(state: State, task: str, evaluator: str, counts: tuple[float, ...] = ()) -> State:
    """Add what an evaluator counted; nothing, if it failed. Answers that nobody waits for change nothing.

    Counts that cannot be, or are more than the evaluator declared when it joined, are those of one that failed.
    """
    made = state.scoring.get(task)
    if made is None or evaluator not in made.waiting:
        return state
    member = state.present.get(evaluator)
    if member is None or not possible(member, counts):
        counts = ()
    heard = made._replace(waiting=made.waiting - {evaluator}, heard=(*made.heard, counts))
    if not heard.waiting:
        heard = heard._replace(heard=(), score=score.combined(heard.heard))
    return state._replace(scoring=state.scoring.set(task, heard))


def possible(member: Member, counts: Counts) -> bool:
    """Whether a learner can have counted something, by what it declared when it joined."""
    return score.sound(counts, member.labels) and score.total(counts) <= member.most


def complete(state: State, tasks: Iterable[str]) -> list[Contribution]:
    """Those of some tasks' updates whose evaluators have all answered, in the order in which the updates arrived."""
    known = (state.scoring.get(task) for task in tasks)
    done = [made for made in known if made is not None and not made.waiting]
    return sorted(done, key=lambda made: (made.update.at, made.update.task))


def choose(policy: ByValidation, state: State, seed: int, task: str, owner: str) -> list[str]:
    """The evaluators of one learner's model, in the order of their names."""
    others = sorted(name for name in state.present if name != owner)
    count = policy.evaluators
    if count is None or count >= len(others):
        return others
    if policy.choice == "lot":
        return sorted(training.sample(others, count, seed, "evaluators", task))
    lots = [sorted(training.sample(others, count, seed, "evaluators", task, i)) for i in range(LOTS)]
    own = state.present[owner].labels if policy.own and owner in state.present else ()
    return min(lots, key=lambda lot: _distance(state, own, lot))


def _distance(state: State, own: Counts, lot: Sequence[str]) -> float:
    seen = together([own, *(state.present[name].labels for name in lot)])
    return round(
        difference(seen, state.labels), 9
    )  # lots that fit equally well must not be told apart by rounding


def together(counts: Iterable[Counts]) -> Counts:
    """Label counts added up; a missing class counts 0.

    >>> together([(1, 2), (3, 0, 5)])
    (4, 2, 5)
    """
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def difference(one: Counts, other: Counts) -> float:
    """How differently two label counts are distributed: 0 if alike, 1 if they have no label in common.

    >>> difference((2, 2), (5, 5)), difference((3, 0), (0, 0, 4))
    (0.0, 1.0)
    """
    all_of_one, all_of_other = sum(one) or 1, sum(other) or 1
    pairs = zip_longest(one, other, fillvalue=0)
    return sum(abs(a / all_of_one - b / all_of_other) for a, b in pairs) / 2
