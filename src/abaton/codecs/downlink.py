"""Compressed downlink: the community model as a chain of deltas, one per version, the same for all learners.

As in STC (Sattler et al. 2019), the controller adds the delta that learners decode to the published model, not the
exact change, so controller and learners have the same bits. The next delta is computed from the published model to the
newest aggregate, which is error feedback with the residual (aggregate - model); the residual need not be stored.

Each delta starts with a byte that scales it in 256ths to the value closest to the aggregate. Without it a codec whose
error exceeds its input (unbiased codecs of one bit) would amplify its own error. For sparse ternary codecs the factor
is 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from abaton.codecs.base import CodecKey
from abaton.codecs.pipeline import CodecPipeline
from abaton.codecs.registry import parse_codec
from abaton.codecs.transforms import ErrorFeedback
from abaton.errors import PayloadError, SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abaton.layout import Layout, Vector

_SENDER = "\x1fcontroller"  # not a valid learner name; frozen: part of the bytes
_SCALE_STEPS = 256
_MAX_DELTAS = 256  # a learner that applies them all adds as many vectors

RoundKey = Callable[[int], bytes]
"""Function from the version of the community model to the round's key."""


def make_downlink(spec: str | CodecPipeline | None) -> CodecPipeline | None:
    """Return the pipeline of a downlink spec; None without a spec.

    `error_feedback` may precede the codec and has no effect, because deltas include it.

    >>> make_downlink("error_feedback | stc(sparsity=0.01)").spec, make_downlink(None)
    ('stc(sparsity=0.01)', None)

    Raises:
        SettingsError: The codec is unknown, or the spec has transforms that apply to updates only.
    """
    if spec is None:
        return None
    pipeline = parse_codec(spec) if isinstance(spec, str) else spec
    if transforms := [
        transform.name for transform in pipeline.transforms if transform.name != ErrorFeedback.name
    ]:
        raise SettingsError(
            f"the transform '{transforms[0]}' applies to learners' updates, not to community models",
            where=f"downlink '{pipeline.spec}'",
            remedy=f"move it to the codec of updates, and use {pipeline.codec.spec} here",
        )
    return CodecPipeline((), pipeline.codec)


@dataclass(frozen=True, slots=True)
class ModelDelta:
    """Change of the published model from one version to the next.

    Attributes:
        version: The version after the change.
        data: One byte with the scale in 256ths minus one, then the codec's payload.
    """

    version: int
    data: bytes


class Downlink:
    """Controller side of the downlink: the published model and the recent deltas.

    Args:
        pipeline: Codec of the deltas.
        layout: Layout of the model.
        model: The initial model, which is sent uncompressed.

    Attributes:
        model: The newest published version, from which learners train and which is the result of the run.
        version: Its number.
        recent_deltas: The newest deltas in order, limited to a total size below that of the model.

    >>> from abaton.codecs import parse_codec
    >>> from abaton.layout import Layout, Tensor, TensorRole
    >>> layout, key = Layout([Tensor("weight", (100,), TensorRole.DENSE)]), lambda version: b"version %d" % version
    >>> downlink = Downlink(parse_codec("stc(sparsity=0.01)"), layout, layout.zeros())
    >>> aggregate = layout.zeros(); aggregate[:2] = 3, 1
    >>> downlink.publish(aggregate, key)
    >>> downlink.model[:3].tolist(), downlink.version
    ([3.0, 0.0, 0.0], 1)
    >>> downlink.publish(aggregate, key)  # sends the residual
    >>> downlink.model[:3].tolist()
    [3.0, 1.0, 0.0]
    >>> apply_deltas(downlink.pipeline, layout, layout.zeros(), downlink.recent_deltas, key)[:3].tolist()
    [3.0, 1.0, 0.0]
    """

    def __init__(self, pipeline: CodecPipeline, layout: Layout, model: Vector) -> None:
        self.pipeline, self.layout = pipeline, layout
        self.model = layout.check(model, label="the initial model")
        self.version, self.recent_deltas = 0, tuple[ModelDelta, ...]()

    def publish(self, aggregate: Vector, round_key: RoundKey) -> None:
        """Publish the next version over the downlink: add the encoded change to the published model."""
        version, change = self.version + 1, aggregate - self.model
        key = _key(round_key, version)
        payload, _ = self.pipeline.encode(change, self.layout, key, {})
        trained = slice(0, self.layout.trained.size)
        scale = _best_scale(change[trained], self.pipeline.decode(payload, self.layout, key)[trained])
        delta = ModelDelta(version, bytes([scale - 1]) + payload)
        model = apply_deltas(self.pipeline, self.layout, self.model, (delta,), round_key)
        self.model = self.layout.check(model, label="the published model")
        self.version, self.recent_deltas = (
            version,
            _retained_deltas((*self.recent_deltas, delta), 4 * self.layout.size),
        )

    def save(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return values and arrays from which `load` restores the downlink's model and deltas."""
        arrays = {f"delta/{d.version}": np.frombuffer(d.data, np.uint8) for d in self.recent_deltas}
        return {"version": self.version}, {"model": self.model, **arrays}

    def load(self, saved: tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]) -> None:
        """Restore the downlink's published model and recent deltas."""
        values, arrays = saved
        versions = sorted(int(name.partition("/")[2]) for name in arrays if name.startswith("delta/"))
        self.recent_deltas = tuple(ModelDelta(v, arrays[f"delta/{v}"].tobytes()) for v in versions)
        self.model = self.layout.check(arrays["model"], label="the published model")
        self.version = int(values["version"])


