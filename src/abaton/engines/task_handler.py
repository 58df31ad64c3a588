"""The worker: how a learner answers a task, whatever carries it.

In this order: the site's policy is asked whether the task is admitted; an answer that is on the site's disk already is
given again; the learner hears that a task begins, and may refuse; it trains or evaluates; the policy is asked whether
the answer is let go of; what the learner keeps and the answer are written down together; the answer leaves. Whatever
goes wrong on the way is told by one of a few fixed words, its reason goes to the site's own log, and the learner keeps
what it kept before.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from abaton.engines.base import EvaluateTask, Said, Task, TrainTask, word_for
from abaton.engines.site_state import SiteState
from abaton.errors import AbatonError
from abaton.kernels import Vector
from abaton.learners import Learner, Reply, Request, Update, Watch
from abaton.learners.learner import ALONE

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())  # what is told here is the site's: it goes where the site lets logs go


class Worker:
    """Answers tasks for one learner.

    Args:
        learner: who trains and evaluates; its policy is the site's.
        state: where it keeps what must survive, and its last answer.
        now: the time that the learner hears when a task begins.
    """

    def __init__(
        self, learner: Learner, state: SiteState | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.learner, self._state, self._now = learner, state, now

    def answer(self, task: Task, watch: Watch = ALONE) -> Reply:
        """Do a task from beginning to end; what went wrong is an answer, too."""
        try:
            return self.do(task, watch)
        except Exception as error:
            return Reply({"key": task.key, "reason": told(error)})

    def do(self, task: Task, watch: Watch = ALONE) -> Reply:
        """Do a task from beginning to end; what goes wrong is raised, for an engine that shares the learner's place."""
        known = self.begin(task)
        if known is not None:
            return known
        before = self.learner.kept
        try:
            made = done(self.learner, task, watch)
        except BaseException:
            self.learner.restore(before)
            raise
        return self.finish(task, made, before)

    def begin(self, task: Task) -> Reply | None:
        """Let the site and its learner accept a task; the answer, if it is written down already."""
        learner, state, training = self.learner, self._state, isinstance(task, TrainTask)
        learner.policy.admits(asked(task))
        if state is not None:
            known = state.answered(task.key) if training else None
            state.refresh(learner)
            if known is not None:
                return learner.policy.releases(asked(task), known)
        learner.begin(self._now(), task.version if isinstance(task, TrainTask) else None)
        return None

    def finish(self, task: Task, made: Reply, before: Mapping[str, Vector]) -> Reply:
        """Let the site let go of an answer, and write it down first.

        Args:
            task: what was asked.
            made: the answer; the learner keeps what it left.
            before: what the learner kept before, and keeps again if the answer does not leave.
        """
        try:
            released = self.learner.policy.releases(asked(task), made)
            if self._state is not None and isinstance(task, TrainTask):
                self._state.save(self.learner, released)
        except BaseException:
            self.learner.restore(before)
            raise
        return released


def done(learner: Learner, task: Task, watch: Watch = ALONE) -> Reply:
    """Train or evaluate."""
    if isinstance(task, EvaluateTask):
        return Reply({"key": task.key, "score": learner.evaluate(task.model)})
    made = learner.train(task.key, task.version, task.model, task.settings, watch)
    return update_reply(learner, task, made)


def update_reply(learner: Learner, task: TrainTask, made: Update) -> Reply:
    """The answer that an update is."""
    about = {"key": task.key, "steps": made.steps, "loss": made.loss, "score": made.score}
    return Reply({**about, "examples": learner.size(task.settings), "cohort": learner.cohort}, made.payload)


def asked(task: Task) -> Request:
    """A task as a site's policy sees it."""
    if isinstance(task, EvaluateTask):
        return Request("evaluate", task.key, model=task.model, signed=task.signed)
    return Request("train", task.key, task.version, task.settings, task.model)


def told(error: Exception) -> str:
    """The fixed word for an error, whose reason goes to the site's own log and no further."""
    if isinstance(error, AbatonError):
        _LOG.warning("%s", error)  # errors of ours hold no content
    elif not isinstance(error, Said):
        _LOG.error("%s at %s", type(error).__name__, _place(error))  # the text of others may
    return word_for(error)


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
