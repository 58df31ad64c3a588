"""Site worker: replies to messages with a learner and state on the site's disk; also a program.

A process may end at any time, so all state is in files: the learner's state and its last reply, the base models of
differences, and the reported number of committed steps, in one folder of the site per run. All of it is written
before a reply is sent.

As a program a worker has access to the learner and the records, but not to the network. A site has two of them, so that
it can evaluate while it trains. Its node forwards one message at a time to each, through a socket in a folder that only
the two users can enter. A Flower node handles one message at a time, so the training worker gets the number of
committed steps through the evaluating worker and the shared folder. The supervisor restarts a worker that exits.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.codecs import ModelDelta
from abaton.engines.base import (
    BASE_MISSING,
    LAYOUT_MISMATCH,
    PROCESS_EXITED,
    STUDY_MISMATCH,
    UNKNOWN_MESSAGE,
    CodedFailureError,
    EvaluateTask,
    TrainTask,
)
from abaton.engines.flower.flower_messages import MAX_MESSAGE_BYTES, Message, decode_model, model_digest
from abaton.engines.flower.supervisor import end_with_parent
from abaton.engines.model_transfer import apply_transfer, apply_update
from abaton.engines.site_state import LearnerDiskState
from abaton.engines.task_handler import TaskHandler, failure_code
from abaton.errors import PayloadError, SettingsError
from abaton.layout import Vector
from abaton.learners import Learner, SignedModel, SitePolicy, SiteReply, SiteRequest, TrainingMonitor
from abaton.store import content_digest
from abaton.training import train_settings_from_row

_TASKS = ("train", "evaluate")
_MAX_BASES = 4  # base models of each worker


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Role and folder of a site worker.

    Attributes:
        role: `train` or `evaluate`.
        folder: the site's folder, shared by both workers.
        study_hash: the hash of the study that the site agreed to; messages of another study are refused.
        group: the group of learners that the site belongs to.
    """

    role: str
    folder: Path
    study_hash: str = ""
    group: str = ""


def run_folder(worker_settings: WorkerSettings, run: str) -> Path:
    """Return a run's folder for the site's workers; its name is a digest, so that it cannot be another folder."""
    return Path(worker_settings.folder, content_digest(run.encode())[:32])


class SiteWorker:
    """Worker that replies to the messages for one site."""

    def __init__(self, learner: Learner, worker_settings: WorkerSettings) -> None:
        self.learner, self.worker_settings = learner, worker_settings

    def reply(self, message: Message) -> Message:
        """Handle a message in the site worker and return the reply; a failure is a reply with a code."""
        return with_failure_code(lambda: self._handle(message))

    def _handle(self, message: Message) -> Message:
        header, learner, handler = message.header, self.learner, self._handlers.get(message.message_type)
        if handler is None:
            raise CodedFailureError(UNKNOWN_MESSAGE)
        if header["study_hash"] != self.worker_settings.study_hash:
            raise CodedFailureError(STUDY_MISMATCH)
        if header["layout"] != learner.model.layout.digest:
            raise CodedFailureError(LAYOUT_MISMATCH)
        model_cache = BaseModelCache(
            run_folder(self.worker_settings, str(header["run"])), self.worker_settings.role, learner
        )
        if message.message_type in _TASKS:
            reply = handler(self, model_cache, message)  # the task handler applies the site's policy
        else:
            reply = apply_policy(
                learner.policy, message.message_type, lambda: handler(self, model_cache, message)
            )
        return Message(
            "reply", {**reply.header, "held_models": model_cache.model_digests()}, reply.attachments
        )

    def _introduce(self, model_cache: BaseModelCache, message: Message) -> Message:
        learner, worker_settings = self.learner, self.worker_settings
        counts = {"examples": learner.declared_examples, "labels": list(learner.labels)}
        return Message("reply", {"site": learner.name, "group": worker_settings.group, **counts})

    def _train(self, model_cache: BaseModelCache, message: Message) -> Message:
        header = message.header
        (start,) = model_cache.models([(header, message.attachments["model"])])
        settings, version = train_settings_from_row(header["settings"]), int(header["version"])
        sent_steps = int(header["committed_steps"])
        monitor = TrainingMonitor(time.monotonic, lambda: max(sent_steps, model_cache.committed_steps()))
        task = TrainTask(str(header["task_id"]), self.learner.name, version, start, settings)
        reply = self._task_handler(model_cache).handle(task, monitor)
        return Message("reply", reply.header, {"update": reply.payload} if reply.payload else {})

    def _evaluate(self, model_cache: BaseModelCache, message: Message) -> Message:
        """Return the site worker's evaluation counts, or a failure code, for each model of a message."""
        model_cache.record_progress(int(message.header["committed_steps"]))
        evaluations = message.header["evaluations"]
        models = model_cache.models(
            [(evaluation, message.attachments[f"model/{i}"]) for i, evaluation in enumerate(evaluations)]
        )
        handler, name = self._task_handler(model_cache), self.learner.name
        headers = [
            handler.handle(
                EvaluateTask(str(evaluation["task_id"]), name, model, signed_model=_signed_model(evaluation))
            ).header
            for evaluation, model in zip(evaluations, models, strict=True)
        ]
        counts_list = [header["reason"] if "reason" in header else header["counts"] for header in headers]
        return Message("reply", {"counts_list": counts_list})

    def _task_handler(self, model_cache: BaseModelCache) -> TaskHandler:
        return TaskHandler(self.learner, LearnerDiskState(model_cache.folder, self.learner.name))

    def _progress(self, model_cache: BaseModelCache, message: Message) -> Message:
        model_cache.record_progress(int(message.header["committed_steps"]))
        return Message("reply", {})

    _handlers: ClassVar[Mapping[str, Callable[[Any, BaseModelCache, Message], Message]]] = {
        "introduce": _introduce,
        "train": _train,
        "evaluate": _evaluate,
        "progress": _progress,
    }


