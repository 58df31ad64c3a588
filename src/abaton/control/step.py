"""The controller: one pure function from what happened to what is to be done.

Invariants, each with a test:
(1) the same rules, state and event give the same answer; nothing passed in is changed;
(2) a task is answered once: a second answer, or one to an unknown task, changes nothing;
(3) every update that arrives for an open task enters exactly one mix, also when the round had to be tried again;
(4) a version is published only from at least `quorum` updates, and versions count up by one;
(5) commits are given in the order of the learners' names, so that every engine makes the same sum;
(6) after Stop nothing more is asked for.
"""

from __future__ import annotations

from dataclasses import replace

from immutables import Map

from abaton.control import draw
from abaton.control.messages import (
    Arrived,
    Commit,
    Event,
    Failed,
    Instruction,
    Joined,
    Left,
    Publish,
    Stop,
    Train,
)
from abaton.control.rules import Rules
from abaton.control.state import State
from abaton.control.weighting import by_examples

Answer = tuple[State, tuple[Instruction, ...]]


def step(rules: Rules, state: State, event: Event) -> Answer:
    """What the controller knows and asks for after an event.

    >>> rules = Rules(learners=1, rounds=3)
    >>> state, instructions = step(rules, State(), Joined(at=0.0, learner="cleveland", examples=303))
    >>> [(i.learner, i.version) for i in instructions]
    [('cleveland', 0)]
    """
    if state.stopped is not None:
        return state, ()
    match event:
        case Joined():
            return _joined(rules, state, event)
        case Left():
            return _left(rules, state, event)
        case Arrived():
            if state.open.get(event.task) != event.learner:
                return state, ()
            heard = replace(
                state, open=state.open.delete(event.task), arrived=state.arrived.set(event.learner, event)
            )
            return _close(rules, heard)
        case Failed():
            if state.open.get(event.task) != event.learner:
                return state, ()
            return _close(rules, replace(state, open=state.open.delete(event.task)))


def _joined(rules: Rules, state: State, event: Joined) -> Answer:
    waiting = state.version == 0 and state.attempt == 0
    state = replace(state, present=state.present.set(event.learner, event.examples))
    if waiting and len(state.present) >= rules.learners:
        return _begin(rules, state)
    return state, ()


def _left(rules: Rules, state: State, event: Left) -> Answer:
    if event.learner not in state.present:
        return state, ()
    lost = [task for task, learner in state.open.items() if learner == event.learner]
    state = replace(state, present=state.present.delete(event.learner), open=_without(state.open, lost))
    return _close(rules, state) if lost else (state, ())


def _without(tasks: Map[str, str], lost: list[str]) -> Map[str, str]:
    for task in lost:
        tasks = tasks.delete(task)
    return tasks


def _close(rules: Rules, state: State) -> Answer:
    """End the round once nothing is under way any more: mix what came in, or try again."""
    if state.open:
        return state, ()
    if len(state.arrived) < rules.quorum:
        return _begin(rules, state)
    commits = tuple(
        Commit(learner, update.task, state.version, update.payload, by_examples(update))
        for learner, update in sorted(state.arrived.items())
    )
    version = state.version + 1
    made = replace(state, version=version, attempt=0, arrived=Map())
    if version == rules.rounds:
        reason = "all rounds are done"
        return replace(made, stopped=reason), (*commits, Publish(version), Stop(reason))
    made, asked = _begin(rules, made)
    return made, (*commits, Publish(version), *asked)


def _begin(rules: Rules, state: State) -> Answer:
    """Ask learners to train from the newest version: a fresh sample of those whose update is not yet there."""
    attempt = state.attempt + 1
    if attempt > rules.attempts or len(state.present) < rules.quorum:
        gone = len(state.present) < rules.quorum
        reason = (
            "too few learners are left"
            if gone
            else f"round {state.version + 1} failed {rules.attempts} times"
        )
        return replace(state, stopped=reason), (Stop(reason),)
    names = sorted(name for name in state.present if name not in state.arrived)
    wanted = min(rules.per_round - len(state.arrived), len(names))
    chosen = draw.sample(names, wanted, rules.seed, "round", state.version, attempt)
    tasks = {f"{state.version}.{attempt}.{learner}": learner for learner in sorted(chosen)}
    asked = tuple(Train(task, learner, state.version, rules.training) for task, learner in tasks.items())
    return replace(state, attempt=attempt, open=Map(tasks)), asked
