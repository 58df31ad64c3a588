"""Invariants of the codec interface, for every codec."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codecs.codec_specs import LAYOUTS, MIXED, SPECS, updates

from abaton.codecs import CodecKey, parse_codec, rotated_domain
from abaton.codecs.payload_format import read_header
from abaton.codecs.registry import CODECS
from abaton.errors import LayoutError, PayloadError, SettingsError

ROUND = b"round one"
KEY = CodecKey(ROUND, "north", b"only here")


def test_codes_are_unique():
    codes = [codec.code for codec in CODECS.values()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("spec", SPECS)
def test_spec_round_trip(spec: str):
    assert parse_codec(parse_codec(spec).spec) == parse_codec(spec)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("spec", SPECS)
def test_payload_round_trip(spec: str, layout):
    codec = parse_codec(spec)
    for name, update in updates(layout).items():
        before = update.copy()
        update.setflags(write=False)
        payload, state = codec.encode(update, layout, KEY, codec.initial_state(layout))
        assert state == {}
        np.testing.assert_array_equal(update, before)
        assert codec.encode(update, layout, KEY, {})[0] == payload, "same update, same key, same bytes"
        decoded = codec.decode(payload, layout, KEY)
        assert decoded.shape == (layout.size,)
        assert decoded.dtype == np.float32
        assert np.isfinite(decoded).all(), name
        if name == "zeros":
            assert not decoded.any()


@pytest.mark.parametrize("spec", SPECS)
def test_sum_is_the_mean_of_decoded_updates(spec: str):
    codec, rng = parse_codec(spec), np.random.default_rng(3)
    learners = {f"learner {i}": rng.standard_normal(MIXED.size).astype(np.float32) for i in range(5)}
    weights = dict(zip(learners, (1.0, 2.5, 0.0, 4.0, 0.5), strict=True))
    sums = [codec.accumulator(MIXED, ROUND) for _ in range(2)]
    expected = np.zeros(MIXED.size)
    for i, (learner, update) in enumerate(learners.items()):
        key = CodecKey(ROUND, learner)
        payload, _ = codec.encode(update, MIXED, key, {})
        sums[i % 2].add(payload, weights[learner], learner)
        expected += weights[learner] * codec.decode(payload, MIXED, key)
    sums[0].merge(sums[1])
    expected /= sum(weights.values())
    np.testing.assert_allclose(sums[0].mean(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", ["conv1.bias", "conv2.weight", "dense.weight"])
def test_values_that_are_not_finite_are_refused_by_tensor_name(spec: str, value: float, tensor: str):
    update = np.random.default_rng(1).standard_normal(MIXED.size).astype(np.float32)
    update[MIXED.slice(tensor).start] = value
    with pytest.raises(LayoutError, match=tensor):
        parse_codec(spec).encode(update, MIXED, KEY, {})


@pytest.mark.parametrize("spec", SPECS)
def test_vectors_that_do_not_fit_are_refused(spec: str):
    codec = parse_codec(spec)
    for vector in (
        np.zeros(3, np.float32),
        np.zeros(MIXED.size, np.float64),
        np.zeros((MIXED.size, 1), np.float32),
    ):
        with pytest.raises(LayoutError):
            codec.encode(vector, MIXED, KEY, {})


@pytest.mark.parametrize("spec", SPECS)
def test_strided_view_gives_the_same_bytes(spec: str):
    codec, columns = (
        parse_codec(spec),
        np.random.default_rng(1).standard_normal((MIXED.size, 2)).astype(np.float32),
    )
    assert codec.encode(columns[:, 0], MIXED, KEY, {}) == codec.encode(columns[:, 0].copy(), MIXED, KEY, {})


@pytest.mark.parametrize("spec", SPECS)
def test_another_layout_or_codec_is_refused(spec: str):
    codec = parse_codec(spec)
    payload, _ = codec.encode(LAYOUTS["odd"].zeros(), LAYOUTS["odd"], KEY, {})
    with pytest.raises(PayloadError, match="another model"):
        codec.decode(payload, MIXED, KEY)
    others = [name for name, other in CODECS.items() if other.code != read_header(payload).codec]
    other = next(other for other in SPECS if other.startswith(others[0]))
    with pytest.raises(PayloadError, match="codec"):
        parse_codec(other).decode(payload, LAYOUTS["odd"], KEY)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_invalid_weight_is_refused(spec: str, weight: float):
    codec = parse_codec(spec)
    payload, _ = codec.encode(MIXED.zeros(), MIXED, KEY, {})
    with pytest.raises(SettingsError, match="weight"):
        codec.accumulator(MIXED, ROUND).add(payload, weight, "north")


def test_sums_of_different_rounds_are_not_merged():
    for spec in SPECS:
        codec = parse_codec(spec)
        with pytest.raises(SettingsError, match="round"):
            codec.accumulator(MIXED, ROUND).merge(codec.accumulator(MIXED, b"round two"))


@pytest.mark.parametrize("spec", SPECS)
def test_pipelines_are_as_safe_as_their_codec(spec: str):
    pipeline = parse_codec(f"clip(norm=5) | gaussian_noise(std=1e-3) | error_feedback | {spec}")
    for layout in LAYOUTS.values():
        for name, update in updates(layout).items():
            state, before = pipeline.initial_state(layout), update.copy()
            for number in range(2):
                key = CodecKey(f"round {number}".encode(), "north", b"secret")
                payload, state = pipeline.encode(update, layout, key, state)
                total = pipeline.accumulator(layout, key.round)
                total.add(payload, 1.0, key.learner)
                for vector in (state["error_feedback"], pipeline.decode(payload, layout, key), total.mean()):
                    assert vector.shape == (layout.size,)
                    assert np.isfinite(vector).all(), name
            np.testing.assert_array_equal(update, before)
    payload, _ = pipeline.encode(
        updates(MIXED)["normal"], MIXED, CodecKey(ROUND, "north", b"s"), pipeline.initial_state(MIXED)
    )
    with pytest.raises(PayloadError):
        pipeline.decode(payload[:-1], MIXED, KEY)
    update = updates(MIXED)["normal"]
    update[MIXED.slice("conv2.weight")] = np.nan
    with pytest.raises(LayoutError, match=r"conv2\.weight"):
        pipeline.encode(update, MIXED, CodecKey(ROUND, "north", b"s"), pipeline.initial_state(MIXED))


@pytest.mark.parametrize("name", ["quicfl", "ecdq", "tcdq", "hadamard", "kashin"])
def test_updates_with_a_common_rotation_are_added_before_rotating_back(name: str, monkeypatch):
    codec, layout, calls = parse_codec(f"{name}(bits=2)"), LAYOUTS["odd"], []
    total = codec.accumulator(layout, ROUND)
    original = rotated_domain.rotate_back
    monkeypatch.setattr(rotated_domain, "rotate_back", lambda *a, **k: calls.append(1) or original(*a, **k))
    for i in range(5):
        key = CodecKey(ROUND, f"learner {i}")
        total.add(codec.encode(updates(layout)["normal"], layout, key, {})[0], 1.0, key.learner)
    assert not calls
    total.mean()
    assert len(calls) == 1