def with_failure_code(build_reply: Callable[[], Message]) -> Message:
    """Return a site worker's reply, or one with a failure code; no text of an error leaves the site."""
    try:
        return build_reply()
    except Exception as error:
        return Message("reply", {"reason": failure_code(error)})


def apply_policy(policy: SitePolicy, message_type: str, build_reply: Callable[[], Message]) -> Message:
    """Return a site worker's reply to a message other than a task, if the site's policy admits and releases it."""
    request = SiteRequest(message_type)
    policy.admit(request)
    reply = build_reply()
    name = next(iter(reply.attachments), "")
    released = policy.release(request, SiteReply(reply.header, reply.attachments.get(name, b"")))
    return Message(reply.message_type, released.header, {name: released.payload} if name else {})


class BaseModelCache:
    """A run's folder at the site: base models, and the number of committed steps.

    Each of the site's workers removes only its own models, so that it does not remove the base of a message to the
    other.
    """

    def __init__(self, folder: Path, role: str, learner: Learner) -> None:
        self.folder, self._learner, self._size = folder, learner, learner.model.layout.size
        self._models, self._progress = folder / "models" / role, folder / "committed_steps.json"

    def model_digests(self) -> list[str]:
        """Return the digests of the base models that this site worker has on disk, the oldest first."""
        return [path.stem for path in self._stored()]

    def models(self, sent: Sequence[tuple[Mapping[str, Any], bytes]]) -> list[Vector]:
        """Decode models that the site worker received; the last are stored after all were decoded."""
        decoded: dict[str, Vector] = {}
        models = [self._model(header, data, decoded) for header, data in sent]
        with map_os_errors(self._models):
            self._models.mkdir(parents=True, exist_ok=True)
            for digest, vector in list(decoded.items())[-_MAX_BASES:]:
                with atomic_write(self._models / f"{digest}.model") as temporary_path:
                    temporary_path.write_bytes(vector.tobytes())
        for old in self._stored()[:-_MAX_BASES]:
            old.unlink(missing_ok=True)
        return models

    def _model(self, header: Mapping[str, Any], data: bytes, decoded: dict[str, Vector]) -> Vector:
        """Decode a model that the site worker received; add it, or the version it started from, to `decoded`."""
        digest = header["base"]
        base = None if digest is None else decoded[digest] if digest in decoded else self._read(str(digest))
        if "deltas" not in header:
            model = start = decode_model(data, self._size, base)
        else:
            start, update = self._start(header, data, base)
            _check_digest(start, header["start"])
            version, trained_by = header["trained_by"]
            model = apply_update(self._learner, start, int(version), str(trained_by), update)
        decoded[str(header.get("start", header["model"]))] = start
        return _check_digest(model, header["model"])

    def _start(self, header: Mapping[str, Any], data: bytes, base: Vector | None) -> tuple[Vector, bytes]:
        """Return the version that a model sent to the site worker was trained from, and the remaining bytes."""
        exact, remainder = data[: header["exact_bytes"]], data[header["exact_bytes"] :]
        start = decode_model(exact, self._size, base) if exact or base is None else base
        deltas = []
        for version, length in header["deltas"]:
            deltas.append(ModelDelta(int(version), remainder[:length]))
            remainder = remainder[length:]
        return apply_transfer(self._learner, start, deltas), remainder

    def record_progress(self, committed_steps: int) -> None:
        """Store the number of committed steps in a file for the site's training worker."""
        if committed_steps > self.committed_steps():
            with map_os_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                with atomic_write(self._progress, sync=False) as temporary_path:
                    temporary_path.write_text(json.dumps(committed_steps))

    def committed_steps(self) -> int:
        """Return the number of committed steps from the site worker's file."""
        try:
            return int(json.loads(self._progress.read_text()))
        except (OSError, ValueError):
            return 0

    def _read(self, digest: str) -> Vector:
        if digest.isalnum():  # a digest cannot lead to another folder
            for path in self._models.parent.glob(f"*/{digest}.model"):
                with contextlib.suppress(OSError, ValueError):
                    vector = np.frombuffer(path.read_bytes(), "<f4")
                    if len(vector) == self._size and model_digest(vector) == digest:
                        return vector
        raise CodedFailureError(BASE_MISSING)

    def _stored(self) -> list[Path]:
        dated = []
        for path in self._models.glob("*.model"):
            try:
                dated.append((path.stat().st_mtime_ns, path))
            except FileNotFoundError:
                continue
        return [path for _, path in sorted(dated)]


