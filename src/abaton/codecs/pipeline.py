"""Pipelines: a codec with transforms in front of it.

``build_pipeline(clip, feedback, codec)`` applies each transform in order, then the codec. Laws:
``build_pipeline(codec)`` writes the codec's bytes; ``build_pipeline(a, build_pipeline(b, codec))`` equals
``build_pipeline(a, b, codec)``.

Transforms and codec apply to trained tensors only. Statistics of normalisation layers follow them as a second, ``raw``
payload, since a sparse or quantised variance is wrong for every later input; frozen tensors are not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np

from abaton.codecs.base import USER_CODES, Codec, DecodedSum
from abaton.codecs.float_formats import RawCodec
from abaton.codecs.payload_format import split_payload
from abaton.errors import PayloadError, SettingsError
from abaton.protocols import require_protocol

if TYPE_CHECKING:
    from abaton.codecs.base import Accumulator, CodecKey
    from abaton.layout import Layout, Vector

TransformState = Mapping[str, "Vector"]
"""State of a learner's transforms between rounds: one flat vector by transform name."""


class Transform(Protocol):
    """Operation on an update before it is encoded."""

    name: ClassVar[str]
    is_stateful: ClassVar[bool]
    is_unbiased: ClassVar[bool]

    @property
    def spec(self) -> str:
        """Spec of a pipeline's transform (interface)."""

    def apply(self, update: Vector, layout: Layout, key: CodecKey, state: Vector | None) -> Vector:
        """Return the update after this step of a pipeline (interface of transforms); the input is not changed."""

    def next_state(self, transformed: Vector, decoded: Vector) -> Vector | None:
        """Return the next state of a pipeline's stateful transform, given the update that the server decodes."""


@dataclass(frozen=True, slots=True)
class CodecPipeline:
    """Transforms and a codec, as in a codec spec.

    >>> import numpy as np
    >>> from abaton.codecs import CodecKey, parse_codec
    >>> from abaton.layout import Layout, Tensor, TensorRole
    >>> layout = Layout([Tensor("weight", (2,), TensorRole.DENSE)])
    >>> pipeline, key = parse_codec("raw"), CodecKey(b"round one", "north")
    >>> payload, state = pipeline.encode(np.float32([1, 2]), layout, key, pipeline.initial_state(layout))
    >>> pipeline.decode(payload, layout, key).tolist(), len(payload)
    ([1.0, 2.0], 36)
    """

    transforms: tuple[Transform, ...]
    codec: Codec

    @property
    def spec(self) -> str:
        """Spec of the codec pipeline; parsing it returns an equal pipeline."""
        return " | ".join([*(transform.spec for transform in self.transforms), self.codec.spec])

    @property
    def is_unbiased(self) -> bool:
        """Whether the codec and all transforms of the pipeline are unbiased."""
        return self.codec.is_unbiased and all(transform.is_unbiased for transform in self.transforms)

    @property
    def is_stateful(self) -> bool:
        """Whether a transform of the pipeline makes a learner store state between rounds."""
        return any(transform.is_stateful for transform in self.transforms)

    def initial_state(self, layout: Layout) -> TransformState:
        """Return the state of a pipeline's transforms before a learner's first update."""
        self.check_layout(layout)
        return {
            transform.name: layout.trained.zeros() for transform in self.transforms if transform.is_stateful
        }

    def check_layout(self, layout: Layout) -> None:
        """Raise an error if the pipeline adds noise for differential privacy but the model has statistics."""
        if layout.statistics.size and any(
            transform.name == "gaussian_noise" for transform in self.transforms
        ):
            raise SettingsError(
                f"the statistic '{layout.statistics.tensors[0].name}' would be sent without noise",
                where="codec with gaussian_noise",
                remedy="use GroupNorm or LayerNorm instead of BatchNorm, or personal layers ('role:statistic')",
            )

    def encode(
        self, update: Vector, layout: Layout, key: CodecKey, state: TransformState
    ) -> tuple[bytes, TransformState]:
        """Apply the pipeline's transforms and codec; return the payload, and the state to store before sending it."""
        if layout.trained is not layout:
            _check_frozen(layout, update)
            trained, statistics = _split_update(layout, update)
            payload, next_state = self.encode(trained, layout.trained, key, state)
            return payload + _encode_statistics(layout, statistics, key), next_state
        vector, transformed = update, {}
        for transform in self.transforms:
            transform_state = self._state(state, transform, layout) if transform.is_stateful else None
            vector = transform.apply(vector, layout, key, transform_state)
            transformed[transform.name] = vector
        payload = self.codec.encode(vector, layout, key)
        if not self.is_stateful:
            return payload, {}
        decoded = self.codec.decode(payload, layout, key)
        next_states = {
            transform.name: transform.next_state(transformed[transform.name], decoded)
            for transform in self.transforms
        }
        return payload, {
            name: transform_state
            for name, transform_state in next_states.items()
            if transform_state is not None
        }

    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        """Decode a payload with the pipeline's codec: the update as the server sees it."""
        if layout.trained is not layout:
            trained, statistics = _split_statistics(layout, payload)
            update = layout.zeros()
            update[: layout.trained.size] = self.codec.decode(trained, layout.trained, key)
            if statistics:
                values = _STATISTICS_CODEC.decode(statistics, layout.statistics, key)
                update[layout.trained.size : layout.update_size] = values
            return update
        return self.codec.decode(payload, layout, key)

    def accumulator(self, layout: Layout, round_key: bytes) -> Accumulator:
        """Return an empty sum of the pipeline's codec for one round."""
        if layout.trained is not layout:
            return _SumWithStatistics(self.codec, layout, round_key)
        return self.codec.accumulator(layout, round_key)

    @staticmethod
    def _state(state: TransformState, transform: Transform, layout: Layout) -> Vector:
        if transform.name not in state:
            raise SettingsError(
                f"the learner's state has no '{transform.name}'",
                remedy="use pipeline.initial_state(layout) first",
            )
        return layout.check(state[transform.name], label=f"state of {transform.name}")


