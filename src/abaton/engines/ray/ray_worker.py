"""Ray worker: runs one task with a learner rebuilt from the run's model, JSON values and its state.

A worker has no state of its own, so any worker of any machine can run any task. Model and codec are serialised by
Ray, as its functions are, once per worker. Texts of exceptions are not forwarded, since they may contain data of a
site. The site's policy and the learner's state stay with the engine.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton import __version__
from abaton.codecs import CodecPipeline, ModelDelta, missing_deltas
from abaton.engines.base import EvaluateTask, Task, TrainTask, code_for
from abaton.engines.model_transfer import VersionCache, apply_transfer, apply_update
from abaton.engines.reply_validation import encode_reply
from abaton.engines.task_handler import handle_task
from abaton.layout import Vector
from abaton.learners import Learner, SiteReply, TrainingMonitor
from abaton.models import Examples, Model
from abaton.training import train_settings_from_row

Arrays = dict[str, NDArray[Any]]
WorkerReply = tuple[bytes, bytes, Arrays]
"""Reply of a worker: a header (JSON), the encoded update, and the learner's new state."""

TrainingSetup = tuple[type[Learner], Model, CodecPipeline, CodecPipeline | None]
"""Learner class, model, codec of updates, and codec of the downlink."""

_setups: OrderedDict[str, TrainingSetup] = OrderedDict()
_versions: dict[str, VersionCache[Vector]] = {}  # of the latest run on this worker
_MAX_SETUPS = 4  # cached, since some models are slow to build


@dataclass(frozen=True, slots=True, eq=False)
class RayModelRef:
    """Model of a run with a compressed downlink; large parts are references.

    Attributes:
        run: the run's id, so that a worker does not use a version of another run.
        version: the version of the community model that the model is, or was trained from.
        start: a reference to that version.
        deltas: references to the deltas that lead to it, by version.
        trained_by, payload: the learner whose model it is, if any, and its update.
    """

    run: str
    version: int
    start: Sequence[Any]
    deltas: Mapping[int, Any]
    trained_by: str
    payload: bytes


def pack_examples(learner: Learner) -> Arrays:
    """Return a learner's examples as arrays for the object store of Ray workers, without identifiers."""
    splits = {"train": learner.examples, "validation": learner.validation}
    return {
        f"{split}/{axis}": values
        for split, examples in splits.items()
        if examples is not None
        for axis, values in (("x", examples.x), ("y", examples.y), ("weights", examples.weights))
        if values is not None
    }


class CommittedStepsActor:
    """Actor on the cluster with the number of committed steps, read by learners while they train."""

    def __init__(self) -> None:
        self._committed_steps = 0

    def write(self, committed_steps: int) -> None:
        """Store the number of committed steps in the actor that Ray workers read."""
        self._committed_steps = max(self._committed_steps, committed_steps)

    def read(self) -> int:
        """Return the number of committed steps to a Ray worker."""
        return self._committed_steps


def learner_values(learner: Learner) -> dict[str, Any]:
    """Return the JSON values from which a Ray worker rebuilds a learner, without examples, model and codec."""
    return {
        "name": learner.name,
        "seed": learner.seed,
        "secret": learner.secret.hex(),
        "max_batch_size": learner.max_batch_size,
        "has_secret_order": learner.has_secret_order,
    }


