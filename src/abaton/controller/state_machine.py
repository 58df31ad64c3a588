"""State machine of the controller: a pure function from an event to the next state and instructions.

Its invariants are numbered in docs/controller.md, each with the test that checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from abaton.controller import evaluator_selection, scheduler
from abaton.controller.events import (
    EvaluationReceived,
    Event,
    Instruction,
    LearnerJoined,
    LearnerLeft,
    RemoveLearner,
    RunNote,
    TaskFailed,
    TimerFired,
    UpdateReceived,
)
from abaton.controller.robust_aggregation import LatestContribution
from abaton.controller.state import Contribution, ControllerState, LearnerInfo, Transition
from abaton.controller.strategies import Strategy
from abaton.metrics import counts as validation_counts
from abaton.metrics.counts import Counts

_MAX_EXAMPLES_RATIO = 2  # one learner's examples count at most this many times the examples of all others


def transition(strategy: Strategy, state: ControllerState, event: Event) -> Transition:
    """Return the controller's next state and its instructions after an event.

    >>> joined = LearnerJoined(timestamp=0.0, learner="cleveland", examples=303)
    >>> state, instructions = transition(Strategy(learners=1, rounds=3), ControllerState(), joined)
    >>> [(start.learner, start.version) for start in instructions]
    [('cleveland', 0)]
    """
    if state.stop_reason is not None:
        return state, ()
    if strategy.max_seconds is not None and event.timestamp > strategy.max_seconds:
        return scheduler.stop_run(state, "the time is up")
    match event:
        case LearnerJoined():
            return _learner_joined(strategy, state, event)
        case LearnerLeft():
            return _learner_left(strategy, state, event)
        case UpdateReceived():
            return _update_received(strategy, state, event)
        case EvaluationReceived():
            return _evaluation_received(strategy, state, event)
        case TaskFailed():
            return _task_failed(strategy, state, event)
        case TimerFired():
            if not state.has_started:
                return state, ()
            return strategy.scheduler.on_timer(strategy, state, event.name, event.timestamp)
        case RunNote():
            return state, ()


def _learner_joined(strategy: Strategy, state: ControllerState, event: LearnerJoined) -> Transition:
    learner, is_present = event.learner, event.learner in state.present
    state = _without_declared(state, learner)
    info, declared = LearnerInfo(event.examples, event.group, event.labels), state.declared.get(learner)
    info = info if declared is None else declared.min_with(info)
    state = state._replace(
        present=state.present.set(learner, info),
        declared=state.declared.set(learner, info) if declared is None else state.declared,
        missing=state.missing - {learner},
        examples=state.examples + info.examples,
        labels=evaluator_selection.sum_label_counts([state.labels, info.labels]),
    )
    if not state.has_started:
        return _start_if_ready(strategy, state, event.timestamp)
    return (
        (state, ())
        if is_present
        else strategy.scheduler.on_learner_joined(strategy, state, learner, event.timestamp)
    )


def _start_if_ready(strategy: Strategy, state: ControllerState, now: float) -> Transition:
    """Transition to training once all expected learners have joined or left."""
    if not state.present or len(state.present) + len(state.missing) < strategy.learners:
        return state, ()
    return strategy.scheduler.on_start(strategy, state._replace(has_started=True), now)


def _learner_left(strategy: Strategy, state: ControllerState, event: LearnerLeft) -> Transition:
    learner = event.learner
    if not state.has_started:
        state = _without_declared(state, learner)._replace(missing=state.missing | {learner})
        present = state.present.delete(learner) if learner in state.present else state.present
        return _start_if_ready(strategy, state._replace(present=present), event.timestamp)
    if learner not in state.present:
        return state, ()
    open_tasks = [task for task, assignment in state.open_tasks.items() if assignment.learner == learner]
    remaining = state.open_tasks
    for task in open_tasks:
        remaining = remaining.delete(task)
    state = _without_declared(state, learner)
    state = state._replace(present=state.present.delete(learner), open_tasks=remaining)
    evaluated = [
        task
        for task, contribution in state.awaiting_evaluation.items()
        if learner in contribution.pending_evaluators
    ]
    for task in evaluated:
        state = evaluator_selection.add_evaluation(strategy, state, task, learner)
    instructions: tuple[Instruction, ...] = ()
    if strategy.scheduler.aggregation == "latest" and strategy.contribution_rule == LatestContribution(
        "subtract"
    ):
        instructions = (RemoveLearner(learner),)
    state, further_instructions = strategy.scheduler.on_learner_left(
        strategy, state, learner, event.timestamp
    )
    if state.stop_reason is None:
        state, evaluated_instructions = _continue_with(
            strategy, state, event.timestamp, evaluator_selection.fully_evaluated(state, evaluated)
        )
        further_instructions += evaluated_instructions
    return state, instructions + further_instructions


def _without_declared(state: ControllerState, learner: str) -> ControllerState:
    """Subtract a learner's declared counts from the totals of the state machine."""
    info = state.present.get(learner)
    if info is None:
        return state
    negative_labels = tuple(-n for n in info.labels)
    return state._replace(
        examples=state.examples - info.examples,
        labels=evaluator_selection.sum_label_counts([state.labels, negative_labels]),
    )


