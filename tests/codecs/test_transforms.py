"""Clipping, noise and error feedback."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import (
    Clip,
    CodecKey,
    ErrorFeedback,
    GaussianNoise,
    RawCodec,
    Stc,
    build_pipeline,
    parse_codec,
    with_error_feedback,
)
from abaton.errors import RefusedError, SettingsError
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout([Tensor("weight", (50, 40), TensorRole.DENSE), Tensor("bias", (50,), TensorRole.BIAS)])
KEY = CodecKey(b"round one", "north", b"only here")


def update(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)


def test_pipelines_are_flat_and_associative():
    one = build_pipeline(Clip(1.0), build_pipeline(ErrorFeedback(), Stc(0.01)))
    assert (
        one
        == build_pipeline(Clip(1.0), ErrorFeedback(), Stc(0.01))
        == with_error_feedback(build_pipeline(Clip(1.0), Stc(0.01)))
    )
    assert one.spec == "clip(norm=1.0) | error_feedback | stc(sparsity=0.01)"
    assert parse_codec(one.spec) == one


def test_clip_bounds_the_norm():
    pipeline = parse_codec("clip(norm=3) | raw")
    sent = pipeline.decode(pipeline.encode(update(1), LAYOUT, KEY, {})[0], LAYOUT, KEY)
    assert 2.999 < np.linalg.norm(sent.astype(np.float64)) <= 3
    short = (update(1) * 1e-3).astype(np.float32)
    np.testing.assert_array_equal(
        pipeline.decode(pipeline.encode(short, LAYOUT, KEY, {})[0], LAYOUT, KEY), short
    )


def test_noise_has_its_std_and_requires_a_secret():
    pipeline = parse_codec("gaussian_noise(std=0.5) | raw")
    noise = pipeline.decode(pipeline.encode(LAYOUT.zeros(), LAYOUT, KEY, {})[0], LAYOUT, KEY)
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    assert abs(noise.mean()) < 0.05
    with pytest.raises(RefusedError, match="secret"):
        pipeline.encode(LAYOUT.zeros(), LAYOUT, CodecKey(b"round one", "north"), {})
    other = CodecKey(b"round one", "north", b"another secret")
    assert pipeline.encode(LAYOUT.zeros(), LAYOUT, KEY, {}) != pipeline.encode(
        LAYOUT.zeros(), LAYOUT, other, {}
    )


def test_feedback_in_front_of_noise_is_refused():
    with pytest.raises(SettingsError, match="noise"):
        build_pipeline(ErrorFeedback(), GaussianNoise(1.0), RawCodec())
    assert build_pipeline(GaussianNoise(1.0), ErrorFeedback(), RawCodec()).is_stateful


@pytest.mark.parametrize(
    "components", [(), (Clip(1.0),), (RawCodec(), RawCodec()), (Clip(1.0), Clip(2.0), RawCodec())]
)
def test_invalid_pipelines_are_refused(components: tuple):
    with pytest.raises(SettingsError):
        build_pipeline(*components)


def test_error_feedback_sends_all_residuals():
    # In every round, the sum of decoded updates plus the residual is the sum of updates.
    pipeline = parse_codec("error_feedback | stc(sparsity=0.05, biases=sparse)")
    state, update_sum, decoded_sum = (
        pipeline.initial_state(LAYOUT),
        np.zeros(LAYOUT.size),
        np.zeros(LAYOUT.size),
    )
    for i in range(30):
        payload, state = pipeline.encode(update(i), LAYOUT, KEY, state)
        update_sum += update(i)
        decoded_sum += pipeline.decode(payload, LAYOUT, KEY)
        np.testing.assert_allclose(decoded_sum + state["error_feedback"], update_sum, atol=1e-4)


def test_missing_transform_state_is_refused():
    pipeline = parse_codec("error_feedback | raw")
    with pytest.raises(SettingsError, match="state"):
        pipeline.encode(update(1), LAYOUT, KEY, {})
