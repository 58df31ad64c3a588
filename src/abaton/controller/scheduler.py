"""Scheduler protocol, and the actions that schedulers are composed of.

`state_machine.transition` does the bookkeeping that is the same for all schedulers (present learners, open tasks,
evaluations) and calls a hook of the scheduler for each event. A hook returns the next state and instructions; the
functions below build both: `request_training`, `aggregate_and_publish`, `retry_task`, `drain`, `stop_run`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from abaton.controller.differential_privacy import BUDGET_SPENT
from abaton.controller.events import Commit, PublishVersion, StartTraining, StopRun
from abaton.controller.learning_rate_plateau import add_round_losses, close_round
from abaton.controller.state import Assignment, Contribution, ControllerState, LastCommit, Transition
from abaton.controller.weighting import contribution_weight
from abaton.metrics import counts
from abaton.training import TrainSettings

if TYPE_CHECKING:
    from abaton.controller.strategies import Strategy
    from abaton.training import UpdateThresholds

AggregationKind: TypeAlias = Literal["mean", "discounted", "latest"]
"""How a version is computed.

`mean`: the previous version plus the weighted mean of the updates. `discounted`: the same, but a mean weight below one
shortens the step. `latest`: the weighted mean of the latest model of every learner, or what
`Strategy.contribution_rule` defines.
"""


class Scheduler(Protocol):
    """Rule that decides which learners train next and when a version is published.

    A user-defined scheduler inherits from this class and implements at least `on_start` and `on_updates_ready`. It has
    no state of its own: what it must remember is stored in the controller state, for example in
    `ControllerState.scheduler_state`, so that a run can be replayed.
    """

    aggregation: ClassVar[AggregationKind] = "mean"
    """How a version is computed."""

    accounted_adversaries: ClassVar[frozenset[str]] = frozenset()
    """Adversaries for which it accounts a privacy budget: `controller` if it starts tasks only by `request_training`,
    `readers` if it accounts sampled rounds."""

    @abstractmethod
    def on_start(self, strategy: Strategy, state: ControllerState, now: float) -> Transition:
        """Start training; enough learners have joined (scheduler protocol)."""

    @abstractmethod
    def on_updates_ready(
        self, strategy: Strategy, state: ControllerState, contributions: Sequence[Contribution], now: float
    ) -> Transition:
        """Handle updates whose evaluations are complete (scheduler protocol): aggregate them now or later."""

    def on_learner_joined(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Handle a learner that joined after training had started (scheduler protocol: do nothing)."""
        return state, ()

    def on_learner_left(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Handle a learner that left; its tasks are no longer open (scheduler protocol: drain the run)."""
        return drain(strategy, state)

    def on_task_failed(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Handle a failed training task, which is no longer open (scheduler protocol: retry it)."""
        return retry_task(strategy, state, learner)

    def on_timer(self, strategy: Strategy, state: ControllerState, name: str, now: float) -> Transition:
        """Handle a timer that was set with `SetTimer` (scheduler protocol: do nothing)."""
        return state, ()

    def adjust_settings(self, settings: TrainSettings, state: ControllerState, learner: str) -> TrainSettings:
        """Return the settings of a learner's next task (scheduler protocol), with another end where needed."""
        return settings

    def rounds_done(self, strategy: Strategy, state: ControllerState) -> int:
        """Return the number of completed rounds of any scheduler, for the learning rate schedule."""
        return state.version

    def min_updates(self, strategy: Strategy) -> int:
        """Return the minimum number of updates of an aggregation (scheduler protocol: one)."""
        return 1

    @property
    def adaptive(self) -> Mapping[str, UpdateThresholds] | None:
        """Update thresholds by group, if learners decide when to send (scheduler protocol: none)."""
        return None

    def check(self, strategy: Strategy) -> None:
        """Raise a `SettingsError` for a strategy that the scheduler cannot run (scheduler protocol)."""
        return None


def in_final_rounds(strategy: Strategy, state: ControllerState) -> bool:
    """Return whether the scheduler is in the final rounds: training on all data, no model is evaluated."""
    return strategy.final_rounds > 0 and state.version >= strategy.rounds


def request_training(strategy: Strategy, state: ControllerState, learner: str) -> Transition:
    """Scheduler action: start training, unless the learner has left, is done or has spent its privacy budget."""
    is_final = in_final_rounds(strategy, state)
    if learner not in state.present or (is_final and _is_done(strategy, state, learner)):
        return state, ()
    if strategy.privacy is not None:
        releases = state.releases.get(learner, 0)
        if releases >= strategy.privacy.allowance:
            return state, ()
        state = state._replace(releases=state.releases.set(learner, releases + 1))
    task = f"{state.requested}.{learner}"  # frozen: part of the bytes
    settings = train_settings_for(strategy, state, learner)
    assignment = Assignment(learner, state.version, state.committed_steps, is_final)
    state = state._replace(requested=state.requested + 1, open_tasks=state.open_tasks.set(task, assignment))
    return state, (StartTraining(task, learner, state.version, settings),)


def request_all(strategy: Strategy, state: ControllerState, learners: Sequence[str]) -> Transition:
    """Scheduler action: start training at several learners, in the given order."""
    instructions: list[Any] = []
    for learner in learners:
        state, requests = request_training(strategy, state, learner)
        instructions += requests
    return state, tuple(instructions)


def aggregate_and_publish(
    strategy: Strategy,
    state: ControllerState,
    contributions: Sequence[Contribution],
    commits: Sequence[Commit] | None = None,
    *,
    closes_round: bool = True,
    **changes: Any,
) -> Transition:
    """Scheduler action: commit updates and publish the next version; stop the run after the last version.

    Args:
        strategy: Strategy of the run.
        state: Controller state.
        contributions: Updates to aggregate.
        commits: Their commits, if already computed.
        closes_round: Whether the version closes a round. Without rounds, as many updates as there are learners count
            as a round, and the final rounds end when every learner has finished its tasks.
        changes: Further fields of the state to change.
    """
    published_commits = (
        [make_commit(strategy, state, item) for item in contributions] if commits is None else commits
    )
    version = state.version + 1
    progress = add_round_losses(state.progress, [item.counts for item in contributions])
    if closes_round or progress.models >= strategy.learners:
        progress = close_round(progress, strategy.training.schedule_period)
    steps = sum([item.update.steps for item in contributions])
    state = state._replace(
        version=version, committed_steps=state.committed_steps + steps, progress=progress, **changes
    )
    if strategy.final_rounds:
        last_commits = {
            item.learner: LastCommit(item.weight, item.update.steps) for item in published_commits
        }
        state = state._replace(last_commits=state.last_commits.update(last_commits))
    if version >= strategy.rounds and (
        not strategy.final_rounds or (closes_round and version >= strategy.rounds + strategy.final_rounds)
    ):
        state, stopped = stop_run(state, "all rounds are done")
        return state, (*published_commits, PublishVersion(version), *stopped)
    return state, (*published_commits, PublishVersion(version))


def retry_task(
    strategy: Strategy, state: ControllerState, learner: str, max_attempts: int = 10
) -> Transition:
    """Scheduler action: restart a learner whose task failed, up to `max_attempts` times in a row."""
    count = state.failures.get(learner, 0) + 1
    state = state._replace(failures=state.failures.set(learner, count))
    state, requests = request_training(strategy, state, learner) if count < max_attempts else (state, ())
    return (state, requests) if requests else drain(strategy, state)


def drain(strategy: Strategy, state: ControllerState) -> Transition:
    """Scheduler action: start no further task; stop the run when no task is open."""
    if state.open_tasks or state.awaiting_evaluation:
        return state, ()
    if strategy.privacy is not None:
        unfinished = [name for name in state.present if not _is_done(strategy, state, name)]
        if any(state.releases.get(name, 0) >= strategy.privacy.allowance for name in unfinished):
            return stop_run(state, BUDGET_SPENT)
    if in_final_rounds(strategy, state):
        return stop_run(state, "all rounds are done")
    reason = "too few learners are left" if not state.present else "every learner's tasks keep failing"
    return stop_run(state, reason)


def stop_run(state: ControllerState, reason: str) -> Transition:
    """Scheduler action: stop the run with a reason."""
    return state._replace(stop_reason=reason), (StopRun(reason),)


def train_settings_for(strategy: Strategy, state: ControllerState, learner: str) -> TrainSettings:
    """Return the training settings of a learner's next task, as the scheduler adjusts them."""
    training, scheduler = strategy.training, strategy.scheduler
    changes: dict[str, Any] = {}
    if training.learning_rate_schedule == "plateau":
        changes["learning_rate_decay"] = training.learning_rate_decay**state.progress.decays
    elif training.learning_rate_schedule != "constant":
        changes["elapsed_epochs"] = (
            training.elapsed_epochs + scheduler.rounds_done(strategy, state) * training.epochs
        )
    if in_final_rounds(strategy, state):
        changes["use_validation_data"] = True
    return scheduler.adjust_settings(replace(training, **changes) if changes else training, state, learner)


def make_commit(strategy: Strategy, state: ControllerState, contribution: Contribution) -> Commit:
    """Return a scheduler's commit of an update, with its weight and validation loss."""
    examples, losses = counts.summed_loss(contribution.counts or contribution.update.counts)
    return Commit(
        contribution.update,
        contribution.version,
        _weight(strategy, state, contribution),
        contribution.versions_missed,
        contribution.staleness,
        losses / examples if examples else None,
    )


def _is_done(strategy: Strategy, state: ControllerState, learner: str) -> bool:
    """Return whether the scheduler has no further task for a learner in the final rounds."""
    return in_final_rounds(strategy, state) and state.final_updates.get(learner, 0) >= strategy.final_rounds


def _weight(strategy: Strategy, state: ControllerState, contribution: Contribution) -> float:
    """Return the weight of a scheduled commit: by the weighting, or in the final rounds the last commit's weight.

    A learner that has no commit by then gets the mean weight of the others.
    """
    if not contribution.is_final:
        return contribution_weight(strategy.weighting, contribution)
    if contribution.update.learner in state.last_commits:
        return state.last_commits[contribution.update.learner].weight
    return sum(last_commit.weight for last_commit in state.last_commits.values()) / len(state.last_commits)