_STATISTICS_CODEC = RawCodec()


class _SumWithStatistics:
    """Sum of the codec for trained tensors, and of decoded statistics; the mean of frozen tensors is 0."""

    def __init__(self, codec: Codec, layout: Layout, round_key: bytes) -> None:
        self.layout = layout
        self._trained = codec.accumulator(layout.trained, round_key)
        self._statistics = DecodedSum(_STATISTICS_CODEC, layout.statistics, round_key)

    def add(self, payload: bytes, weight: float, learner: str) -> None:
        """Add one learner's payload of trained tensors and statistics to the pipeline's sum."""
        trained, statistics = _split_statistics(self.layout, payload)
        checked = DecodedSum(_STATISTICS_CODEC, self.layout.statistics, self._statistics.round_key)
        if statistics:
            checked.add(statistics, weight, learner)
        self._trained.add(trained, weight, learner)
        self._statistics.merge(checked)

    def merge(self, other: Self) -> None:
        """Add another sum of the pipeline's trained tensors and statistics."""
        self._trained.merge(other._trained)
        self._statistics.merge(other._statistics)

    def mean(self) -> Vector:
        """Return the weighted mean of the pipeline's updates, with zeros for frozen tensors."""
        update, start = self.layout.zeros(), self.layout.trained.size
        update[:start] = self._trained.mean()
        if self.layout.statistics.size:
            update[start : self.layout.update_size] = self._statistics.mean()
        return update


def _split_update(layout: Layout, update: Vector) -> tuple[Vector, Vector]:
    start = layout.trained.size
    return update[:start], update[start : layout.update_size]


def _check_frozen(layout: Layout, update: Vector) -> None:
    """Raise an error if an update changes frozen tensors, which the pipeline does not send."""
    layout.check(update, label="update")
    if np.any(update[layout.update_size :]):
        raise SettingsError(
            "the update changes a frozen tensor",
            where="codec",
            remedy="train only tensors that are not frozen",
        )


def _encode_statistics(layout: Layout, statistics: Vector, key: CodecKey) -> bytes:
    return _STATISTICS_CODEC.encode(statistics, layout.statistics, key) if layout.statistics.size else b""


def _split_statistics(layout: Layout, payload: bytes) -> tuple[bytes, bytes]:
    """Return the pipeline's payload of trained tensors and that of statistics, which is empty without them."""
    if not layout.statistics.size:
        return payload, b""
    trained, statistics = split_payload(payload)
    if not statistics:
        raise PayloadError("the payload has no statistics", remedy="use the study's model at every site")
    return trained, statistics


def build_pipeline(*components: Transform | Codec | CodecPipeline) -> CodecPipeline:
    """Return transforms and, last, a codec or another pipeline as one flat pipeline."""
    if not components or not hasattr(components[-1], "decode"):
        raise SettingsError("the pipeline does not end with a codec", remedy="put a codec such as raw last")
    *transforms, last = components
    if any(hasattr(transform, "decode") for transform in transforms):
        raise SettingsError(
            "the pipeline has more than one codec",
            remedy="use one codec, and transforms such as clip before it",
        )
    tail = last if isinstance(last, CodecPipeline) else CodecPipeline((), last)  # type: ignore[arg-type]
    pipeline = CodecPipeline((*transforms, *tail.transforms), tail.codec)  # type: ignore[arg-type]
    _check_user_codec(pipeline.codec)
    names = [transform.name for transform in pipeline.transforms]
    if len(set(names)) < len(names):
        raise SettingsError("a transform occurs twice in the pipeline", remedy="use each transform once")
    order = [name for name in names if name in ("error_feedback", "gaussian_noise")]
    if order == ["error_feedback", "gaussian_noise"]:
        raise SettingsError(
            "error_feedback before gaussian_noise would remove the noise in the next round",
            remedy="write gaussian_noise first, then error_feedback",
        )
    return pipeline


def _check_user_codec(codec: Codec) -> None:
    """Raise an error for a pipeline whose user-defined codec is invalid or has a reserved code."""
    if type(codec).__module__.startswith("abaton."):
        return
    require_protocol(codec, Codec, name="codec", where="pipeline", known="a codec such as RawCodec()")
    if not is_dataclass(codec):
        raise SettingsError(
            f"the codec '{codec.name}' is not a dataclass",
            remedy="decorate its class with @dataclass(frozen=True)",
        )
    if codec.code not in USER_CODES:
        raise SettingsError(
            f"the codec '{codec.name}' has the code {codec.code}",
            remedy=f"use a code from {USER_CODES[0]} to {USER_CODES[-1]}; the others are reserved",
        )
