"""Asynchronous and buffered schedulers: no rounds, and each commit or each full buffer publishes a version.

FedBuff leaves other weights open: here the weighted sum of a buffer is divided by the number of updates, or by the sum
of weights if that is larger. A buffer is aggregated early when no learner is training, so that every run ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from immutables import Map

from abaton.controller.events import Instruction
from abaton.controller.scheduler import (
    Scheduler,
    aggregate_and_publish,
    drain,
    request_all,
    request_training,
    retry_task,
    stop_run,
)
from abaton.controller.state import Contribution, ControllerState, Transition
from abaton.training import (
    STALENESS_CYCLES,
    TrainSettings,
    UpdateThresholds,
    check_integer_setting,
    refuse,
    staleness_limit,
)

if TYPE_CHECKING:
    from abaton.controller.strategies import Strategy


class RoundlessScheduler(Scheduler):
    """Scheduler without rounds: every present learner trains, independently of the others."""

    accounted_adversaries = frozenset({"controller"})

    def on_start(self, strategy: Strategy, state: ControllerState, now: float) -> Transition:
        """Start training at every learner at once, without rounds."""
        return request_all(strategy, state, sorted(state.present))

    def on_learner_joined(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Start training at the new learner at once, as asynchronous and buffered schedulers do."""
        return request_training(strategy, state, learner)


