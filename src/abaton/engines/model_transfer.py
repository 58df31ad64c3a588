"""Transfer of a task's model: the whole vector, or deltas from a version that the receiver has.

With a compressed downlink all receivers have the same bits of a version, so a version number identifies it. Both ends
retain the same few versions by the same rule (`VersionCache`), so the sender knows which deltas a receiver lacks.
Another learner's model is sent as that learner's update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from abaton.codecs import CodecKey, ModelDelta, apply_deltas, missing_deltas
from abaton.controller.aggregation import local_model
from abaton.engines.base import DeltaPath, Task
from abaton.errors import PayloadError
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.training import round_key

_EVALUATOR_VERSIONS, _TRAINER_VERSIONS = 4, 1  # training never uses an older version
_MAX_AGE = 64  # versions; older ones are no longer requested
T = TypeVar("T")


class VersionCache(Generic[T]):
    """A few retained versions, each with a value.

    An evaluator also receives models of older versions. Therefore an old version stays, from which deltas lead to the
    versions between; the version with the smallest distance between its two neighbours is removed.

    >>> versions = VersionCache[str]()
    >>> for version in (10, 40, 70, 74, 60): versions.put(version, f"model {version}")
    >>> sorted(versions), versions[60], 70 in versions
    ([10, 40, 60, 74], 'model 60', False)
    >>> versions.put(80, "model 80")
    >>> sorted(versions)
    [40, 60, 74, 80]
    """

    def __init__(self, *, evaluates: bool = True) -> None:
        self._limit, self._versions = _EVALUATOR_VERSIONS if evaluates else _TRAINER_VERSIONS, dict[int, T]()

    def put(self, version: int, value: T) -> None:
        """Add a version to the cache for model transfers, and remove another one if there are too many."""
        self._versions[version] = value
        if len(self._versions) <= self._limit:
            return
        versions = sorted(self._versions)
        gaps = {versions[i]: versions[i + 1] - versions[i - 1] for i in range(1, len(versions) - 1)}
        is_old = versions[-1] - versions[0] > _MAX_AGE
        del self._versions[versions[0] if is_old or not gaps else min(gaps, key=gaps.__getitem__)]

    def __getitem__(self, version: int) -> T:
        return self._versions[version]

    def __iter__(self) -> Iterator[int]:
        return iter(self._versions)

    def __contains__(self, version: object) -> bool:
        return version in self._versions


@dataclass(frozen=True, slots=True, eq=False)
class ModelTransfer:
    """Model transfer for one task.

    Attributes:
        model: a vector that is sent uncompressed: the task's model, or the version that the deltas start from.
        base: the version at the receiver that the deltas start from.
        deltas: the deltas from that version on.
        delta_path: how the task's model follows from versions; empty without a compressed downlink.
    """

    model: Vector | None
    base: int | None = None
    deltas: tuple[ModelDelta, ...] = ()
    delta_path: DeltaPath | None = None

    @property
    def size(self) -> int:
        """Number of bytes of the model transfer."""
        model_bytes = 0 if self.model is None else self.model.nbytes
        delta_bytes = sum(len(delta.data) for delta in self.deltas)
        return model_bytes + delta_bytes + len(self.delta_path.payload if self.delta_path else b"")

    def pack(self) -> tuple[dict[str, Any], bytes]:
        """Return the model transfer as JSON values and bytes."""
        model = b"" if self.model is None else np.ascontiguousarray(self.model, dtype="<f4").tobytes()
        header: dict[str, Any] = {"exact_bytes": len(model)}
        if self.delta_path is None:
            return header, model
        header |= {
            "version": self.delta_path.version,
            "base": self.base,
            "deltas": [[delta.version, len(delta.data)] for delta in self.deltas],
            "trained_by": self.delta_path.trained_by,
        }
        return header, b"".join([model, *(delta.data for delta in self.deltas), self.delta_path.payload])


def pack_model(task: Task, versions: VersionCache[None]) -> ModelTransfer:
    """Return the model transfer to a receiver with some versions; the task's version is added to these."""
    delta_path = task.delta_path
    if delta_path is None:
        return ModelTransfer(task.model)
    deltas = missing_deltas(delta_path.recent_versions, versions, delta_path.version)
    versions.put(delta_path.version, None)
    if deltas is None:
        return ModelTransfer(delta_path.start, delta_path=delta_path)
    return ModelTransfer(None, delta_path.version - len(deltas), deltas, delta_path)


def unpack_model(
    learner: Learner, versions: VersionCache[Vector], header: Mapping[str, Any], data: bytes
) -> Vector:
    """Return the model from a received transfer; the version it was trained from is added to the retained ones.

    Args:
        learner: the receiver, which has the codecs and the run's seed.
        versions: the versions retained here.
        header: the JSON values of `ModelTransfer.pack`.
        data: the bytes.
    """
    view = memoryview(data)
    exact, remainder = view[: header["exact_bytes"]], view[header["exact_bytes"] :]
    if "version" not in header:
        return np.frombuffer(exact, dtype="<f4")
    deltas = []
    for version, length in header["deltas"]:
        deltas.append(ModelDelta(version, bytes(remainder[:length])))
        remainder = remainder[length:]
    start = versions[header["base"]] if header["base"] is not None else np.frombuffer(exact, dtype="<f4")
    start = apply_transfer(learner, start, deltas)
    versions.put(header["version"], start)
    return apply_update(learner, start, header["version"], header["trained_by"], bytes(remainder))


def apply_transfer(
    learner: Learner, start: Vector, deltas: list[ModelDelta] | tuple[ModelDelta, ...]
) -> Vector:
    """Return a version after the deltas of a model transfer are applied."""
    if not deltas:
        return start
    if learner.downlink is None:
        raise PayloadError("a model delta was received, but this run has no downlink codec", where="downlink")
    return apply_deltas(
        learner.downlink,
        learner.model.layout,
        start,
        deltas,
        lambda version: round_key(learner.seed, version),
    )


def apply_update(learner: Learner, start: Vector, version: int, trained_by: str, payload: bytes) -> Vector:
    """Return the transferred model that a learner trained from a version; the version itself without a learner."""
    if not trained_by:
        return start
    key = CodecKey(round_key(learner.seed, version), trained_by)
    return local_model(learner.codec, learner.model.layout, start, payload, key)
