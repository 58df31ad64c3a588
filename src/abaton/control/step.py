"""The controller: one pure function from what happened to what is to be done.

Invariants, each with a test:
(1) the same rules, state and event give the same answer; nothing passed in is changed;
(2) a task is answered once: a second answer, or one to an unknown or cancelled task, changes nothing;
(3) every update that arrives for an open task is committed exactly once, unless its round was closed without it;
(4) versions count up by one, and every version but the first follows at least one commit;
(5) synchronous commits are given in the order of the learners' names, so that every engine makes the same sum;
    asynchronous ones in the order in which updates arrived and their evaluators had answered;
(6) in asynchronous pacing no learner waits for another one's training: a commit is answered with the next task;
(7) an evaluator never scores its own learner's model, and never twice the same one;
(8) after Stop nothing more is asked for.
"""

from __future__ import annotations

from dataclasses import replace

from abaton.control import asynchronous, scoring, synchronous
from abaton.control.messages import (
    Arrived,
    Event,
    Failed,
    Instruction,
    Joined,
    Left,
    Retire,
    Scored,
    Tick,
)
from abaton.control.rules import Latest, Rules, Synchronous
from abaton.control.scoring import Answer
from abaton.control.state import Contribution, Member, State


def step(rules: Rules, state: State, event: Event) -> Answer:
    """What the controller knows and asks for after an event.

    >>> rules = Rules(learners=1, rounds=3)
    >>> state, instructions = step(rules, State(), Joined(at=0.0, learner="cleveland", examples=303))
    >>> [(i.learner, i.version) for i in instructions]
    [('cleveland', 0)]
    """
    if state.stopped is not None:
        return state, ()
    if rules.seconds is not None and event.at > rules.seconds:
        return synchronous.stop(state, "the time is up")
    match event:
        case Joined():
            return _joined(rules, state, event)
        case Left():
            return _left(rules, state, event)
        case Arrived():
            return _arrived(rules, state, event)
        case Scored():
            task, _, evaluator = event.task.rpartition("@")
            return _settle(rules, scoring.hear(state, task, evaluator, event.score), event.at)
        case Failed():
            return _failed(rules, state, event)
        case Tick():
            if event.name != synchronous.deadline(state.version, state.attempt):
                return state, ()
            return _settle(rules, replace(state, late=True), event.at)


def _joined(rules: Rules, state: State, event: Joined) -> Answer:
    known = event.learner in state.present
    state = replace(state, present=state.present.set(event.learner, Member(event.examples, event.group)))
    if not state.begun:
        if len(state.present) < rules.learners:
            return state, ()
        return _train(rules, replace(state, begun=True), sorted(state.present), event.at)
    if known or isinstance(rules.pacing, Synchronous):
        return state, ()
    return _train(rules, state, [event.learner], event.at)


def _train(rules: Rules, state: State, learners: list[str], now: float) -> Answer:
    if isinstance(rules.pacing, Synchronous):
        return synchronous.begin(rules, rules.pacing, state, now)
    said: list[Instruction] = []
    for learner in learners:
        state, asked = asynchronous.train(rules, rules.pacing, state, learner)
        said += asked
    return state, tuple(said)


def _left(rules: Rules, state: State, event: Left) -> Answer:
    learner = event.learner
    if learner not in state.present:
        return state, ()
    lost = [task for task, work in state.open.items() if work.learner == learner]
    still_open = state.open
    for task in lost:
        still_open = still_open.delete(task)
    state = replace(state, present=state.present.delete(learner), open=still_open)
    for task, made in state.scoring.items():
        if learner in made.waiting:
            state = scoring.hear(state, task, learner)
    said: tuple[Instruction, ...] = ()
    if not isinstance(rules.pacing, Synchronous) and rules.mixing == Latest("subtract"):
        said = (Retire(learner),)
    state, more = _settle(rules, state, event.at)
    if state.stopped is None and state.begun and not state.present:
        state, over = synchronous.stop(state, "too few learners are left")
        more += over
    return state, said + more


def _arrived(rules: Rules, state: State, event: Arrived) -> Answer:
    work = state.open.get(event.task)
    if work is None or work.learner != event.learner:
        return state, ()
    made = Contribution(
        event,
        version=work.version,
        versions_missed=state.version - work.version,
        staleness=state.committed - work.committed + event.steps,
    )
    state = replace(state, open=state.open.delete(event.task))
    state, asked = scoring.begin(rules, state, made)
    state, more = _settle(rules, state, event.at)
    return state, asked + more


def _failed(rules: Rules, state: State, event: Failed) -> Answer:
    task, _, evaluator = event.task.rpartition("@")
    if task:
        return _settle(rules, scoring.hear(state, task, evaluator), event.at)
    work = state.open.get(event.task)
    if work is None or work.learner != event.learner:
        return state, ()
    state = replace(state, open=state.open.delete(event.task))
    if isinstance(rules.pacing, Synchronous):
        return _settle(rules, state, event.at)
    return asynchronous.failed(rules, rules.pacing, state, event.learner)


def _settle(rules: Rules, state: State, now: float) -> Answer:
    """Move updates whose evaluators have answered on to the mix."""
    said: tuple[Instruction, ...] = ()
    for made in scoring.complete(state):
        state = replace(state, scoring=state.scoring.delete(made.update.task))
        if isinstance(rules.pacing, Synchronous):
            state = replace(state, ready=state.ready.set(made.update.learner, made))
        else:
            state, asked = asynchronous.commit(rules, rules.pacing, state, made)
            said += asked
            if state.stopped is not None:
                return state, said
    if isinstance(rules.pacing, Synchronous) and state.begun:
        state, asked = synchronous.close(rules, rules.pacing, state, now)
        said += asked
    return state, said
