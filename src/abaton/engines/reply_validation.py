"""Validation of replies from learners over a pipe, a cluster or a network.

Every value is checked before it is used; an invalid reply is a failed task and never an exception.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from abaton.controller import EvaluationReceived, Event, TaskFailed, UpdateReceived
from abaton.engines.base import (
    INVALID_REPLY,
    INVALID_UPDATE,
    LEARNER_FAILED,
    EvaluateTask,
    Task,
    TrainTask,
    validated_code,
)
from abaton.errors import PayloadError
from abaton.learners import SiteReply
from abaton.metrics.counts import Counts, is_plausible

PayloadCheck = Callable[[str, int, bytes], None]
"""Decodes a learner's payload for a version; raises if it is invalid."""

SignatureCheck = Callable[[TrainTask, bytes, str], None]
"""Verifies the signature of a learner's site on an update; raises if it is invalid."""

_MAX_INTEGER = 1 << 53  # larger integers are not exact in JSON
_MAX_COUNTS = 1 << 16
_MAX_CLASSES = 1 << 12  # evaluator selection with more classes takes over a second per update
_MAX_HEADER_BYTES = 1 << 22  # enough for `_MAX_COUNTS` counts
_FAILED_KEYS = frozenset({"task_id", "reason"})
_EVALUATED_KEYS = frozenset({"task_id", "counts"})
_TRAINED_KEYS = frozenset({"task_id", "steps", "examples", "loss", "counts", "cohort"})
_SIGNATURE = "signature"  # only where sites sign updates


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """Header of a training reply: values that a learner reports besides the update."""

    steps: int
    examples: int
    loss: float | None
    counts: Counts
    cohort: str
    signature: str = ""

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> Self:
        """Build the header of a reply from this process without validation; others use `parse_training_reply`."""
        counts, signature = tuple(header["counts"]), header.get(_SIGNATURE, "")
        return cls(header["steps"], header["examples"], header["loss"], counts, header["cohort"], signature)


class ReplyValidator:
    """Conversion of replies to events.

    Args:
        store_payload: stores a payload and returns its digest.
        check_payload: decodes a payload.
        check_signature: verifies the signature of an update; none is required without it.
    """

    def __init__(
        self,
        store_payload: Callable[[bytes], str],
        check_payload: PayloadCheck,
        check_signature: SignatureCheck | None = None,
    ) -> None:
        self._store_payload, self._check_payload, self._check_signature = (
            store_payload,
            check_payload,
            check_signature,
        )

    def event(self, timestamp: float, task: Task, reply: SiteReply, downlink_bytes: int = 0) -> Event:
        """Validate a reply and return its event: an update, an evaluation, or a failed task with its code."""
        return self.build_event(timestamp, task, reply, self.problem(task, reply), downlink_bytes)

    def build_event(
        self, timestamp: float, task: Task, reply: SiteReply, problem: str, downlink_bytes: int = 0
    ) -> Event:
        """Return the event of a validated reply; `downlink_bytes` is the size of the model sent for it."""
        if problem:
            return TaskFailed(timestamp, task.learner, task.task_id, problem)
        if isinstance(task, EvaluateTask):
            return EvaluationReceived(
                timestamp,
                task.learner,
                task.task_id,
                tuple(map(float, reply.header["counts"])),
                downlink_bytes,
            )
        sizes = len(reply.payload), downlink_bytes
        return to_event(
            timestamp, task, parse_training_reply(reply.header), self._store_payload(reply.payload), sizes
        )

    def problem(self, task: Task, reply: SiteReply) -> str:
        """Validate a reply: return the failure code, found here or reported by its learner; empty if it is valid."""
        code = INVALID_REPLY if isinstance(task, EvaluateTask) else INVALID_UPDATE
        header = reply.header
        if not isinstance(header, Mapping) or header.get("task_id") != task.task_id:
            return code
        if header.keys() == _FAILED_KEYS:
            return validated_code(header["reason"])
        try:
            self._check(task, reply)
        except Exception:  # any error while decoding means that the bytes are no update
            return code
        return ""

    def _check(self, task: Task, reply: SiteReply) -> None:
        if isinstance(task, TrainTask):
            reply_header = parse_training_reply(reply.header)
            if not isinstance(reply.payload, bytes) or reply_header.steps > _max_steps(
                task, reply_header.examples
            ):
                raise invalid_reply()
            self._check_payload(task.learner, task.version, reply.payload)
            if self._check_signature is not None:
                self._check_signature(task, reply.payload, reply_header.signature)
            return
        if reply.header.keys() != _EVALUATED_KEYS or reply.payload:
            raise invalid_reply()
        parse_counts(reply.header["counts"])