def _signed_model(header: Mapping[str, Any]) -> SignedModel | None:
    return SignedModel(*header["signed_model"]) if "signed_model" in header else None


def _check_digest(vector: Vector, digest: object) -> Vector:
    if model_digest(vector) != digest:
        raise PayloadError("the digest of a model received over the network differs from its name")
    return vector


# ---- program ------------------------------------------------------------------------------------------------------

ROLES = ("train", "evaluate")
"""Roles of a site's two workers."""

_EVALUATOR_MESSAGES = frozenset({"introduce", "evaluate", "progress"})
_MAX_BYTES = MAX_MESSAGE_BYTES + (1 << 22)
_CONNECT_SECONDS, _RETRY_SECONDS = 300.0, 0.05


class MessageHandler(Protocol):
    """Handler of a site's messages."""

    def reply(self, message: Message) -> Message:
        """Interface of a site worker's handler: handle a message and return the reply."""


def role_of(message: Message) -> str:
    """Return the role of the site worker that handles a message.

    >>> role_of(Message("train", {})), role_of(Message("introduce", {}))
    ('train', 'evaluate')
    """
    return "evaluate" if message.message_type in _EVALUATOR_MESSAGES else "train"


def forward(socket: str, message: Message, connect_timeout: float = _CONNECT_SECONDS) -> Message:
    """Forward a message to a site worker and return its reply, or `PROCESS_EXITED` if the worker exits meanwhile.

    Args:
        socket: the worker's socket.
        message: the message.
        connect_timeout: seconds to wait for a worker that is starting.
    """
    try:
        with _connect(socket, connect_timeout) as worker:
            worker.send_bytes(message.to_bytes())
            return Message.from_bytes(worker.recv_bytes(_MAX_BYTES))
    except (EOFError, OSError):
        return Message("reply", {"reason": PROCESS_EXITED})


def serve(
    socket: str,
    handler: MessageHandler,
    should_stop: Callable[[], bool] = lambda: False,
    on_activity: Callable[[str], None] = lambda message_type: None,
) -> None:
    """Handle messages to a site worker one at a time; `on_activity` gets the type of each, and empty at its end."""
    Path(socket).unlink(missing_ok=True)
    with Listener(socket, "AF_UNIX") as listener:
        Path(socket).chmod(0o660)  # access is controlled by its folder
        while not should_stop():
            # The node may disconnect before the reply is ready; it then sends the message again.
            with suppress(EOFError, OSError, PayloadError), listener.accept() as connection:
                message = Message.from_bytes(connection.recv_bytes(_MAX_BYTES))
                on_activity(message.message_type)
                try:
                    reply = handler.reply(message)
                finally:
                    on_activity("")
                connection.send_bytes(reply.to_bytes())


def _connect(socket: str, timeout: float) -> Connection:
    end = time.monotonic() + timeout
    while True:
        try:
            return Client(socket, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(_RETRY_SECONDS)


def read_worker_settings(config: Mapping[str, Any]) -> WorkerSettings:
    """Return the role and folder of a site worker from its settings."""
    folder = Path(str(config["folder"]))
    return WorkerSettings(
        str(config["role"]), folder, str(config.get("study_hash", "")), str(config.get("group", ""))
    )


def import_function(name: str) -> Callable[..., Any]:
    """Import the ``module:function`` named in a site worker's settings, never in a message.

    >>> import_function("math:sqrt")(16.0)
    4.0
    """
    module, _, function = name.partition(":")
    try:
        imported: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        raise SettingsError(
            f"'{name}' cannot be imported", where="network", remedy="use the form package.module:function"
        ) from None
    return imported


def main(arguments: list[str]) -> None:
    """Run the site worker that a settings file names until the process is ended."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    end_with_parent()
    config: Mapping[str, Any] = json.loads(Path(arguments[0]).read_text())
    activity = Path(arguments[0]).with_suffix(".activity")

    def write_activity(message_type: str) -> None:
        activity.write_text(message_type)

    write_activity("")
    serve(str(config["socket"]), import_function(str(config["worker"]))(config), on_activity=write_activity)


if __name__ == "__main__":
    main(sys.argv[1:])
