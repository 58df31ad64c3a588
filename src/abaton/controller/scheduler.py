"""Pacing: who trains next, and when a mix is made; what every pacing is, and the moves that pacings are made of.

`step` keeps the books that are the same for all (who is there, which tasks are open, what evaluators said) and asks the
pacing at each turn of events. A pacing answers with the state after it and with instructions, most easily by the moves
below: `ask` a learner for an update, `mix` what is ready, `again` after a failure, `rest`, `stop`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from abaton.controller.differential_privacy import SPENT
from abaton.controller.events import Commit, Publish, Stop, Train
from abaton.controller.state import Answer, Assignment, Contribution, Past, State
from abaton.controller.weighting import weigh
from abaton.metrics import counts
from abaton.training import TrainSettings

if TYPE_CHECKING:
    from abaton.controller.strategies import Rules
    from abaton.training import Thresholds

Mixes: TypeAlias = Literal["mean", "discounted", "newest"]
"""What a version is made of.

`mean`: the version before, plus the weighted mean of the updates of one mix. `discounted`: the same, and weights that
add up to less than one for each update shorten the step. `newest`: the newest model of every learner, or what
`Rules.mixing` says.
"""


class Pacing(Protocol):
    """Who trains next, and when a mix is made.

    A pacing of your own inherits from this and says at least what happens when training begins and when updates are
    ready; what is told here for the other turns of events then holds. It is a value without a memory: what it must
    remember lies in the state, for example in `State.notes`, or the run could not be replayed.
    """

    mixes: ClassVar[Mixes] = "mean"
    """What a version is made of."""

    budgets: ClassVar[frozenset[str]] = frozenset()
    """Against whom it keeps a privacy budget: `controller` if it gives out tasks by `ask` alone, `readers`."""

    @abstractmethod
    def begin(self, rules: Rules, state: State, now: float) -> Answer:
        """Enough learners are there: begin."""

    @abstractmethod
    def ready(self, rules: Rules, state: State, made: Sequence[Contribution], now: float) -> Answer:
        """Updates have arrived and wait for no evaluator: let them enter a mix, now or later."""

    def joined(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """A learner came after training had begun."""
        return state, ()

    def left(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """A learner has gone; its tasks are no longer open."""
        return rest(rules, state)

    def failed(self, rules: Rules, state: State, learner: str, now: float) -> Answer:
        """A learner's training failed; its task is no longer open."""
        return again(rules, state, learner)

    def rang(self, rules: Rules, state: State, name: str, now: float) -> Answer:
        """A time has come at which it asked to be woken."""
        return state, ()

    def limit(self, settings: TrainSettings, state: State, learner: str) -> TrainSettings:
        """How a learner's next task ends, if not after so many epochs."""
        return settings

    def rounds_done(self, rules: Rules, state: State) -> int:
        """How many rounds lie behind, for a learning rate with a schedule."""
        return state.version

    def fewest(self, rules: Rules) -> int:
        """The fewest updates that a mix is made of."""
        return 1

    @property
    def adaptive(self) -> Mapping[str, Thresholds] | None:
        """The thresholds of each group, if learners decide themselves when to send."""
        return None

    def check(self, rules: Rules) -> None:
        """Refuse rules that it cannot keep."""
        return None


def finishing(rules: Rules, state: State) -> bool:
    """Whether the post-validation phase has begun: learners train on all their data, and nobody is scored."""
    return rules.finishing > 0 and state.version >= rules.rounds


def ask(rules: Rules, state: State, learner: str) -> Answer:
    """Let a learner train from the newest version, unless it is gone, has done its part, or has spent its budget."""
    complete = finishing(rules, state)
    if learner not in state.present or (complete and _done(rules, state, learner)):
        return state, ()
    if rules.privacy is not None:
        asked_for = state.releases.get(learner, 0)
        if asked_for >= rules.privacy.allowance:
            return state, ()
        state = state._replace(releases=state.releases.set(learner, asked_for + 1))
    task = f"{state.asked}.{learner}"
    told = settings(rules, state, learner)
    started = Assignment(learner, state.version, state.committed, complete)
    asked = state._replace(asked=state.asked + 1, open=state.open.set(task, started))
    return asked, (Train(task, learner, state.version, told),)