def apply_deltas(
    pipeline: CodecPipeline, layout: Layout, model: Vector, deltas: Iterable[ModelDelta], round_key: RoundKey
) -> Vector:
    """Return a learner's model after downlink deltas in order, with the same bits as the controller's model."""
    for delta in deltas:
        if not delta.data:
            raise PayloadError(
                f"the delta to version {delta.version} is empty", where="downlink", remedy="send it again"
            )
        scale = np.float32((delta.data[0] + 1) / _SCALE_STEPS)
        change = pipeline.decode(delta.data[1:], layout, _key(round_key, delta.version))
        scaled = scale * change
        scaled[layout.trained.size :] = change[layout.trained.size :]  # statistics are sent without loss
        model = model + scaled
    return model


def missing_deltas(
    deltas: Iterable[ModelDelta], held_versions: Iterable[int], version: int
) -> tuple[ModelDelta, ...] | None:
    """Return the fewest downlink deltas that lead from a held version to ``version``; None without a chain.

    >>> deltas = [ModelDelta(v, b"..") for v in (3, 4, 5)]
    >>> [d.version for d in missing_deltas(deltas, {1, 3}, 5)]
    [4, 5]
    >>> missing_deltas(deltas, {1, 6}, 5), missing_deltas(deltas, {5}, 5)
    (None, ())
    """
    delta_by_version = {delta.version: delta for delta in deltas}
    base = max((v for v in held_versions if v <= version), default=None)
    if base is None:
        return None
    missing = tuple(delta_by_version[v] for v in range(base + 1, version + 1) if v in delta_by_version)
    return missing if len(missing) == version - base else None


def _key(round_key: RoundKey, version: int) -> CodecKey:
    """Return the downlink's own codec key, so that updates from the same version do not share its rotation."""
    # frozen: part of the bytes
    return CodecKey(hashlib.blake2b(b"down", key=round_key(version), digest_size=32).digest(), _SENDER)


def _best_scale(change: Vector, decoded: Vector) -> int:
    """Return the scale of a downlink delta in 256ths that brings the decoded change closest to the change."""
    squared_norm = float(np.square(decoded, dtype=np.float64).sum())
    if not squared_norm:
        return _SCALE_STEPS
    best = float(np.multiply(change, decoded, dtype=np.float64).sum()) / squared_norm
    return min(_SCALE_STEPS, max(1, round(_SCALE_STEPS * best)))


def _retained_deltas(deltas: tuple[ModelDelta, ...], max_bytes: int) -> tuple[ModelDelta, ...]:
    """Return the newest downlink deltas whose total size is below that of the model."""
    total, first = 0, len(deltas)
    while first > max(0, len(deltas) - _MAX_DELTAS) and total + len(deltas[first - 1].data) < max_bytes:
        first -= 1
        total += len(deltas[first].data)
    return deltas[first:]
