"""Statistics are sent without loss by every codec, frozen tensors not at all."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codecs.codec_specs import MIXED, SPECS

from abaton.codecs import CodecKey, Downlink, apply_deltas, parse_codec
from abaton.codecs.inspection import inspect_payload
from abaton.errors import PayloadError, SettingsError
from abaton.layout import Layout, Tensor, TensorRole

FULL_LAYOUT = Layout(
    [
        *MIXED,
        Tensor("norm.running_mean", (7,), TensorRole.STATISTIC),
        Tensor("norm.running_var", (7,), TensorRole.STATISTIC),
        Tensor("base.weight", (30, 20), TensorRole.FROZEN),
    ]
)
STATISTICS, FROZEN = slice(MIXED.size, MIXED.size + 14), slice(MIXED.size + 14, None)
KEY = CodecKey(b"round", "north")


def update(seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=FULL_LAYOUT.size).astype(np.float32)
    values[STATISTICS] *= 1000
    values[FROZEN] = 0
    return values


@pytest.mark.parametrize("spec", [*SPECS, "clip(norm=0.1) | error_feedback | stc(sparsity=0.1)"])
def test_statistics_are_exact_and_frozen_tensors_cost_nothing(spec):
    pipeline, values = parse_codec(spec), update()
    payload, state = pipeline.encode(values, FULL_LAYOUT, KEY, pipeline.initial_state(FULL_LAYOUT))
    alone, alone_state = pipeline.encode(values[: MIXED.size], MIXED, KEY, pipeline.initial_state(MIXED))
    assert payload[: len(alone)] == alone
    assert len(payload) == len(alone) + 14 * 4 + 28
    assert {name: v.tobytes() for name, v in state.items()} == {
        name: v.tobytes() for name, v in alone_state.items()
    }
    decoded = pipeline.decode(payload, FULL_LAYOUT, KEY)
    assert np.array_equal(decoded[: MIXED.size], pipeline.decode(alone, MIXED, KEY))
    assert np.array_equal(decoded[STATISTICS], values[STATISTICS])
    assert not decoded[FROZEN].any()


@pytest.mark.parametrize("spec", ["raw", "quicfl(bits=2)", "stc(sparsity=0.1)"])
def test_the_sum_is_the_weighted_mean_of_decoded_updates(spec):
    pipeline, weights = parse_codec(spec), (1.0, 3.0, 4.0)
    sums, decoded = [pipeline.accumulator(FULL_LAYOUT, b"round") for _ in range(2)], []
    for i, weight in enumerate(weights):
        key = CodecKey(b"round", f"site{i}")
        payload, _ = pipeline.encode(update(i), FULL_LAYOUT, key, {})
        sums[i % 2].add(payload, weight, key.learner)
        decoded.append(pipeline.decode(payload, FULL_LAYOUT, key))
    sums[0].merge(sums[1])
    expected = np.average(decoded, axis=0, weights=weights)
    assert sums[0].mean() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_payloads_without_or_with_damaged_statistics_are_refused():
    pipeline = parse_codec("raw")
    payload, _ = pipeline.encode(update(), FULL_LAYOUT, KEY, {})
    end = 28 + 4 * MIXED.size
    total = pipeline.accumulator(FULL_LAYOUT, b"round")
    for damaged in (payload[:end], payload[:-1], payload[:-5] + b"\x00" * 5, payload[:20], payload + b"\x00"):
        with pytest.raises(PayloadError):
            pipeline.decode(damaged, FULL_LAYOUT, KEY)
        with pytest.raises(PayloadError):
            total.add(damaged, 1.0, "north")
    total.add(payload, 1.0, "north")
    assert total.mean() == pytest.approx(update(), rel=1e-6), "refused payloads leave the sum unchanged"
    assert inspect_payload(payload, FULL_LAYOUT)[-1].value == "14 values, raw"
    changed = update()
    changed[-1] = 1
    with pytest.raises(SettingsError, match="changes a frozen tensor"):
        pipeline.encode(changed, FULL_LAYOUT, KEY, {})


def test_noise_is_refused_with_statistics_and_not_added_to_frozen_tensors():
    pipeline = parse_codec("clip(norm=1.0) | gaussian_noise(std=1.0) | raw")
    with pytest.raises(SettingsError, match="without noise"):
        pipeline.initial_state(FULL_LAYOUT)
    frozen = Layout([t for t in FULL_LAYOUT if t.role is not TensorRole.STATISTIC])
    values = np.zeros(frozen.size, np.float32)
    payload, _ = pipeline.encode(values, frozen, CodecKey(b"round", "north", b"secret"), {})
    decoded = pipeline.decode(payload, frozen, KEY)
    assert (decoded[: MIXED.size] != 0).all()
    assert not decoded[MIXED.size :].any()


@pytest.mark.parametrize("spec", ["stc(sparsity=0.02)", "qsgd(bits=1)"])
def test_the_downlink_sends_statistics_without_loss(spec):
    def key(version: int) -> bytes:
        return b"version %d" % version

    start, aggregate = update(1), update(2)
    start[FROZEN] = aggregate[FROZEN] = 7
    downlink = Downlink(parse_codec(spec), FULL_LAYOUT, start)
    downlink.publish(aggregate, key)
    received = apply_deltas(downlink.pipeline, FULL_LAYOUT, start, downlink.recent_deltas, key)
    assert np.array_equal(received, downlink.model)
    assert received[STATISTICS] == pytest.approx(aggregate[STATISTICS], rel=1e-5, abs=1e-3)
    assert (received[FROZEN] == 7).all()
