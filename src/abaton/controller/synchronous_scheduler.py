"""Synchronous and semi-synchronous schedulers: rounds of training, each closed by one aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from immutables import Map

from abaton import training
from abaton.controller import scheduler
from abaton.controller.differential_privacy import BUDGET_SPENT, DifferentialPrivacy
from abaton.controller.events import CancelTask, Instruction, SetTimer, StartTraining
from abaton.controller.scheduler import Scheduler, aggregate_and_publish, make_commit, stop_run
from abaton.controller.state import Assignment, Contribution, ControllerState, Transition
from abaton.training import TrainSettings, check_integer_setting, check_positive, refuse

if TYPE_CHECKING:
    from abaton.controller.strategies import Strategy

_MAX_LEARNERS = 1_000_000  # bound of settings while the number of learners is unknown


@dataclass(frozen=True, slots=True)
class SynchronousScheduler(Scheduler):
    """Scheduler with rounds: a sample of the learners trains, and all updates are aggregated once.

    Attributes:
        participants: Number of updates of a round; all learners if None.
        over_selection: Number of learners sampled in addition; the slowest are cancelled.
        quorum: Minimum number of updates once the deadline has passed or the other tasks have failed.
        deadline: Seconds after which a round is closed with the updates received.
        max_attempts: Number of times in a row that a round may fail before the run stops.
    """

    participants: int | None = None
    over_selection: int = 0
    quorum: int = 1
    deadline: float | None = None
    max_attempts: int = 10

    accounted_adversaries = frozenset({"controller", "readers"})

    def on_start(self, strategy: Strategy, state: ControllerState, now: float) -> Transition:
        """Start a synchronous round from the latest version at a new sample of learners without an update."""
        attempt = state.attempt + 1
        if len(state.present) < self.quorum:
            return stop_run(state, "too few learners are left")
        if attempt > self.max_attempts:
            return stop_run(state, f"round {state.version + 1} failed {self.max_attempts} times")
        names = sorted(name for name in state.present if name not in state.ready)
        if strategy.privacy is not None:
            names, is_within_budget = self._within_budget(
                strategy.privacy, state, names, self.updates_per_round(strategy)
            )
            if not is_within_budget:
                return stop_run(state, BUDGET_SPENT)
        sample_size = min(
            self.updates_per_round(strategy) + self.over_selection - len(state.ready), len(names)
        )
        sample = sorted(
            training.seeded_sample(
                names,
                sample_size,
                strategy.seed,
                "round",  # frozen: part of the bytes
                state.version,
                attempt,
            )
        )
        tasks = {f"{state.version}.{attempt}.{name}": name for name in sample}  # frozen: part of the bytes
        instructions: list[Instruction] = [
            StartTraining(task, name, state.version, scheduler.train_settings_for(strategy, state, name))
            for task, name in tasks.items()
        ]
        if self.deadline is not None:
            instructions.append(SetTimer(deadline_timer(state.version, attempt), now + self.deadline))
        is_final = scheduler.in_final_rounds(strategy, state)
        assignments = {
            task: Assignment(name, state.version, state.committed_steps, is_final)
            for task, name in tasks.items()
        }
        if strategy.privacy is not None:
            state = _charge_budget(strategy.privacy, state, sample)
        state = state._replace(attempt=attempt, is_past_deadline=False, open_tasks=Map(assignments))
        return state, tuple(instructions)

    def on_updates_ready(
        self, strategy: Strategy, state: ControllerState, contributions: Sequence[Contribution], now: float
    ) -> Transition:
        """Store updates for the synchronous round, and close it if they were the last."""
        ready = state.ready.update(
            {contribution.update.learner: contribution for contribution in contributions}
        )
        return self._close(strategy, state._replace(ready=ready), now)

    def on_learner_left(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Continue the synchronous round without the learner."""
        state, instructions = self._close(strategy, state, now)
        if state.stop_reason is None and not state.present and not state.awaiting_evaluation:
            state, stopped = stop_run(state, "too few learners are left")
            instructions += stopped
        return state, instructions

    def on_task_failed(
        self, strategy: Strategy, state: ControllerState, learner: str, now: float
    ) -> Transition:
        """Continue the synchronous round without the update, or restart it below the quorum."""
        return self._close(strategy, state, now)

    def on_timer(self, strategy: Strategy, state: ControllerState, name: str, now: float) -> Transition:
        """Close the synchronous round at its deadline with the updates received."""
        if name != deadline_timer(state.version, state.attempt):
            return state, ()
        return self._close(strategy, state._replace(is_past_deadline=True), now)

    def updates_per_round(self, strategy: Strategy) -> int:
        """Return the number of updates of a synchronous round."""
        return strategy.learners if self.participants is None else self.participants

    def min_updates(self, strategy: Strategy) -> int:
        """Return the quorum of a synchronous round."""
        return self.quorum

    def check(self, strategy: Strategy) -> None:
        """Raise a `SettingsError` for synchronous rounds that cannot be closed."""
        check_integer_setting("scheduler.max_attempts", self.max_attempts, minimum=1)
        learners = strategy.learners or _MAX_LEARNERS
        needed = learners if self.participants is None else self.participants
        if not 1 <= needed <= learners:
            refuse(
                "scheduler.participants", needed, f"use a number from 1 to {learners}, the number of learners"
            )
        if not 0 <= self.over_selection <= learners - needed:
            refuse(
                "scheduler.over_selection", self.over_selection, f"use a number from 0 to {learners - needed}"
            )
        if not 1 <= self.quorum <= needed:
            refuse(
                "scheduler.quorum", self.quorum, f"use a number from 1 to {needed}, the updates of a round"
            )
        if self.deadline is not None:
            check_positive("scheduler.deadline", self.deadline)

    def _close(self, strategy: Strategy, state: ControllerState, now: float) -> Transition:
        """Aggregate the synchronous round if complete, or restart it if it can no longer reach the quorum."""
        received, open_count = len(state.ready), len(state.open_tasks) + len(state.awaiting_evaluation)
        is_complete = received >= self.updates_per_round(strategy) or (
            state.is_past_deadline and received >= self.quorum
        )
        if open_count and not is_complete:
            return state, ()
        if received < self.quorum:
            return self.on_start(strategy, state, now)
        contributions = [state.ready[name] for name in sorted(state.ready)]
        commits = [make_commit(strategy, state, item) for item in contributions]
        cancelled = tuple(
            CancelTask(task) for task in sorted([*state.open_tasks, *state.awaiting_evaluation])
        )
        if not any(item.weight > 0 for item in commits):
            return stop_run(state, "no update has any weight")
        if strategy.privacy is not None:
            state = _account_round(strategy.privacy, state, len(contributions))
        no_contributions: Map[str, Contribution] = Map()
        state, instructions = aggregate_and_publish(
            strategy,
            state,
            contributions,
            commits,
            attempt=0,
            open_tasks=Map(),
            awaiting_evaluation=no_contributions,
            ready=no_contributions,
        )
        if state.stop_reason is not None:
            return state, (*cancelled, *instructions)
        state, requests = self.on_start(strategy, state, now)
        return state, (*cancelled, *instructions, *requests)

    def _within_budget(
        self, privacy: DifferentialPrivacy, state: ControllerState, names: list[str], needed: int
    ) -> tuple[list[str], bool]:
        """Return the learners with privacy budget left, and whether the synchronous round may start.

        A new round needs the full sample, a retry only the quorum.
        """
        if privacy.adversary == "readers":
            sample_size, population = _sampled_with(
                state, min(needed + self.over_selection - len(state.ready), len(names))
            )
            return names, privacy.allows(state, privacy.accounted_round(sample_size, population, self.quorum))
        unspent = [name for name in names if state.releases.get(name, 0) < privacy.allowance]
        required = min(needed, len(names)) if state.attempt == 0 else self.quorum - len(state.ready)
        return unspent, len(unspent) >= required


