"""Clipping, noise and error feedback."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import (
    Clip,
    ErrorFeedback,
    GaussianNoise,
    Key,
    Raw,
    Stc,
    chain,
    parse,
    with_error_feedback,
)
from abaton.errors import Refused, SettingsError
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout([Tensor("weight", (50, 40), Role.DENSE), Tensor("bias", (50,), Role.BIAS)])
KEY = Key(b"round one", "north", b"only here")


def update(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)


def test_chains_are_flat_and_associative():
    one = chain(Clip(1.0), chain(ErrorFeedback(), Stc(0.01)))
    assert (
        one
        == chain(Clip(1.0), ErrorFeedback(), Stc(0.01))
        == with_error_feedback(chain(Clip(1.0), Stc(0.01)))
    )
    assert one.spec == "clip(norm=1.0) | error_feedback | stc(sparsity=0.01)"
    assert parse(one.spec) == one


def test_clip_bounds_the_length():
    pipeline = parse("clip(norm=3) | raw")
    sent = pipeline.decode(pipeline.encode(update(1), LAYOUT, KEY, {})[0], LAYOUT, KEY)
    assert 2.999 < np.linalg.norm(sent.astype(np.float64)) <= 3
    short = (update(1) * 1e-3).astype(np.float32)
    np.testing.assert_array_equal(
        pipeline.decode(pipeline.encode(short, LAYOUT, KEY, {})[0], LAYOUT, KEY), short
    )


def test_noise_has_its_size_and_needs_a_secret():
    pipeline = parse("gaussian_noise(std=0.5) | raw")
    noise = pipeline.decode(pipeline.encode(LAYOUT.zeros(), LAYOUT, KEY, {})[0], LAYOUT, KEY)
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    assert abs(noise.mean()) < 0.05
    with pytest.raises(Refused, match="secret"):
        pipeline.encode(LAYOUT.zeros(), LAYOUT, Key(b"round one", "north"), {})
    other = Key(b"round one", "north", b"another secret")
    assert pipeline.encode(LAYOUT.zeros(), LAYOUT, KEY, {}) != pipeline.encode(
        LAYOUT.zeros(), LAYOUT, other, {}
    )


def test_feedback_in_front_of_noise_is_refused():
    with pytest.raises(SettingsError, match="noise"):
        chain(ErrorFeedback(), GaussianNoise(1.0), Raw())
    assert chain(GaussianNoise(1.0), ErrorFeedback(), Raw()).stateful


@pytest.mark.parametrize("parts", [(), (Clip(1.0),), (Raw(), Raw()), (Clip(1.0), Clip(2.0), Raw())])
def test_chains_that_make_no_sense_are_refused(parts: tuple):
    with pytest.raises(SettingsError):
        chain(*parts)


def test_with_error_feedback_everything_arrives():
    # The sum of what is decoded and the residual is the sum of what was given, round after round.
    pipeline = parse("error_feedback | stc(sparsity=0.05, biases=sparse)")
    memory, given, arrived = pipeline.start(LAYOUT), np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    for i in range(30):
        payload, memory = pipeline.encode(update(i), LAYOUT, KEY, memory)
        given += update(i)
        arrived += pipeline.decode(payload, LAYOUT, KEY)
        np.testing.assert_allclose(arrived + memory["error_feedback"], given, atol=1e-4)


def test_a_memory_must_fit():
    pipeline = parse("error_feedback | raw")
    with pytest.raises(SettingsError, match="memory"):
        pipeline.encode(update(1), LAYOUT, KEY, {})
