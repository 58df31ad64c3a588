"""Asking evaluators what a learner's model is worth, and adding up what they say."""

from __future__ import annotations

from dataclasses import replace

from abaton.control import evaluators, score
from abaton.control.messages import Evaluate, Instruction
from abaton.control.rules import Rules
from abaton.control.state import Contribution, State

Answer = tuple[State, tuple[Instruction, ...]]


def evaluation(task: str, evaluator: str) -> str:
    """The key of one evaluation: the model's task and who scores it."""
    return f"{task}@{evaluator}"


def begin(rules: Rules, state: State, made: Contribution) -> Answer:
    """Ask the other learners' evaluators to score a model, if the weighting wants it."""
    policy = rules.validation
    if policy is None or made.frozen:
        return replace(state, scoring=state.scoring.set(made.update.task, made)), ()
    task, owner = made.update.task, made.update.learner
    others = evaluators.choose(policy, state, rules.seed, task, owner)
    asked = replace(made, waiting=frozenset(others), score=made.update.score if policy.own else ())
    tasks = tuple(Evaluate(evaluation(task, name), name, task) for name in others)
    return replace(state, scoring=state.scoring.set(task, asked)), tasks


def hear(state: State, task: str, evaluator: str, counts: tuple[float, ...] = ()) -> State:
    """Add what an evaluator counted; nothing, if it failed. Answers that nobody waits for change nothing."""
    made = state.scoring.get(task)
    if made is None or evaluator not in made.waiting:
        return state
    heard = replace(made, waiting=made.waiting - {evaluator}, score=score.add(made.score, counts))
    return replace(state, scoring=state.scoring.set(task, heard))


def complete(state: State) -> list[Contribution]:
    """The updates whose evaluators have all answered, in the order in which the updates arrived."""
    done = [made for made in state.scoring.values() if not made.waiting]
    return sorted(done, key=lambda made: (made.update.at, made.update.task))
