"""Pacing without rounds: every learner goes at its own pace; each commit makes a version, or each full buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from immutables import Map

from abaton.controller.events import Instruction
from abaton.controller.scheduler import Pacing, again, ask, ask_all, mix, rest, stop
from abaton.controller.state import Answer, Contribution, State
from abaton.training import CYCLES, Thresholds, TrainSettings, refuse, staleness_limit, whole

if TYPE_CHECKING:
    from abaton.controller.strategies import Rules


class AtOnce(Pacing):
    """Without rounds whoever is there trains, and nobody waits for the others."""

    budgets = frozenset({"controller"})

    def begin(self, rules: Rules, state: State, now: float) -> Answer:
        """Let everybody train."""
        return ask_all(rules, state, sorted(state.present))

    def joined(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """Let a learner that is new start at once."""
        return ask(rules, state, learner)


@dataclass(frozen=True, slots=True)
class Asynchronous(AtOnce):
    """No rounds: every commit makes a new version, and its learner goes on from there at once.

    Attributes:
        adaptive: thresholds of each group, for learners that decide themselves when to send; "" is any group.
        attempts: how often in a row a learner's tasks may fail before it is left out.
    """

    adaptive: Mapping[str, Thresholds] | None = None
    attempts: int = 10

    mixes = "newest"

    def ready(self, rules: Rules, state: State, made: Sequence[Contribution], now: float) -> Answer:
        """Let each update enter the mix, publish it, and let its learner go on from there."""
        said: tuple[Instruction, ...] = ()
        for one in made:
            state, more = self._commit(rules, state, one)
            said += more
            if state.stopped is not None:
                return state, said
        state, over = rest(rules, state)
        return state, said + over

    def failed(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """Try again, or leave a learner out that keeps failing."""
        return again(rules, state, learner, self.attempts)

    def limit(self, settings: TrainSettings, state: State, learner: str) -> TrainSettings:
        """Adaptive learners decide themselves, by their group's thresholds and their staleness."""
        if self.adaptive is None:
            return settings
        if settings.complete:  # without a validation set nobody can tell when to send
            return replace(settings, steps=_last_steps(state, learner))
        group = state.present[learner].group
        return replace(
            settings,
            adaptive=self.adaptive.get(group, self.adaptive.get("")),
            committed=state.committed,
            staleness_limit=staleness_limit(state.cycles.get(learner, ())),
        )

    def rounds_done(self, rules: Rules, state: State) -> int:
        """As many commits as there are learners count as a round."""
        return state.version // rules.learners

    def check(self, rules: Rules) -> None:
        """Refuse thresholds for nobody."""
        whole("pacing.attempts", self.attempts, least=1)
        if self.adaptive is not None and not self.adaptive:
            refuse("pacing.adaptive", "empty", "use Thresholds for each group, or for '' as any group")

    def _commit(self, rules: Rules, state: State, made: Contribution) -> Answer:
        learner, failures, cycles, finished = (
            made.update.learner,
            state.failures,
            state.cycles,
            state.finished,
        )
        if learner in failures:
            failures = failures.delete(learner)
        past = cycles.get(learner, ())
        if len(past) < CYCLES:
            cycles = cycles.set(learner, (*past, made.staleness))
        if made.complete:
            finished = finished.set(learner, finished.get(learner, 0) + 1)
        state, said = mix(
            rules, state, (made,), closes=False, failures=failures, cycles=cycles, finished=finished
        )
        if state.stopped is not None:
            return state, said
        state, asked = ask(rules, state, learner)
        return state, said + asked


@dataclass(frozen=True, slots=True)
class Buffered(AtOnce):
    """No rounds, and fewer versions: every so many updates make one, and learners go on at once (FedBuff).

    Nguyen et al., 2022. An update waits in a buffer until it is full; then the version before, plus the mean of the
    buffer, is the next one. Weights below one, such as those of `ByStaleness`, shorten an update as in the paper.
    What is left in the buffer when nobody trains any more is the last mix.

    Attributes:
        buffer: how many updates make a version; half as many as there are learners if not given.
        attempts: how often in a row a learner's tasks may fail before it is left out.
    """

    buffer: int | None = None
    attempts: int = 10

    mixes = "discounted"

    def ready(self, rules: Rules, state: State, made: Sequence[Contribution], now: float) -> Answer:
        """Put each update into the buffer, mix the buffer if it is full, and let the learner go on from there."""
        said: tuple[Instruction, ...] = ()
        for one in made:
            state = _taken(state, one)
            if len(state.ready) >= self.fewest(rules):
                state, mixed = _emptied(rules, state)
                said += mixed
            if state.stopped is not None:
                return state, said
            state, asked = ask(rules, state, one.update.learner)
            said += asked
        return _ended(rules, rest(rules, state), said)

    def left(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """Go on without a learner that has gone; what it sent stays in the buffer."""
        return _ended(rules, rest(rules, state))

    def failed(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """Try again, or leave a learner out that keeps failing."""
        return _ended(rules, again(rules, state, learner, self.attempts))

    def rounds_done(self, rules: Rules, state: State) -> int:
        """As many updates as there are learners count as a round."""
        return state.version * self.fewest(rules) // rules.learners

    def fewest(self, rules: Rules) -> int:
        """How many updates make a version."""
        return -(-rules.learners // 2) if self.buffer is None else self.buffer

    def check(self, rules: Rules) -> None:
        """Refuse a buffer that holds nothing."""
        whole("pacing.attempts", self.attempts, least=1)
        if self.buffer is not None:
            whole("pacing.buffer", self.buffer, least=1)


def _taken(state: State, made: Contribution) -> State:
    """An update in the buffer, and what is remembered of its learner."""
    learner, failures, finished = made.update.learner, state.failures, state.finished
    if learner in failures:
        failures = failures.delete(learner)
    if made.complete:
        finished = finished.set(learner, finished.get(learner, 0) + 1)
    ready = state.ready.set(made.update.task, made)
    return state._replace(ready=ready, failures=failures, finished=finished)


def _emptied(rules: Rules, state: State) -> Answer:
    """A version made of the buffer, in the order in which its updates arrived."""
    made = sorted(state.ready.values(), key=lambda one: (one.update.at, one.update.task))
    return mix(rules, state, made, closes=False, ready=Map())


def _ended(rules: Rules, answer: Answer, before: tuple[Instruction, ...] = ()) -> Answer:
    """A run that comes to its end mixes what is left in the buffer, unless a robust mix could not judge so few."""
    state, said = answer
    reason = state.stopped
    few = rules.robust is not None and len(state.ready) < rules.robust.least
    if reason is None or not state.ready or few:
        return state, before + said
    state, mixed = _emptied(rules, state._replace(stopped=None))
    if state.stopped is not None:
        return state, before + mixed
    state, over = stop(state, reason)
    return state, before + mixed + over


def _last_steps(state: State, learner: str) -> int:
    if learner in state.past:
        return state.past[learner].steps
    return max(1, sum(past.steps for past in state.past.values()) // len(state.past))
