"""Synchronous pacing: rounds of training, each closed by one mix."""

from __future__ import annotations

from immutables import Map

from abaton.control import assigning, decay, draw
from abaton.control.messages import Cancel, Instruction, Publish, Stop, Train, Wake
from abaton.control.privacy import SPENT, Privacy
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
    if rules.privacy is not None:
        names, enough = _within_budget(rules.privacy, pacing, state, names, needed(rules, pacing))
        if not enough:
            return stop(state, SPENT)
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
    if rules.privacy is not None:
        state = _charge(rules.privacy, state, chosen)
    return state._replace(attempt=attempt, late=False, open=Map(started)), tuple(asked)


def _within_budget(
    privacy: Privacy, pacing: Synchronous, state: State, names: list[str], wanted: int
) -> tuple[list[str], bool]:
    """Who may still be asked, and whether the round may begin: a new one needs all it wants, a retry the least."""
    if privacy.against == "readers":
        drawn, among = _drawn(state, min(wanted + pacing.extra - len(state.ready), len(names)))
        return names, privacy.allows(state, privacy.round(drawn, among, pacing.quorum))
    unspent = [name for name in names if state.releases.get(name, 0) < privacy.allowance]
    least = min(wanted, len(names)) if state.attempt == 0 else pacing.quorum - len(state.ready)
    return unspent, len(unspent) >= least


def _charge(privacy: Privacy, state: State, chosen: list[str]) -> State:
    """Count a request as spent when it is made: an update that fails may have been seen by somebody."""
    if privacy.against == "readers":
        return state._replace(drawn=_drawn(state, len(chosen)))
    releases = state.releases.update({name: state.releases.get(name, 0) + 1 for name in chosen})
    return state._replace(releases=releases)


def _drawn(state: State, more: int) -> tuple[int, int]:
    """How many learners the round has asked after some more, and among how many: the fewest that were there."""
    before, among = state.drawn
    return before + more, min(among, len(state.present)) if before else len(state.present)


def _released(privacy: Privacy, state: State, mixed: int) -> State:
    """Count a round's mean as released."""
    if privacy.against != "readers":
        return state
    kind = privacy.round(*state.drawn, mixed)
    return state._replace(drawn=(0, 0), rounds=state.rounds.set(kind, state.rounds.get(kind, 0) + 1))


def close(rules: Rules, pacing: Synchronous, state: State, now: float) -> Answer:
    """End the round when it has what it needs: mix it; or try again when it can no longer get it."""
    arrived, under_way = len(state.ready), len(state.open) + len(state.scoring)
    enough = arrived >= needed(rules, pacing) or (state.late and arrived >= pacing.quorum)
    if under_way and not enough:
        return state, ()
    if arrived < pacing.quorum:
        return begin(rules, pacing, state, now)
    made = [state.ready[name] for name in sorted(state.ready)]
    commits = [assigning.commit(rules, state, one) for one in made]
    dropped = tuple(Cancel(task) for task in sorted([*state.open, *state.scoring]))
    if not any(commit.weight > 0 for commit in commits):
        return stop(state, "no update has any weight")
    if rules.privacy is not None:
        state = _released(rules.privacy, state, len(made))
    version = state.version + 1
    mixed = state._replace(
        version=version,
        committed=state.committed + sum(one.update.steps for one in made),
        attempt=0,
        open=Map(),
        scoring=Map(),
        ready=Map(),
        progress=decay.judge(decay.hear(state.progress, (one.score for one in made)), rules.training.period),
    )
    if rules.finishing:
        past = {one.learner: Past(one.weight, one.update.steps) for one in commits}
        mixed = mixed._replace(past=mixed.past.update(past))
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
    return state._replace(stopped=reason), (Stop(reason),)