def ask_all(rules: Rules, state: State, learners: Sequence[str]) -> Answer:
    """Let several learners train, in the order given."""
    said: list[Any] = []
    for learner in learners:
        state, asked = ask(rules, state, learner)
        said += asked
    return state, tuple(said)


def mix(
    rules: Rules,
    state: State,
    made: Sequence[Contribution],
    commits: Sequence[Commit] | None = None,
    *,
    closes: bool = True,
    **also: Any,
) -> Answer:
    """Let updates enter the mix and make it the next version; after the last version the run is over.

    Args:
        rules: What the controller goes by.
        state: What it knows.
        made: The updates.
        commits: What they count, if it is known already.
        closes: Whether the mix closes a round. Without rounds, as many updates as there are learners count as one, and
            the last phase ends when every learner has done its tasks.
        also: Other fields of the state to change at the same time.
    """
    entering = [commit(rules, state, one) for one in made] if commits is None else commits
    version = state.version + 1
    progress = counts.hear(state.progress, [one.score for one in made])
    if closes or progress.models >= rules.learners:
        progress = counts.judge(progress, rules.training.period)
    steps = sum([one.update.steps for one in made])
    state = state._replace(version=version, committed=state.committed + steps, progress=progress, **also)
    if rules.finishing:
        last = {one.learner: Past(one.weight, one.update.steps) for one in entering}
        state = state._replace(past=state.past.update(last))
    if version >= rules.rounds and (
        not rules.finishing or (closes and version >= rules.rounds + rules.finishing)
    ):
        state, over = stop(state, "all rounds are done")
        return state, (*entering, Publish(version), *over)
    return state, (*entering, Publish(version))


def again(rules: Rules, state: State, learner: str, attempts: int = 10) -> Answer:
    """Let a learner whose task failed try again, or leave out one that keeps failing."""
    count = state.failures.get(learner, 0) + 1
    state = state._replace(failures=state.failures.set(learner, count))
    state, asked = ask(rules, state, learner) if count < attempts else (state, ())
    return (state, asked) if asked else rest(rules, state)


def rest(rules: Rules, state: State) -> Answer:
    """Ask for nothing more; the run is over when nothing is under way."""
    if state.open or state.scoring:
        return state, ()
    if rules.privacy is not None:
        going_on = [name for name in state.present if not _done(rules, state, name)]
        if any(state.releases.get(name, 0) >= rules.privacy.allowance for name in going_on):
            return stop(state, SPENT)
    if finishing(rules, state):
        return stop(state, "all rounds are done")
    gone = "too few learners are left" if not state.present else "every learner's tasks keep failing"
    return stop(state, gone)


def stop(state: State, reason: str) -> Answer:
    """End the run."""
    return state._replace(stopped=reason), (Stop(reason),)


def settings(rules: Rules, state: State, learner: str) -> TrainSettings:
    """The settings of a learner's next task."""
    training, pacing = rules.training, rules.pacing
    told: dict[str, Any] = {}
    if training.schedule == "driven":
        told["decay"] = training.decay**state.progress.decays
    elif training.schedule != "constant":
        told["elapsed"] = training.elapsed + pacing.rounds_done(rules, state) * training.epochs
    if finishing(rules, state):
        told["complete"] = True
    return pacing.limit(replace(training, **told) if told else training, state, learner)


def commit(rules: Rules, state: State, made: Contribution) -> Commit:
    """Let an update enter the mix, and say all that is known of it."""
    examples, losses = counts.losses(made.score or made.update.score)
    return Commit(
        made.update,
        made.version,
        _weight(rules, state, made),
        made.versions_missed,
        made.staleness,
        losses / examples if examples else None,
    )


def _done(rules: Rules, state: State, learner: str) -> bool:
    """Whether a learner has done all its tasks of the post-validation phase."""
    return finishing(rules, state) and state.finished.get(learner, 0) >= rules.finishing


def _weight(rules: Rules, state: State, made: Contribution) -> float:
    """How much an update counts: by the weighting, or in the post-validation phase as much as its learner's last one.

    A learner that is new by then counts as much as the others on average.
    """
    if not made.frozen:
        return weigh(rules.weighting, made)
    if made.update.learner in state.past:
        return state.past[made.update.learner].weight
    return sum(past.weight for past in state.past.values()) / len(state.past)
