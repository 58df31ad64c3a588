"""Answers read with care: every value is checked before anything is made of it, and what is not sound is a failed task.

One reader for whatever crosses a border: a pipe, a cluster, a network. It never raises over what a learner sent.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from abaton.controller import Arrived, Event, Failed, Scored
from abaton.engines.base import (
    FAILED,
    UNREADABLE_ANSWER,
    UNREADABLE_UPDATE,
    EvaluateTask,
    Task,
    TrainTask,
    plain_reason,
)
from abaton.errors import PayloadError
from abaton.learners import Reply
from abaton.metrics.counts import Counts, sound

Check = Callable[[str, int, bytes], None]
"""Decodes a learner's payload for a version; raises if it is not sound."""

CheckSigned = Callable[[TrainTask, bytes, str], None]
"""Holds an update against the signature of its learner's site; raises if that is not true."""

_MOST = 1 << 53  # whole numbers beyond are not exact in JSON
_COUNTS = 1 << 16
_CLASSES = 1 << 12  # evaluators are chosen by them: more would cost the controller a second for each update
_LONGEST = (
    1 << 22
)  # bytes of plain values: as many counts as may be, and much more than any honest answer has
_FAILED = frozenset({"key", "reason"})
_SCORED = frozenset({"key", "score"})
_TRAINED = frozenset({"key", "steps", "examples", "loss", "score", "cohort"})
_SIGNATURE = "signature"  # only where sites sign what they learned


@dataclass(frozen=True, slots=True)
class Told:
    """What a learner tells of its training, besides the update."""

    steps: int
    examples: int
    loss: float | None
    score: Counts
    cohort: str
    signature: str = ""

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Self:
        """What a learner in this very process tells; what came from elsewhere is `trained`."""
        score, signature = tuple(about["score"]), about.get(_SIGNATURE, "")
        return cls(about["steps"], about["examples"], about["loss"], score, about["cohort"], signature)


class Reader:
    """Makes an event of an answer.

    Args:
        keep: stores a payload and returns its digest.
        check: decodes a payload.
        signed: holds an update against its signature; none is asked for without.
    """

    def __init__(self, keep: Callable[[bytes], str], check: Check, signed: CheckSigned | None = None) -> None:
        self._keep, self._check, self._signed = keep, check, signed

    def event(self, at: float, task: Task, reply: Reply, down: int = 0) -> Event:
        """What has happened: an update arrived, a model was scored, or a task failed in a fixed word."""
        return self.made(at, task, reply, self.problem(task, reply), down)

    def made(self, at: float, task: Task, reply: Reply, problem: str, down: int = 0) -> Event:
        """The event of an answer that has been looked at; its model was sent in so many bytes."""
        if problem:
            return Failed(at, task.learner, task.key, problem)
        if isinstance(task, EvaluateTask):
            return Scored(at, task.learner, task.key, tuple(map(float, reply.about["score"])), down)
        sizes = len(reply.payload), down
        return arrival(at, task, trained(reply.about), self._keep(reply.payload), sizes)

    def problem(self, task: Task, reply: Reply) -> str:
        """The fixed word for what is wrong with an answer, or what its learner says went wrong; empty if nothing is."""
        unreadable = UNREADABLE_ANSWER if isinstance(task, EvaluateTask) else UNREADABLE_UPDATE
        about = reply.about
        if not isinstance(about, Mapping) or about.get("key") != task.key:
            return unreadable
        if about.keys() == _FAILED:
            return plain_reason(about["reason"])
        try:
            self._look(task, reply)
        except Exception:  # whatever a decoder does over a learner's bytes: they are not an update
            return unreadable
        return ""

    def _look(self, task: Task, reply: Reply) -> None:
        if isinstance(task, TrainTask):
            told = trained(reply.about)
            if not isinstance(reply.payload, bytes) or told.steps > _most_steps(task, told.examples):
                raise unreadable()
            self._check(task.learner, task.version, reply.payload)
            if self._signed is not None:
                self._signed(task, reply.payload, told.signature)
            return
        if reply.about.keys() != _SCORED or reply.payload:
            raise unreadable()
        counts(reply.about["score"])


