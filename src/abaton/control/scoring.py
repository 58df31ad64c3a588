"""Asking evaluators what a learner's model is worth, and adding up what they say."""

from __future__ import annotations

from collections.abc import Iterable

from abaton.control import evaluators, score
from abaton.control.messages import Evaluate, Instruction
from abaton.control.rules import Rules
from abaton.control.state import Contribution, State

Answer = tuple[State, tuple[Instruction, ...]]


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
    others = evaluators.choose(policy, state, rules.seed, task, owner)
    waiting = made._replace(waiting=frozenset(others), score=made.update.score if policy.own else ())
    return waiting, tuple(Evaluate(evaluation(task, name), name, task) for name in others)


def hear(state: State, task: str, evaluator: str, counts: tuple[float, ...] = ()) -> State:
    """Add what an evaluator counted; nothing, if it failed. Answers that nobody waits for change nothing."""
    made = state.scoring.get(task)
    if made is None or evaluator not in made.waiting:
        return state
    heard = made._replace(waiting=made.waiting - {evaluator}, score=score.add(made.score, counts))
    return state._replace(scoring=state.scoring.set(task, heard))


def complete(state: State, tasks: Iterable[str]) -> list[Contribution]:
    """Those of some tasks' updates whose evaluators have all answered, in the order in which the updates arrived."""
    known = (state.scoring.get(task) for task in tasks)
    done = [made for made in known if made is not None and not made.waiting]
    return sorted(done, key=lambda made: (made.update.at, made.update.task))