@dataclass(frozen=True, slots=True)
class AsynchronousScheduler(RoundlessScheduler):
    """Scheduler that publishes a version at every commit; the learner continues from it at once.

    Attributes:
        adaptive: Update thresholds by group, for learners that decide when to send; "" is any group.
        max_attempts: Number of times in a row that a learner's tasks may fail before no more are started.
    """

    adaptive: Mapping[str, UpdateThresholds] | None = None
    max_attempts: int = 10

    aggregation = "latest"

    def on_updates_ready(
        self, strategy: Strategy, state: ControllerState, contributions: Sequence[Contribution], now: float
    ) -> Transition:
        """Commit each update asynchronously, publish a version, and restart its learner."""
        instructions: tuple[Instruction, ...] = ()
        for contribution in contributions:
            state, committed = self._commit(strategy, state, contribution)
            instructions += committed
            if state.stop_reason is not None:
                return state, instructions
        state, stopped = drain(strategy, state)
        return state, instructions + stopped

    def on_task_failed(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Retry the asynchronous task, up to `max_attempts` times in a row."""
        return retry_task(strategy, state, learner, self.max_attempts)

    def adjust_settings(self, settings: TrainSettings, state: ControllerState, learner: str) -> TrainSettings:
        """Return settings with the thresholds and the staleness limit of an adaptive asynchronous learner."""
        if self.adaptive is None:
            return settings
        if settings.use_validation_data:  # thresholds need a validation set
            return replace(settings, steps=_last_steps(state, learner))
        group = state.present[learner].group
        return replace(
            settings,
            update_thresholds=self.adaptive.get(group, self.adaptive.get("")),
            committed_steps=state.committed_steps,
            staleness_limit=staleness_limit(state.cycles.get(learner, ())),
        )

    def rounds_done(self, strategy: Strategy, state: ControllerState) -> int:
        """Return the rounds of an asynchronous run; as many commits as there are learners count as one."""
        return state.version // strategy.learners

    def check(self, strategy: Strategy) -> None:
        """Raise a `SettingsError` for asynchronous update thresholds without groups."""
        check_integer_setting("scheduler.max_attempts", self.max_attempts, minimum=1)
        if self.adaptive is not None and not self.adaptive:
            refuse(
                "scheduler.adaptive", "empty", "use UpdateThresholds for each group, or for '' as any group"
            )

    def _commit(self, strategy: Strategy, state: ControllerState, contribution: Contribution) -> Transition:
        learner, failures, cycles, final_updates = (
            contribution.update.learner,
            state.failures,
            state.cycles,
            state.final_updates,
        )
        if learner in failures:
            failures = failures.delete(learner)
        learner_cycles = cycles.get(learner, ())
        if len(learner_cycles) < STALENESS_CYCLES:
            cycles = cycles.set(learner, (*learner_cycles, contribution.staleness))
        if contribution.used_validation_data:
            final_updates = final_updates.set(learner, final_updates.get(learner, 0) + 1)
        state, instructions = aggregate_and_publish(
            strategy,
            state,
            (contribution,),
            closes_round=False,
            failures=failures,
            cycles=cycles,
            final_updates=final_updates,
        )
        if state.stop_reason is not None:
            return state, instructions
        state, requests = request_training(strategy, state, learner)
        return state, instructions + requests


@dataclass(frozen=True, slots=True)
class BufferedScheduler(RoundlessScheduler):
    """Scheduler that publishes a version for every full buffer of updates (FedBuff; Nguyen et al., 2022).

    A full buffer changes the previous version by the mean of its updates; learners continue at once. Weights below one,
    such as those of `StalenessWeighting`, shorten an update as in the paper. Updates that remain when no learner trains
    form the last aggregation.

    Attributes:
        buffer_size: Number of updates of a version; half the number of learners if None.
        max_attempts: Number of times in a row that a learner's tasks may fail before no more are started.
    """

    buffer_size: int | None = None
    max_attempts: int = 10

    aggregation = "discounted"

    def on_updates_ready(
        self, strategy: Strategy, state: ControllerState, contributions: Sequence[Contribution], now: float
    ) -> Transition:
        """Buffer each update, publish a version if the buffer is full, and restart the learner."""
        instructions: tuple[Instruction, ...] = ()
        for contribution in contributions:
            state = _add_to_buffer(state, contribution)
            if len(state.ready) >= self.min_updates(strategy):
                state, published = _publish_buffer(strategy, state)
                instructions += published
            if state.stop_reason is not None:
                return state, instructions
            state, requests = request_training(strategy, state, contribution.update.learner)
            instructions += requests
        return _publish_remaining(strategy, drain(strategy, state), instructions)

    def on_learner_left(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Continue the asynchronous run without the learner; its updates stay in the buffer."""
        return _publish_remaining(strategy, drain(strategy, state))

    def on_task_failed(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Retry the task of a buffered, asynchronous run, up to `max_attempts` times in a row."""
        return _publish_remaining(strategy, retry_task(strategy, state, learner, self.max_attempts))

    def rounds_done(self, strategy: Strategy, state: ControllerState) -> int:
        """Return the rounds of a buffered run; as many updates as there are learners count as one."""
        return state.version * self.min_updates(strategy) // strategy.learners

    def min_updates(self, strategy: Strategy) -> int:
        """Return the number of updates in the asynchronous buffer of a version."""
        return -(-strategy.learners // 2) if self.buffer_size is None else self.buffer_size

    def check(self, strategy: Strategy) -> None:
        """Raise a `SettingsError` for an empty buffer of asynchronous updates."""
        check_integer_setting("scheduler.max_attempts", self.max_attempts, minimum=1)
        if self.buffer_size is not None:
            check_integer_setting("scheduler.buffer_size", self.buffer_size, minimum=1)


def _add_to_buffer(state: ControllerState, contribution: Contribution) -> ControllerState:
    """Add an update to the asynchronous scheduler's buffer and reset its learner's failures."""
    learner, failures, final_updates = contribution.update.learner, state.failures, state.final_updates
    if learner in failures:
        failures = failures.delete(learner)
    if contribution.used_validation_data:
        final_updates = final_updates.set(learner, final_updates.get(learner, 0) + 1)
    ready = state.ready.set(contribution.update.task, contribution)
    return state._replace(ready=ready, failures=failures, final_updates=final_updates)


def _publish_buffer(strategy: Strategy, state: ControllerState) -> Transition:
    """Publish a version from the asynchronous scheduler's buffer, in the order of arrival."""
    contributions = sorted(
        state.ready.values(),
        key=lambda contribution: (contribution.update.timestamp, contribution.update.task),
    )
    return aggregate_and_publish(strategy, state, contributions, closes_round=False, ready=Map())


def _publish_remaining(
    strategy: Strategy, drained: Transition, before: tuple[Instruction, ...] = ()
) -> Transition:
    """Aggregate the rest of the asynchronous buffer when the run stops, unless robust aggregation needs more."""
    state, instructions = drained
    reason = state.stop_reason
    is_too_small = (
        strategy.robust_aggregation is not None and len(state.ready) < strategy.robust_aggregation.min_updates
    )
    if reason is None or not state.ready or is_too_small:
        return state, before + instructions
    state, published = _publish_buffer(strategy, state._replace(stop_reason=None))
    if state.stop_reason is not None:
        return state, before + published
    state, stopped = stop_run(state, reason)
    return state, before + published + stopped


def _last_steps(state: ControllerState, learner: str) -> int:
    if learner in state.last_commits:
        return state.last_commits[learner].steps
    return max(1, sum(past.steps for past in state.last_commits.values()) // len(state.last_commits))
