"""The controller: one pure function from what happened to what is to be done.

Its invariants are numbered in docs/controller.md, each with the test that holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from abaton.controller import evaluator_selection, scheduler
from abaton.controller.events import (
    Arrived,
    Event,
    Failed,
    Instruction,
    Joined,
    Left,
    Noted,
    Retire,
    Scored,
    Tick,
)
from abaton.controller.robust_aggregation import Latest
from abaton.controller.state import Answer, Contribution, Member, State
from abaton.controller.strategies import Rules
from abaton.metrics import counts as score
from abaton.metrics.counts import Counts

_SAY = 2  # how many times all the others' examples one learner's may count


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
        return scheduler.stop(state, "the time is up")
    match event:
        case Joined():
            return _joined(rules, state, event)
        case Left():
            return _left(rules, state, event)
        case Arrived():
            return _arrived(rules, state, event)
        case Scored():
            return _scored(rules, state, event)
        case Failed():
            return _failed(rules, state, event)
        case Tick():
            return rules.pacing.rang(rules, state, event.name, event.at) if state.begun else (state, ())
        case Noted():
            return state, ()


def _joined(rules: Rules, state: State, event: Joined) -> Answer:
    learner, known = event.learner, event.learner in state.present
    state = _forget(state, learner)
    member, before = Member(event.examples, event.group, event.labels), state.declared.get(learner)
    member = member if before is None else before.lessened(member)
    state = state._replace(
        present=state.present.set(learner, member),
        declared=state.declared.set(learner, member) if before is None else state.declared,
        missing=state.missing - {learner},
        examples=state.examples + member.examples,
        labels=evaluator_selection.together([state.labels, member.labels]),
    )
    if not state.begun:
        return _begun(rules, state, event.at)
    return (state, ()) if known else rules.pacing.joined(rules, state, learner, event.at)


def _begun(rules: Rules, state: State, now: float) -> Answer:
    """Begin when everybody is there who is waited for."""
    if not state.present or len(state.present) + len(state.missing) < rules.learners:
        return state, ()
    return rules.pacing.begin(rules, state._replace(begun=True), now)


def _left(rules: Rules, state: State, event: Left) -> Answer:
    learner = event.learner
    if not state.begun:
        state = _forget(state, learner)._replace(missing=state.missing | {learner})
        present = state.present.delete(learner) if learner in state.present else state.present
        return _begun(rules, state._replace(present=present), event.at)
    if learner not in state.present:
        return state, ()
    lost = [task for task, work in state.open.items() if work.learner == learner]
    still_open = state.open
    for task in lost:
        still_open = still_open.delete(task)
    state = _forget(state, learner)
    state = state._replace(present=state.present.delete(learner), open=still_open)
    asked = [task for task, made in state.scoring.items() if learner in made.waiting]
    for task in asked:
        state = evaluator_selection.hear(state, task, learner)
    said: tuple[Instruction, ...] = ()
    if rules.pacing.mixes == "newest" and rules.mixing == Latest("subtract"):
        said = (Retire(learner),)
    state, more = rules.pacing.left(rules, state, learner, event.at)
    if state.stopped is None:
        state, settled = _settle(rules, state, event.at, evaluator_selection.complete(state, asked))
        more += settled
    return state, said + more


def _forget(state: State, learner: str) -> State:
    """Without what a learner declared, in what is declared of all together."""
    member = state.present.get(learner)
    if member is None:
        return state
    gone = tuple(-n for n in member.labels)
    return state._replace(
        examples=state.examples - member.examples, labels=evaluator_selection.together([state.labels, gone])
    )


def _arrived(rules: Rules, state: State, event: Arrived) -> Answer:
    work = state.open.get(event.task)
    if work is None or work.learner != event.learner:
        return state, ()
    member = state.present.get(event.learner)
    if member is not None:
        event = _as_declared(rules, state, member, event)
    made = Contribution(
        event,
        version=work.version,
        versions_missed=state.version - work.version,
        staleness=state.committed - work.committed + event.steps,
        complete=work.complete,
        frozen=scheduler.finishing(rules, state),
    )
    made, asked = evaluator_selection.ask(rules, state, made)
    state = state._replace(open=state.open.delete(event.task))
    if made.waiting:
        state = state._replace(scoring=state.scoring.set(event.task, made))
        return state, asked
    state, more = rules.pacing.ready(rules, state, (made,), event.at)
    return state, asked + more


def _as_declared(rules: Rules, state: State, member: Member, event: Arrived) -> Arrived:
    """An update without a false score that counts for no more examples than declared, nor than twice all the others'.

    With two there is no majority, and both count for what they declared.
    """
    most, others = member.most, state.examples - member.examples
    if len(state.present) > 2 and others:
        most = min(most, _SAY * others)
    if event.examples > most:
        event = replace(event, examples=most, steps=min(event.steps, rules.training.epochs * most))
    sound = evaluator_selection.possible(member, event.score) and _fits(rules, event.score)
    return event if sound else replace(event, score=())


def _fits(rules: Rules, counts: Counts) -> bool:
    return rules.validation is None or score.fits(rules.validation.measure, counts)


def _scored(rules: Rules, state: State, event: Scored | Failed) -> Answer:
    """Take what an evaluator says of a model; one that failed counts nothing, and is not waited for."""
    task = evaluator_selection.scored_task(event.task, event.learner)
    counts = event.score if isinstance(event, Scored) and _fits(rules, event.score) else ()
    state = evaluator_selection.hear(state, task, event.learner, counts)
    return _settle(rules, state, event.at, evaluator_selection.complete(state, (task,)))


def _failed(rules: Rules, state: State, event: Failed) -> Answer:
    work = state.open.get(event.task)
    if work is None:
        return _scored(rules, state, event)
    if work.learner != event.learner:
        return state, ()
    state = state._replace(open=state.open.delete(event.task))
    return rules.pacing.failed(rules, state, event.learner, event.at)


def _settle(rules: Rules, state: State, now: float, done: Sequence[Contribution]) -> Answer:
    """Move updates that wait for no evaluator any more on to the mix."""
    if not done:
        return state, ()
    waiting = state.scoring
    for made in done:
        waiting = waiting.delete(made.update.task)
    return rules.pacing.ready(rules, state._replace(scoring=waiting), done, now)