def run_task(
    request: bytes,
    setup: Sequence[Any],
    examples: Arrays,
    model: Vector | RayModelRef,
    state: Arrays,
    progress: Any = None,
) -> WorkerReply:
    """Run one task in a Ray worker with a learner rebuilt from references.

    Args:
        request: the task as JSON: its id, the learner's values, and for training its version and settings.
        setup: a reference to model and codec, resolved once per worker.
        examples: the learner's examples.
        model: the model to train from or to evaluate, as a vector or as deltas.
        state: the learner's state.
        progress: the actor with the number of committed steps, if the training reads it.
    """
    header, bytes_read = json.loads(request), 0
    try:
        learner = _learner(header["learner"], setup[0], examples)
        vector, bytes_read = load_model(learner, model)
        task = _task(header, vector)
        learner.restore({name: np.array(values) for name, values in state.items()})
        monitor = TrainingMonitor(
            time.monotonic, lambda: _committed_steps(header["committed_steps"], progress)
        )
        reply = handle_task(learner, task, monitor)
        new_state = dict(learner.local_state) if isinstance(task, TrainTask) else {}
    except Exception as error:
        reply, new_state = SiteReply({"task_id": header["task_id"], "reason": code_for(error)}), {}
    reply_header = {**reply.header, "software": __version__, "downlink_bytes": bytes_read}
    return encode_reply(SiteReply(reply_header)), reply.payload, new_state


def load_model(learner: Learner, model: Vector | RayModelRef) -> tuple[Vector, int]:
    """Load a model in a Ray worker; of a version that it has, only deltas are read; return the bytes read too."""
    import ray

    if not isinstance(model, RayModelRef):
        return model, model.nbytes
    if model.run not in _versions:
        _versions.clear()
        _versions[model.run] = VersionCache()
    versions = _versions[model.run]
    missing = missing_deltas((ModelDelta(version, b"") for version in model.deltas), versions, model.version)
    if missing is None:
        start = np.array(ray.get(model.start[0]))
        bytes_read = start.nbytes
    else:
        numbers = [delta.version for delta in missing]
        encoded = ray.get([model.deltas[version] for version in numbers])
        bytes_read = sum(map(len, encoded))
        deltas = [ModelDelta(version, data) for version, data in zip(numbers, encoded, strict=True)]
        start = apply_transfer(learner, versions[model.version - len(missing)], deltas)
    versions.put(model.version, start)
    vector = apply_update(learner, start, model.version, model.trained_by, model.payload)
    return vector, bytes_read + len(model.payload)


def _task(header: Mapping[str, Any], model: Vector) -> Task:
    task_id, name = header["task_id"], header["learner"]["name"]
    if "settings" not in header:
        return EvaluateTask(task_id, name, model)
    return TrainTask(task_id, name, header["version"], model, train_settings_from_row(header["settings"]))


def _learner(values: Mapping[str, Any], setup_ref: Any, arrays: Arrays) -> Learner:
    learner_class, model, codec, downlink = _training_setup(setup_ref)
    train, validation = _examples(arrays, "train"), _examples(arrays, "validation")
    assert train is not None
    secret = bytes.fromhex(values["secret"])
    learner = learner_class(
        values["name"],
        model,
        train,
        codec,
        values["seed"],
        validation,
        secret=secret,
        max_batch_size=values["max_batch_size"],
    )
    learner.downlink, learner.has_secret_order = downlink, values["has_secret_order"]
    return learner


def _training_setup(ref: Any) -> TrainingSetup:
    import ray

    name = ref.hex()
    if name not in _setups:
        _setups[name] = ray.get(ref)
        if len(_setups) > _MAX_SETUPS:
            _setups.popitem(last=False)
    _setups.move_to_end(name)
    return _setups[name]


def _examples(arrays: Arrays, split: str) -> Examples | None:
    if f"{split}/x" not in arrays:
        return None
    # A copy, since arrays in the object store are read-only, and PyTorch warns about these.
    weights = arrays.get(f"{split}/weights")
    return Examples(
        np.array(arrays[f"{split}/x"]),
        np.array(arrays[f"{split}/y"]),
        None if weights is None else np.array(weights),
    )


def _committed_steps(sent_steps: int, progress: Any) -> int:
    import ray

    if progress is not None:
        with contextlib.suppress(ray.exceptions.RayError):
            return max(sent_steps, int(ray.get(progress.read.remote(), timeout=5.0)))
    return sent_steps
