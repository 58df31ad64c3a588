"""Engine protocol: transport of tasks to learners and of events back, and the clock of a run.

A task that fails is reported with a failure code. Texts of errors are not forwarded, because they may contain data of
a site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from abaton.codecs import ModelDelta
from abaton.controller import Event
from abaton.errors import AbatonError
from abaton.layout import Vector
from abaton.learners import SignedModel
from abaton.training import TrainSettings


@dataclass(frozen=True, slots=True, eq=False)
class DeltaPath:
    """Derivation of a task's model from versions that a site has, in a run with a compressed downlink.

    Attributes:
        version: the version of the community model that the model is, or was trained from.
        start: the vector of that version.
        recent_versions: the latest deltas between versions.
        trained_by: the learner whose model it is; empty if it is the version itself.
        payload: the update that turns the version into that learner's model.
    """

    version: int
    start: Vector
    recent_versions: tuple[ModelDelta, ...]
    trained_by: str = ""
    payload: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class TrainTask:
    """Training by one learner; a second submission or reply with the same id has no effect."""

    task_id: str
    learner: str
    version: int
    model: Vector
    settings: TrainSettings
    delta_path: DeltaPath | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateTask:
    """Evaluation of another learner's model, with the signature of its site where sites sign models."""

    task_id: str
    learner: str
    model: Vector
    delta_path: DeltaPath | None = None
    signed_model: SignedModel | None = None


Task = TrainTask | EvaluateTask


class Engine(Protocol):
    """Transport of tasks and events, and the clock of a run; it makes no decisions.

    Attributes:
        is_real_time: whether tasks leave this process; the journal is then flushed before tasks are sent.
    """

    is_real_time: ClassVar[bool]

    def now(self) -> float:
        """Engine interface: return the seconds since the run started."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Engine interface: accept tasks without waiting for them."""

    def events(self) -> Sequence[Event]:
        """Engine interface: return the next events in order; empty if no event can follow."""

    def set_timer(self, name: str, timestamp: float) -> None:
        """Engine interface: request a `TimerFired` event at a time."""

    def cancel(self, task_id: str) -> None:
        """Engine interface: drop a task that is no longer needed; a reply may still arrive."""

    def broadcast_progress(self, committed_steps: int) -> None:
        """Engine interface: send the number of committed steps to learners as soon as possible."""


PROCESS_EXITED = "process_exited"
DROPPED_OUT = "dropped_out"
LEARNER_FAILED = "learner_failed"
LEARNER_GONE = "learner_gone"
TIMEOUT = "timeout"
BASE_MISSING = "base_missing"
LAYOUT_MISMATCH = "layout_mismatch"
VERSION_MISMATCH = "version_mismatch"
STUDY_MISMATCH = "study_mismatch"
REFUSED = "refused"
NOT_A_PARTICIPANT = "not_a_participant"
UNKNOWN_MESSAGE = "unknown_message"
INVALID_REPLY = "invalid_reply"
INVALID_UPDATE = "invalid_update"

SITE_FAILURE_CODES = frozenset(
    {
        PROCESS_EXITED,
        LEARNER_FAILED,
        TIMEOUT,
        BASE_MISSING,
        LAYOUT_MISMATCH,
        STUDY_MISMATCH,
        REFUSED,
        NOT_A_PARTICIPANT,
        UNKNOWN_MESSAGE,
    }
)
"""Codes that a site may report; any other text becomes `LEARNER_FAILED`."""


class CodedFailureError(Exception):
    """Failure with one of the codes, to be reported to the controller."""


def validated_code(code: object) -> str:
    """Return a site's failure code if it is one of the base codes that a site may report, else `LEARNER_FAILED`.

    >>> validated_code("layout_mismatch"), validated_code("patient 4711 is not finite")
    ('layout_mismatch', 'learner_failed')
    """
    return code if isinstance(code, str) and code in SITE_FAILURE_CODES else LEARNER_FAILED


def code_for(error: Exception) -> str:
    """Return the base failure code for an error of a task, common to all engines.

    >>> code_for(CodedFailureError(BASE_MISSING)), code_for(AbatonError("row 4711")), code_for(ValueError("row 4711"))
    ('base_missing', 'refused', 'learner_failed')
    """
    if isinstance(error, CodedFailureError):
        return validated_code(str(error))
    return REFUSED if isinstance(error, AbatonError) else LEARNER_FAILED
