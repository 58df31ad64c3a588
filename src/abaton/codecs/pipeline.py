"""Pipelines: a codec with transforms in front of it.

``build_pipeline(clip, feedback, codec)`` applies each transform in order, then the codec. Laws:
``build_pipeline(codec)`` writes the codec's bytes; ``build_pipeline(a, build_pipeline(b, codec))`` equals
``build_pipeline(a, b, codec)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from abaton.codecs.base import USER_CODES, Codec
from abaton.errors import SettingsError
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
        return {transform.name: layout.zeros() for transform in self.transforms if transform.is_stateful}

    def encode(
        self, update: Vector, layout: Layout, key: CodecKey, state: TransformState
    ) -> tuple[bytes, TransformState]:
        """Apply the pipeline's transforms and codec; return the payload, and the state to store before sending it."""
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
        return self.codec.decode(payload, layout, key)

    def accumulator(self, layout: Layout, round_key: bytes) -> Accumulator:
        """Return an empty sum of the pipeline's codec for one round."""
        return self.codec.accumulator(layout, round_key)

    @staticmethod
    def _state(state: TransformState, transform: Transform, layout: Layout) -> Vector:
        if transform.name not in state:
            raise SettingsError(
                f"the learner's state has no '{transform.name}'",
                remedy="use pipeline.initial_state(layout) first",
            )
        return layout.check(state[transform.name], label=f"state of {transform.name}")


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
