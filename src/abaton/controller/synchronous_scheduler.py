"""Synchronous pacing: rounds of training, each closed by one mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from immutables import Map

from abaton import training
from abaton.controller import scheduler
from abaton.controller.differential_privacy import SPENT, Privacy
from abaton.controller.events import Cancel, Instruction, Train, Wake
from abaton.controller.scheduler import Pacing, commit, mix, stop
from abaton.controller.state import Answer, Assignment, Contribution, State
from abaton.training import TrainSettings, above_zero, refuse, whole

if TYPE_CHECKING:
    from abaton.controller.strategies import Rules

_MANY = 1_000_000  # how many learners there will be is not said


@dataclass(frozen=True, slots=True)
class Synchronous(Pacing):
    """Rounds: some learners train, then one mix is made of all their updates.

    Attributes:
        participants: how many updates make a round; all learners if not given.
        extra: how many more learners are asked than are needed; the slowest are not waited for.
        quorum: the least number of updates that make a mix once the deadline has passed or the others have failed.
        deadline: seconds after which a round is closed with what is there.
        attempts: how often in a row a round may fail before the run stops.
    """

    participants: int | None = None
    extra: int = 0
    quorum: int = 1
    deadline: float | None = None
    attempts: int = 10

    budgets = frozenset({"controller", "readers"})

    def begin(self, rules: Rules, state: State, now: float) -> Answer:
        """Ask learners to train from the newest version: a fresh sample of those whose update is not yet there."""
        attempt = state.attempt + 1
        if len(state.present) < self.quorum:
            return stop(state, "too few learners are left")
        if attempt > self.attempts:
            return stop(state, f"round {state.version + 1} failed {self.attempts} times")
        names = sorted(name for name in state.present if name not in state.ready)
        if rules.privacy is not None:
            names, enough = self._within_budget(rules.privacy, state, names, self.needed(rules))
            if not enough:
                return stop(state, SPENT)
        wanted = min(self.needed(rules) + self.extra - len(state.ready), len(names))
        chosen = sorted(training.sample(names, wanted, rules.seed, "round", state.version, attempt))
        tasks = {f"{state.version}.{attempt}.{name}": name for name in chosen}
        asked: list[Instruction] = [
            Train(task, name, state.version, scheduler.settings(rules, state, name))
            for task, name in tasks.items()
        ]
        if self.deadline is not None:
            asked.append(Wake(deadline(state.version, attempt), now + self.deadline))
        complete = scheduler.finishing(rules, state)
        started = {
            task: Assignment(name, state.version, state.committed, complete) for task, name in tasks.items()
        }
        if rules.privacy is not None:
            state = _charge(rules.privacy, state, chosen)
        return state._replace(attempt=attempt, late=False, open=Map(started)), tuple(asked)

    def ready(self, rules: Rules, state: State, made: Sequence[Contribution], now: float) -> Answer:
        """Keep updates for the round's mix, and make it if these were the last."""
        ready = state.ready.update({one.update.learner: one for one in made})
        return self._close(rules, state._replace(ready=ready), now)

    def left(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """Go on without a learner that has gone."""
        state, said = self._close(rules, state, now)
        if state.stopped is None and not state.present and not state.scoring:
            state, over = stop(state, "too few learners are left")
            said += over
        return state, said

    def failed(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """Go on without the update, or try the round again if it lacks too many."""
        return self._close(rules, state, now)

    def rang(self, rules: Rules, state: State, name: str, now: float) -> Answer:
        """At the deadline, make the mix of what is there."""
        if name != deadline(state.version, state.attempt):
            return state, ()
        return self._close(rules, state._replace(late=True), now)

    def needed(self, rules: Rules) -> int:
        """How many updates make a round."""
        return rules.learners if self.participants is None else self.participants

    def fewest(self, rules: Rules) -> int:
        """The fewest updates that a mix is made of: the quorum."""
        return self.quorum

    def check(self, rules: Rules) -> None:
        """Refuse rounds that could never be closed."""
        whole("pacing.attempts", self.attempts, least=1)
        learners = rules.learners or _MANY
        needed = learners if self.participants is None else self.participants
        if not 1 <= needed <= learners:
            refuse(
                "pacing.participants", needed, f"use a number from 1 to {learners}, the number of learners"
            )
        if not 0 <= self.extra <= learners - needed:
            refuse("pacing.extra", self.extra, f"use a number from 0 to {learners - needed}")
        if not 1 <= self.quorum <= needed:
            refuse("pacing.quorum", self.quorum, f"use a number from 1 to {needed}, the updates of a round")
        if self.deadline is not None:
            above_zero("pacing.deadline", self.deadline)

    def _close(self, rules: Rules, state: State, now: float) -> Answer:
        """End the round when it has what it needs: mix it; or try again when it can no longer get it."""
        arrived, under_way = len(state.ready), len(state.open) + len(state.scoring)
        enough = arrived >= self.needed(rules) or (state.late and arrived >= self.quorum)
        if under_way and not enough:
            return state, ()
        if arrived < self.quorum:
            return self.begin(rules, state, now)
        made = [state.ready[name] for name in sorted(state.ready)]
        commits = [commit(rules, state, one) for one in made]
        dropped = tuple(Cancel(task) for task in sorted([*state.open, *state.scoring]))
        if not any(one.weight > 0 for one in commits):
            return stop(state, "no update has any weight")
        if rules.privacy is not None:
            state = _released(rules.privacy, state, len(made))
        nothing: Map[str, Contribution] = Map()
        state, said = mix(rules, state, made, commits, attempt=0, open=Map(), scoring=nothing, ready=nothing)
        if state.stopped is not None:
            return state, (*dropped, *said)
        state, asked = self.begin(rules, state, now)
        return state, (*dropped, *said, *asked)

    def _within_budget(
        self, privacy: Privacy, state: State, names: list[str], wanted: int
    ) -> tuple[list[str], bool]:
        """Who may still be asked, and whether the round may begin: a new one needs all it wants, a retry the least."""
        if privacy.against == "readers":
            drawn, among = _drawn(state, min(wanted + self.extra - len(state.ready), len(names)))
            return names, privacy.allows(state, privacy.round(drawn, among, self.quorum))
        unspent = [name for name in names if state.releases.get(name, 0) < privacy.allowance]
        least = min(wanted, len(names)) if state.attempt == 0 else self.quorum - len(state.ready)
        return unspent, len(unspent) >= least


@dataclass(frozen=True, slots=True, kw_only=True)
class SemiSynchronous(Synchronous):
    """Rounds of the same time for all: each learner does as many batches as it can in a time budget, at least one.

    Everything else is as in a synchronous round. `training.epochs` does not count.

    Attributes:
        budget: seconds that each learner trains in a round.
    """

    budget: float

    def limit(self, settings: TrainSettings, state: State, learner: str) -> TrainSettings:
        """As many batches as fit into the budget."""
        return replace(settings, budget=self.budget)

    def check(self, rules: Rules) -> None:
        """Refuse what a synchronous pacing refuses, and a budget that is none."""
        Synchronous.check(self, rules)
        above_zero("pacing.budget", self.budget)


def deadline(version: int, attempt: int) -> str:
    """The name of a round's deadline."""
    return f"deadline.{version}.{attempt}"


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