def arrival(
    at: float, task: TrainTask, told: Told, digest: str, sizes: tuple[int, int], **more: float
) -> Arrived:
    """The event of an update that is kept under a digest, with its bytes up and down; more may be told of its way."""
    metrics = more if told.loss is None else {"loss": told.loss, **more}
    return Arrived(
        at,
        task.learner,
        task.key,
        digest,
        sizes[0],
        told.steps,
        told.examples,
        metrics,
        told.score,
        told.cohort,
        sizes[1],
        told.signature,
    )


def trained(about: Mapping[str, Any]) -> Told:
    """What is told of a training.

    >>> trained({"key": "t", "steps": 8, "examples": 40, "loss": 0.5, "score": [3, 1.0, 0, 9], "cohort": ""})
    Told(steps=8, examples=40, loss=0.5, score=(3.0, 1.0, 0.0, 9.0), cohort='', signature='')
    >>> trained({"key": "t", "steps": 8, "examples": 40, "loss": float("nan"), "score": [], "cohort": ""})
    Traceback (most recent call last):
    abaton.errors.PayloadError: an answer is not readable (answer): ...
    """
    if about.keys() - {_SIGNATURE} != _TRAINED:
        raise unreadable()
    loss = about["loss"]
    return Told(
        whole(about["steps"]),
        whole(about["examples"]),
        None if loss is None else number(loss),
        counts(about["score"]),
        _digits(about["cohort"], 64),
        _digits(about.get(_SIGNATURE, ""), 192),
    )


def packed(reply: Reply) -> bytes:
    """The plain values of an answer as bytes; one whose values are not plain is the answer that its learner failed.

    >>> packed(Reply({"key": "t", "score": (1.0, 2.0)})), packed(Reply({"key": "t", "score": object()}))
    (b'{"key": "t", "score": [1.0, 2.0]}', b'{"key": "t", "reason": "learner failed"}')
    """
    try:
        return json.dumps(dict(reply.about)).encode()
    except (TypeError, ValueError):
        return json.dumps({"key": str(reply.about.get("key")), "reason": FAILED}).encode()


def header(data: object) -> dict[str, Any]:
    """The plain values that bytes hold; nothing, which no answer is, if they hold none."""
    if not isinstance(data, bytes) or len(data) > _LONGEST:
        return {}
    try:
        about = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def counts(said: object) -> Counts:
    """What an evaluator counted: numbers that can be counts, not too many; none if it abstains."""
    if not isinstance(said, Sequence) or isinstance(said, str | bytes) or len(said) > _COUNTS:
        raise unreadable()
    made = tuple(map(number, said))
    if not sound(made):
        raise unreadable()
    return made


def labels(said: object) -> Counts:
    """How many examples of each class somebody says that there are."""
    if not isinstance(said, Sequence) or isinstance(said, str | bytes) or len(said) > _CLASSES:
        raise unreadable()
    return tuple(map(whole, said))


def number(said: object) -> float:
    """A finite number."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not abs(said) <= sys.float_info.max:
        raise unreadable()
    return float(said)


def whole(said: object) -> int:
    """A whole number that is not negative."""
    if isinstance(said, bool) or not isinstance(said, int) or not 0 <= said <= _MOST:
        raise unreadable()
    return said


def unreadable() -> PayloadError:
    """An answer that cannot be what it says."""
    return PayloadError(
        "an answer is not readable", where="answer", remedy="check that the site runs the same Abaton"
    )


def _most_steps(task: TrainTask, examples: int) -> int:
    """As many batches as a task can take: no batch is smaller than one example."""
    settings = task.settings
    return settings.steps or (_MOST if settings.budget else settings.epochs * max(1, examples))


def _digits(said: object, many: int) -> str:
    """So many hexadecimal digits, or nothing: a fingerprint of who was trained on, or a signature."""
    if not isinstance(said, str) or not re.fullmatch(rf"(?:[0-9a-f]{{{many}}})?", said):
        raise unreadable()
    return said