def to_event(
    timestamp: float,
    task: TrainTask,
    reply_header: ReplyHeader,
    digest: str,
    sizes: tuple[int, int],
    **metrics: float,
) -> UpdateReceived:
    """Return the event of a validated training reply whose payload is stored.

    Args:
        timestamp: when it arrived.
        task: the task it replies to.
        reply_header: what the learner reports.
        digest: the digest of the stored payload.
        sizes: bytes of the update and of the model that was sent.
        metrics: further metrics of the transfer.
    """
    if reply_header.loss is not None:
        metrics = {"loss": reply_header.loss, **metrics}
    return UpdateReceived(
        timestamp,
        task.learner,
        task.task_id,
        digest,
        sizes[0],
        reply_header.steps,
        reply_header.examples,
        metrics,
        reply_header.counts,
        reply_header.cohort,
        sizes[1],
        reply_header.signature,
    )


def parse_training_reply(header: Mapping[str, Any]) -> ReplyHeader:
    """Validate and parse the header of a training reply.

    >>> header = {"task_id": "t", "steps": 8, "examples": 40, "loss": 0.5, "counts": [3, 1.0, 0, 9], "cohort": ""}
    >>> parse_training_reply(header)
    ReplyHeader(steps=8, examples=40, loss=0.5, counts=(3.0, 1.0, 0.0, 9.0), cohort='', signature='')
    >>> parse_training_reply({**header, "loss": float("nan")})
    Traceback (most recent call last):
    abaton.errors.PayloadError: a reply is invalid (reply): ...
    """
    if header.keys() - {_SIGNATURE} != _TRAINED_KEYS:
        raise invalid_reply()
    loss = header["loss"]
    return ReplyHeader(
        parse_count(header["steps"]),
        parse_count(header["examples"]),
        None if loss is None else parse_number(loss),
        parse_counts(header["counts"]),
        _parse_hex(header["cohort"], 64),
        _parse_hex(header.get(_SIGNATURE, ""), 192),
    )


def encode_reply(reply: SiteReply) -> bytes:
    """Encode the header of a reply for the validating side; one that is not JSON becomes `LEARNER_FAILED`.

    >>> encode_reply(SiteReply({"task_id": "t", "counts": (1.0, 2.0)}))
    b'{"task_id": "t", "counts": [1.0, 2.0]}'
    >>> encode_reply(SiteReply({"task_id": "t", "counts": object()}))
    b'{"task_id": "t", "reason": "learner_failed"}'
    """
    try:
        return json.dumps(dict(reply.header)).encode()
    except (TypeError, ValueError):
        return json.dumps({"task_id": str(reply.header.get("task_id")), "reason": LEARNER_FAILED}).encode()


def parse_header(data: object) -> dict[str, Any]:
    """Decode the header of a reply to validate; empty, which is no valid reply, if it is no JSON object."""
    if not isinstance(data, bytes) or len(data) > _MAX_HEADER_BYTES:
        return {}
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def parse_counts(values: object) -> Counts:
    """Validate the evaluation counts in an evaluator's reply; empty if it abstains."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) > _MAX_COUNTS:
        raise invalid_reply()
    counts = tuple(map(parse_number, values))
    if not is_plausible(counts):
        raise invalid_reply()
    return counts


def parse_labels(values: object) -> Counts:
    """Validate the number of examples per class in a learner's reply."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) > _MAX_CLASSES:
        raise invalid_reply()
    return tuple(map(parse_count, values))


def parse_number(value: object) -> float:
    """Validate a finite number in a learner's reply."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise invalid_reply()
    return float(value)


def parse_count(value: object) -> int:
    """Validate a non-negative integer in a learner's reply."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_INTEGER:
        raise invalid_reply()
    return value


def invalid_reply() -> PayloadError:
    """Return the error for a learner's reply that fails validation."""
    return PayloadError(
        "a reply is invalid", where="reply", remedy="check that the site runs the same version of Abaton"
    )


def _max_steps(task: TrainTask, examples: int) -> int:
    """Return the largest number of batches that is valid in the reply to a task: each has at least one example."""
    settings = task.settings
    return settings.steps or (
        _MAX_INTEGER if settings.time_budget_seconds else settings.epochs * max(1, examples)
    )


def _parse_hex(text: object, length: int) -> str:
    """Validate a cohort digest or signature in a reply: `length` hexadecimal digits, or an empty string."""
    if not isinstance(text, str) or not re.fullmatch(rf"(?:[0-9a-f]{{{length}}})?", text):
        raise invalid_reply()
    return text
