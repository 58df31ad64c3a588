"""Transforms before a codec: clipping, Gaussian noise for differential privacy, and error feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs.base import KeyPurpose, SpecifiedComponent, check_number
from abaton.codecs.pipeline import CodecPipeline, build_pipeline
from abaton.errors import RefusedError

if TYPE_CHECKING:
    from abaton.codecs.base import Codec, CodecKey
    from abaton.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class Clip(SpecifiedComponent):
    """Clipping of an update to the Euclidean norm ``norm``, which bounds the influence of one learner."""

    norm: float

    name: ClassVar[str] = "clip"
    is_stateful: ClassVar[bool] = False
    is_unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number("norm", self.norm, 0, 1e30, exclusive=True)

    def apply(self, update: Vector, layout: Layout, key: CodecKey, state: Vector | None) -> Vector:
        """Clip the update to at most ``norm`` after rounding (transform ``clip``)."""
        precise = layout.check(update, label="update").astype(np.float64)
        norm = float(np.linalg.norm(precise))
        if norm <= self.norm:
            return update
        # Reduced by one part in a million, so that rounding to float32 cannot exceed the bound.
        return (precise * (self.norm * (1 - 1e-6) / norm)).astype(np.float32)

    def next_state(self, transformed: Vector, decoded: Vector) -> None:
        """Return no state: the ``clip`` transform keeps nothing."""


@dataclass(frozen=True, slots=True)
class GaussianNoise(SpecifiedComponent):
    """Gaussian noise with standard deviation ``std`` on every value, for differential privacy.

    The noise is derived from the key's ``secret``, which the server does not have: a server that could compute
    the noise could subtract it.
    """

    std: float

    name: ClassVar[str] = "gaussian_noise"
    is_stateful: ClassVar[bool] = False
    is_unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("std", self.std, 0, 1e30)

    def apply(self, update: Vector, layout: Layout, key: CodecKey, state: Vector | None) -> Vector:
        """Return the update with Gaussian noise (transform ``gaussian_noise``)."""
        if not key.secret:
            raise RefusedError(
                "the learner's key has no secret, so the server could compute and subtract the noise",
                where=f"learner '{key.learner}'",
                remedy="give the key a secret that stays at the site",
            )
        noise = np.random.Generator(np.random.PCG64(key.derive(KeyPurpose.NOISE))).standard_normal(
            layout.size
        )
        return (layout.check(update, label="update") + self.std * noise).astype(np.float32)

    def next_state(self, transformed: Vector, decoded: Vector) -> None:
        """Return no state: the ``gaussian_noise`` transform keeps nothing."""


@dataclass(frozen=True, slots=True)
class ErrorFeedback(SpecifiedComponent):
    """Error feedback: the residual of the codec is added to the next update.

    The residual is (update + old residual) - decoded, so that over many rounds the sum of decoded updates follows the
    sum of updates. It is stored at the learner between rounds; for learners that are sampled only once, use an
    unbiased codec instead.
    """

    name: ClassVar[str] = "error_feedback"
    is_stateful: ClassVar[bool] = True
    is_unbiased: ClassVar[bool] = True

    def apply(self, update: Vector, layout: Layout, key: CodecKey, state: Vector | None) -> Vector:
        """Return the update plus the residual (transform ``error_feedback``)."""
        assert state is not None
        return layout.check(update, label="update") + state

    def next_state(self, transformed: Vector, decoded: Vector) -> Vector:
        """Return the new residual of the ``error_feedback`` transform."""
        return transformed - decoded


def with_error_feedback(codec: Codec | CodecPipeline) -> CodecPipeline:
    """Return a codec or pipeline with the ``error_feedback`` transform directly before the codec.

    >>> from abaton.codecs.stc import Stc
    >>> with_error_feedback(build_pipeline(Clip(1.0), Stc(0.01))).spec
    'clip(norm=1.0) | error_feedback | stc(sparsity=0.01)'
    """
    pipeline = build_pipeline(codec)
    return build_pipeline(*pipeline.transforms, ErrorFeedback(), pipeline.codec)