@dataclass(frozen=True, slots=True, kw_only=True)
class SemiSynchronousScheduler(SynchronousScheduler):
    """Scheduler with rounds of equal duration: each learner trains as many batches as fit into a time budget.

    A learner trains at least one batch; `training.epochs` is ignored.

    Attributes:
        time_budget_seconds: Seconds that each learner trains in a round.
    """

    time_budget_seconds: float

    def adjust_settings(self, settings: TrainSettings, state: ControllerState, learner: str) -> TrainSettings:
        """Return the settings with the time budget of a semi-synchronous round."""
        return replace(settings, time_budget_seconds=self.time_budget_seconds)

    def check(self, strategy: Strategy) -> None:
        """Raise a `SettingsError` for synchronous rounds without an end or a time budget that is not positive."""
        SynchronousScheduler.check(self, strategy)
        check_positive("scheduler.time_budget_seconds", self.time_budget_seconds)


def deadline_timer(version: int, attempt: int) -> str:
    """Return the timer name of a synchronous round's deadline."""
    return f"deadline.{version}.{attempt}"


def _charge_budget(
    privacy: DifferentialPrivacy, state: ControllerState, sample: list[str]
) -> ControllerState:
    """Charge the budget when a synchronous round starts: a failed update may still have been observed."""
    if privacy.adversary == "readers":
        return state._replace(sampled=_sampled_with(state, len(sample)))
    releases = state.releases.update({name: state.releases.get(name, 0) + 1 for name in sample})
    return state._replace(releases=releases)


def _sampled_with(state: ControllerState, requested: int) -> tuple[int, int]:
    """Return the synchronous round's sample size after further requests, and its smallest population."""
    sample_size, population = state.sampled
    return sample_size + requested, min(population, len(state.present)) if sample_size else len(state.present)


def _account_round(privacy: DifferentialPrivacy, state: ControllerState, updates: int) -> ControllerState:
    """Account the mean of a synchronous round as released to readers."""
    if privacy.adversary != "readers":
        return state
    accounted = privacy.accounted_round(*state.sampled, updates)
    return state._replace(
        sampled=(0, 0), rounds=state.rounds.set(accounted, state.rounds.get(accounted, 0) + 1)
    )
