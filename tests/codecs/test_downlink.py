"""Downlink: all learners have the controller's bits, residuals are sent later, and no codec diverges."""

from __future__ import annotations

import json

import numpy as np
import pytest

from abaton.codecs import (
    CodecKey,
    Downlink,
    ModelDelta,
    apply_deltas,
    make_downlink,
    missing_deltas,
    parse_codec,
)
from abaton.errors import PayloadError, SettingsError
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout([Tensor("weight", (60, 50), TensorRole.DENSE), Tensor("bias", (50,), TensorRole.BIAS)])
SPECS = (
    "stc(sparsity=0.02)",
    "raw",
    "fp16",
    "quicfl(bits=1)",
    "quicfl(bits=4)",
    "eden(bits=1)",
    "ecdq(bits=1)",
    "hadamard(bits=1)",
    "qsgd(bits=1)",
)


def key(version: int) -> bytes:
    return b"version %d" % version


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)


def published(spec: str, aggregates: list[np.ndarray]) -> Downlink:
    downlink = Downlink(parse_codec(spec), LAYOUT, noise(0))
    for aggregate in aggregates:
        downlink.publish(aggregate, key)
    return downlink


@pytest.mark.parametrize("spec", SPECS)
def test_learners_that_apply_deltas_have_the_controllers_bits(spec: str):
    downlink = Downlink(parse_codec(spec), LAYOUT, noise(0))
    learners = {"steady": (0, downlink.model), "late": (0, downlink.model)}
    for version in range(1, 7):
        downlink.publish(noise(version), key)
        for learner, missing in (("steady", ()), ("late", (1, 2, 4, 5))):
            if version not in missing:
                base, model = learners[learner]
                deltas = missing_deltas(downlink.recent_deltas, {base}, version)
                if deltas is None:  # larger than the model
                    learners[learner] = version, downlink.model
                else:
                    learners[learner] = version, apply_deltas(downlink.pipeline, LAYOUT, model, deltas, key)
    for version, model in learners.values():
        assert version == 6
        assert model.tobytes() == downlink.model.tobytes()


@pytest.mark.parametrize("spec", SPECS)
def test_published_model_converges_to_a_constant_aggregate(spec: str):
    aggregate = noise(9)
    start_distance = np.linalg.norm(aggregate - noise(0))
    end_distance = np.linalg.norm(aggregate - published(spec, [aggregate] * 60).model)
    assert end_distance < (0.9 if spec in ("hadamard(bits=1)", "qsgd(bits=1)") else 0.05) * start_distance


def test_downlink_equals_error_feedback_of_stc():
    """Sattler et al. 2019: the server's residual is added to the mean of the updates before compression."""
    spec, start = "stc(sparsity=0.02)", noise(0)
    downlink, aggregate = Downlink(parse_codec(spec), LAYOUT, start), start
    pipeline = parse_codec(f"error_feedback | {spec}")
    state, model = pipeline.initial_state(LAYOUT), start
    for version in range(1, 9):
        change = noise(version)
        aggregate = aggregate + change
        downlink.publish(aggregate, key)
        payload, state = pipeline.encode(change, LAYOUT, CodecKey(b"any", "server"), state)
        model = model + pipeline.decode(payload, LAYOUT, CodecKey(b"any", "server"))
        np.testing.assert_allclose(downlink.model, model, atol=1e-4)
        np.testing.assert_allclose(aggregate - downlink.model, state["error_feedback"], atol=1e-4)


def test_equal_aggregates_give_equal_bytes_and_another_key_gives_others():
    one, two = (published("quicfl(bits=2)", [noise(1), noise(2)]) for _ in range(2))
    assert [d.data for d in one.recent_deltas] == [d.data for d in two.recent_deltas]
    one.publish(noise(3), lambda version: b"another key")
    two.publish(noise(3), key)
    assert one.recent_deltas[-1].data != two.recent_deltas[-1].data


def test_retained_deltas_are_smaller_than_the_model():
    downlink = published("ecdq(bits=4)", [noise(i) for i in range(1, 30)])
    sizes = [len(delta.data) for delta in downlink.recent_deltas]
    assert 0 < sum(sizes) < 4 * LAYOUT.size <= sum(sizes) + sizes[0]
    assert [delta.version for delta in downlink.recent_deltas][-1] == downlink.version == 29
    assert missing_deltas(downlink.recent_deltas, {1}, 29) is None, (
        "a learner that missed many versions gets the model"
    )
    assert published("raw", [noise(1)]).recent_deltas == (), (
        "a delta that is not smaller than the model is not retained"
    )


@pytest.mark.parametrize("spec", ["stc(sparsity=0.02)", "ecdq(bits=2)"])
def test_saved_downlink_resumes_with_the_same_bits(spec: str):
    downlink = published(spec, [noise(i) for i in range(1, 5)])
    values, arrays = downlink.save()
    restored = Downlink(parse_codec(spec), LAYOUT, LAYOUT.zeros())
    restored.load((json.loads(json.dumps(values)), {n: a.copy() for n, a in arrays.items()}))
    for aggregate in (noise(5), noise(6)):
        downlink.publish(aggregate, key)
        restored.publish(aggregate, key)
        assert restored.model.tobytes() == downlink.model.tobytes()
        assert restored.recent_deltas == downlink.recent_deltas


def test_error_feedback_is_accepted_and_has_no_effect():
    assert make_downlink("error_feedback | stc(sparsity=0.02)") == make_downlink("stc(sparsity=0.02)")
    assert make_downlink(None) is None


@pytest.mark.parametrize(
    "spec", ["clip(norm=1.0) | stc(sparsity=0.1)", "gaussian_noise(std=1.0) | error_feedback | raw"]
)
def test_transforms_for_updates_are_refused(spec: str):
    with pytest.raises(SettingsError, match="applies to learners' updates") as raised:
        make_downlink(spec)
    assert "downlink" in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xffgarbage"])
def test_invalid_delta_is_refused(data: bytes):
    with pytest.raises(PayloadError):
        apply_deltas(parse_codec("stc(sparsity=0.02)"), LAYOUT, noise(0), [ModelDelta(1, data)], key)
