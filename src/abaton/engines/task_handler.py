"""Handling of one task by a learner, for every engine.

Steps: the site's policy admits the task; a reply that is stored already is returned again; the learner accepts the
task or refuses it; it trains or evaluates; the policy releases the reply; the learner's state and the reply are
written together; the reply is sent. A failure is reported as a code, its reason is logged at the site, and the
learner's state is restored.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from abaton.engines.base import CodedFailureError, EvaluateTask, Task, TrainTask, code_for
from abaton.engines.site_state import LearnerDiskState
from abaton.errors import AbatonError
from abaton.layout import Vector
from abaton.learners import Learner, LearnerUpdate, SiteReply, SiteRequest, TrainingMonitor
from abaton.learners.learner import NO_MONITOR

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())  # the site decides where its log is written


class TaskHandler:
    """Handler of one learner's tasks.

    Args:
        learner: the learner that trains and evaluates, with its site's policy.
        state: the disk state of the learner, with its last reply.
        now: the time that the learner is given when a task starts.
    """

    def __init__(
        self, learner: Learner, state: LearnerDiskState | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.learner, self._state, self._now = learner, state, now

    def handle(self, task: Task, monitor: TrainingMonitor = NO_MONITOR) -> SiteReply:
        """Handle a task and return its reply; a failure is a reply with a code."""
        try:
            return self.run(task, monitor)
        except Exception as error:
            return SiteReply({"task_id": task.task_id, "reason": failure_code(error)})

    def run(self, task: Task, monitor: TrainingMonitor = NO_MONITOR) -> SiteReply:
        """Handle a task and return its reply; raise on failure, for engines in the learner's process."""
        stored_reply = self.begin(task)
        if stored_reply is not None:
            return stored_reply
        before = self.learner.local_state
        try:
            reply = handle_task(self.learner, task, monitor)
        except BaseException:
            self.learner.restore(before)
            raise
        return self.finish(task, reply, before)

    def begin(self, task: Task) -> SiteReply | None:
        """Begin to handle a task: let site and learner accept it; return the reply if it is stored already."""
        learner, state, is_training = self.learner, self._state, isinstance(task, TrainTask)
        learner.policy.admit(to_site_request(task))
        if state is not None:
            stored_reply = state.stored_reply(task.task_id) if is_training else None
            state.refresh(learner)
            if stored_reply is not None:
                return learner.policy.release(to_site_request(task), stored_reply)
        learner.on_task_start(self._now(), task.version if isinstance(task, TrainTask) else None)
        return None

    def finish(self, task: Task, reply: SiteReply, before: Mapping[str, Vector]) -> SiteReply:
        """Finish handling a task: let the site release the reply, and store it first.

        Args:
            task: the task.
            reply: the reply; the learner has the state after the task.
            before: the learner's state before the task, restored if the reply is not released.
        """
        try:
            released = self.learner.policy.release(to_site_request(task), reply)
            if self._state is not None and isinstance(task, TrainTask):
                self._state.save(self.learner, released)
        except BaseException:
            self.learner.restore(before)
            raise
        return released


def handle_task(learner: Learner, task: Task, monitor: TrainingMonitor = NO_MONITOR) -> SiteReply:
    """Handle a task by training or evaluating with the learner."""
    if isinstance(task, EvaluateTask):
        return SiteReply({"task_id": task.task_id, "counts": learner.evaluate(task.model)})
    update = learner.train(task.task_id, task.version, task.model, task.settings, monitor)
    return update_reply(learner, task, update)


def update_reply(learner: Learner, task: TrainTask, update: LearnerUpdate) -> SiteReply:
    """Return a trained update as the reply of the task handler."""
    header = {"task_id": task.task_id, "steps": update.steps, "loss": update.loss, "counts": update.counts}
    return SiteReply(
        {**header, "examples": learner.size(task.settings), "cohort": learner.cohort}, update.payload
    )


def to_site_request(task: Task) -> SiteRequest:
    """Return a task as the request that the task handler submits to the site's policy."""
    if isinstance(task, EvaluateTask):
        return SiteRequest("evaluate", task.task_id, model=task.model, signed_model=task.signed_model)
    return SiteRequest("train", task.task_id, task.version, task.settings, task.model)


def failure_code(error: Exception) -> str:
    """Return the failure code of an error in handling a task, and log its reason at the site."""
    if isinstance(error, AbatonError):
        _LOG.warning("%s", error)  # texts of Abaton's errors contain no data
    elif not isinstance(error, CodedFailureError):
        _LOG.error("%s at %s", type(error).__name__, _location(error))  # texts of other errors may
    return code_for(error)


def _location(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