def _update_received(strategy: Strategy, state: ControllerState, event: UpdateReceived) -> Transition:
    assignment = state.open_tasks.get(event.task)
    if assignment is None or assignment.learner != event.learner:
        return state, ()
    info = state.present.get(event.learner)
    if info is not None:
        event = _limit_to_declared(strategy, info, event)
        if strategy.is_capped:
            state, event = _cap_examples(strategy, state, info, event)
    contribution = Contribution(
        event,
        version=assignment.version,
        versions_missed=state.version - assignment.version,
        staleness=state.committed_steps - assignment.committed_steps + event.steps,
        used_validation_data=assignment.use_validation_data,
        is_final=scheduler.in_final_rounds(strategy, state),
    )
    contribution, requests = evaluator_selection.request_evaluations(strategy, state, contribution)
    state = state._replace(open_tasks=state.open_tasks.delete(event.task))
    if contribution.pending_evaluators:
        state = state._replace(awaiting_evaluation=state.awaiting_evaluation.set(event.task, contribution))
        return state, requests
    state, further_instructions = strategy.scheduler.on_updates_ready(
        strategy, state, (contribution,), event.timestamp
    )
    return state, requests + further_instructions


def _limit_to_declared(strategy: Strategy, info: LearnerInfo, event: UpdateReceived) -> UpdateReceived:
    """Limit a received update's examples to what its learner declared, and remove implausible validation counts."""
    event = _limit_examples(strategy, event, info.max_examples)
    is_plausible = evaluator_selection.are_counts_plausible(info, event.counts) and _fits_metric(
        strategy, event.counts
    )
    return event if is_plausible else replace(event, counts=())


def _cap_examples(
    strategy: Strategy, state: ControllerState, info: LearnerInfo, event: UpdateReceived
) -> tuple[ControllerState, UpdateReceived]:
    """Limit a received update's examples to twice the examples of all other learners, of whom there must be two."""
    other_examples = state.examples - info.examples
    if len(state.present) < 3 or not other_examples or event.examples <= _MAX_EXAMPLES_RATIO * other_examples:
        return state, event
    capped = _limit_examples(strategy, event, _MAX_EXAMPLES_RATIO * other_examples)
    return state._replace(capped_updates=state.capped_updates + 1), capped


def _limit_examples(strategy: Strategy, event: UpdateReceived, max_examples: int) -> UpdateReceived:
    """Limit the examples of a received update, and its steps accordingly."""
    if event.examples <= max_examples:
        return event
    return replace(
        event, examples=max_examples, steps=min(event.steps, strategy.training.epochs * max_examples)
    )


def _fits_metric(strategy: Strategy, counts: Counts) -> bool:
    return strategy.validation is None or validation_counts.fits_metric(strategy.validation.metric, counts)


def _evaluation_received(
    strategy: Strategy, state: ControllerState, event: EvaluationReceived | TaskFailed
) -> Transition:
    """Handle the event of a received evaluation: add its counts; a failed one adds none and is not pending."""
    task = evaluator_selection.scored_task(event.task, event.learner)
    counts = (
        event.counts if isinstance(event, EvaluationReceived) and _fits_metric(strategy, event.counts) else ()
    )
    state = evaluator_selection.add_evaluation(strategy, state, task, event.learner, counts)
    return _continue_with(
        strategy, state, event.timestamp, evaluator_selection.fully_evaluated(state, (task,))
    )


def _task_failed(strategy: Strategy, state: ControllerState, event: TaskFailed) -> Transition:
    assignment = state.open_tasks.get(event.task)
    if assignment is None:
        return _evaluation_received(strategy, state, event)
    if assignment.learner != event.learner:
        return state, ()
    state = state._replace(open_tasks=state.open_tasks.delete(event.task))
    return strategy.scheduler.on_task_failed(strategy, state, event.learner, event.timestamp)


def _continue_with(
    strategy: Strategy, state: ControllerState, now: float, evaluated: Sequence[Contribution]
) -> Transition:
    """Pass fully evaluated updates from the state machine to the scheduler."""
    if not evaluated:
        return state, ()
    remaining = state.awaiting_evaluation
    for contribution in evaluated:
        remaining = remaining.delete(contribution.update.task)
    return strategy.scheduler.on_updates_ready(
        strategy, state._replace(awaiting_evaluation=remaining), evaluated, now
    )
