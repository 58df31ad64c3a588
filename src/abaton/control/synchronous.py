"""Synchronous pacing: rounds of training, each closed by one mix."""

from __future__ import annotations

from dataclasses import replace

from immutables import Map

from abaton.control import assigning, decay, draw
from abaton.control.messages import Cancel, Commit, Instruction, Publish, Stop, Train, Wake
from abaton.control.rules import Rules, Synchronous
from abaton.control.scoring import Answer
from abaton.control.state import Assignment, Past, State


def begin(rules: Rules, pacing: Synchronous, state: State, now: float) -> Answer:
    """Ask learners to train from the newest version: a fresh sample of those whose update is not yet there."""
    attempt = state.attempt + 1
    if len(state.present) < pacing.quorum:
        return stop(state, "too few learners are left")
    if attempt > pacing.attempts:
        return stop(state, f"round {state.version + 1} failed {pacing.attempts} times")
    names = sorted(name for name in state.present if name not in state.ready)
    wanted = min(needed(rules, pacing) + pacing.extra - len(state.ready), len(names))
    chosen = sorted(draw.sample(names, wanted, rules.seed, "round", state.version, attempt))
    tasks = {f"{state.version}.{attempt}.{name}": name for name in chosen}
    asked: list[Instruction] = [
        Train(task, name, state.version, assigning.settings(rules, state, name))
        for task, name in tasks.items()
    ]
    if pacing.deadline is not None:
        asked.append(Wake(deadline(state.version, attempt), now + pacing.deadline))
    complete = assigning.finishing(rules, state)
    started = {
        task: Assignment(name, state.version, state.committed, complete) for task, name in tasks.items()
    }
    return replace(state, attempt=attempt, late=False, open=Map(started)), tuple(asked)


def close(rules: Rules, pacing: Synchronous, state: State, now: float) -> Answer:
    """End the round when it has what it needs: mix it; or try again when it can no longer get it."""
    arrived, under_way = len(state.ready), len(state.open) + len(state.scoring)
    enough = arrived >= needed(rules, pacing) or (state.late and arrived >= pacing.quorum)
    if under_way and not enough:
        return state, ()
    if arrived < pacing.quorum:
        return begin(rules, pacing, state, now)
    made = sorted(state.ready.items())
    commits = tuple(
        Commit(name, m.update.task, m.version, m.update.payload, assigning.weight(rules, state, m))
        for name, m in made
    )
    dropped = tuple(Cancel(task) for task in sorted([*state.open, *state.scoring]))
    if not any(commit.weight > 0 for commit in commits):
        return stop(state, "no update has any weight")
    version = state.version + 1
    steps = sum(m.update.steps for _, m in made)
    mixed = replace(
        state,
        version=version,
        committed=state.committed + steps,
        attempt=0,
        open=Map(),
        scoring=Map(),
        ready=Map(),
        progress=decay.judge(decay.hear(state.progress, (m.score for _, m in made)), rules.training.period),
    )
    if rules.finishing:
        past = {c.learner: Past(c.weight, m.update.steps) for c, (_, m) in zip(commits, made, strict=True)}
        mixed = replace(mixed, past=mixed.past.update(past))
    if version >= rules.rounds + rules.finishing:
        mixed, asked = stop(mixed, "all rounds are done")
    else:
        mixed, asked = begin(rules, pacing, mixed, now)
    return mixed, (*dropped, *commits, Publish(version), *asked)


def needed(rules: Rules, pacing: Synchronous) -> int:
    """How many updates make a round."""
    return rules.learners if pacing.participants is None else pacing.participants


def deadline(version: int, attempt: int) -> str:
    """The name of a round's deadline."""
    return f"deadline.{version}.{attempt}"


def stop(state: State, reason: str) -> Answer:
    """End the run."""
    return replace(state, stopped=reason), (Stop(reason),)
