"""Steps in front of a codec: clipping, noise for differential privacy, and error feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs.base import KeyPurpose, Written, check_number
from abaton.codecs.pipeline import Pipeline, chain
from abaton.errors import Refused

if TYPE_CHECKING:
    from abaton.codecs.base import Codec, Key
    from abaton.layout import Layout, Vector


@dataclass(frozen=True, slots=True)
class Clip(Written):
    """Shortens an update whose length (Euclidean norm) exceeds ``norm``; bounds what one learner can do."""

    norm: float

    name: ClassVar[str] = "clip"
    stateful: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number("norm", self.norm, 0, 1e30, above=True)

    def before(self, update: Vector, layout: Layout, key: Key, state: Vector | None) -> Vector:
        """The update, scaled down if it is too long; never longer than ``norm`` after rounding."""
        wide = layout.check(update, whose="update").astype(np.float64)
        length = float(np.linalg.norm(wide))
        if length <= self.norm:
            return update
        # One part in a million shorter, so that rounding to float32 cannot pass the bound.
        return (wide * (self.norm * (1 - 1e-6) / length)).astype(np.float32)

    def after(self, passed_on: Vector, decoded: Vector) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class GaussianNoise(Written):
    """Adds normal noise with standard deviation ``std`` to every number, for differential privacy.

    The noise comes from the key's ``secret``, which the server never sees: a server that could compute
    the noise could subtract it.
    """

    std: float

    name: ClassVar[str] = "gaussian_noise"
    stateful: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("std", self.std, 0, 1e30)

    def before(self, update: Vector, layout: Layout, key: Key, state: Vector | None) -> Vector:
        """The update with noise."""
        if not key.secret:
            raise Refused(
                "noise without a secret protects nobody: the server could compute it",
                where=f"learner '{key.learner}'",
                remedy="give the learner's key a secret that stays at the site",
            )
        noise = np.random.Generator(np.random.PCG64(key.derive(KeyPurpose.NOISE))).standard_normal(
            layout.size
        )
        return (layout.check(update, whose="update") + self.std * noise).astype(np.float32)

    def after(self, passed_on: Vector, decoded: Vector) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class ErrorFeedback(Written):
    """Keeps what the codec lost, and adds it to the next update.

    The residual is (update + old residual) - decoded, so that over many rounds everything arrives. It
    must live at the learner from round to round; a learner that is drawn once and never again should
    use an unbiased codec instead.
    """

    name: ClassVar[str] = "error_feedback"
    stateful: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def before(self, update: Vector, layout: Layout, key: Key, state: Vector | None) -> Vector:
        """The update and what was left over."""
        assert state is not None
        return layout.check(update, whose="update") + state

    def after(self, passed_on: Vector, decoded: Vector) -> Vector:
        """What is left over now."""
        return passed_on - decoded


def with_error_feedback(codec: Codec | Pipeline) -> Pipeline:
    """A codec, or a chain, that keeps what its codec loses; steps already there stay in front.

    >>> from abaton.codecs.stc import Stc
    >>> with_error_feedback(chain(Clip(1.0), Stc(0.01))).spec
    'clip(norm=1.0) | error_feedback | stc(sparsity=0.01)'
    """
    whole = chain(codec)
    return chain(*whole.steps, ErrorFeedback(), whole.codec)
