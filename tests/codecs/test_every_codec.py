"""What every codec must keep, whatever it is: the contract's invariants."""

from __future__ import annotations

import numpy as np
import pytest
from lines import LAYOUTS, LINES, MIXED, updates

from abaton.codecs import Key, parse, rotated_domain
from abaton.codecs.payload_format import read
from abaton.codecs.registry import CODECS
from abaton.errors import LayoutError, PayloadError, SettingsError

ROUND = b"round one"
KEY = Key(ROUND, "north", b"only here")


def test_codes_are_apart():
    codes = [codec.code for codec in CODECS.values()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("line", LINES)
def test_the_line_names_the_codec(line: str):
    assert parse(parse(line).spec) == parse(line)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("line", LINES)
def test_payloads_are_read_back(line: str, layout):
    codec = parse(line)
    for name, update in updates(layout).items():
        before = update.copy()
        update.setflags(write=False)
        payload, memory = codec.encode(update, layout, KEY, codec.start(layout))
        assert memory == {}
        np.testing.assert_array_equal(update, before)
        assert codec.encode(update, layout, KEY, {})[0] == payload, "same update, same key, same bytes"
        decoded = codec.decode(payload, layout, KEY)
        assert decoded.shape == (layout.size,)
        assert decoded.dtype == np.float32
        assert np.isfinite(decoded).all(), name
        if name == "zeros":
            assert not decoded.any()


@pytest.mark.parametrize("line", LINES)
def test_the_sum_is_the_mean_of_what_is_decoded(line: str):
    codec, rng = parse(line), np.random.default_rng(3)
    learners = {f"learner {i}": rng.standard_normal(MIXED.size).astype(np.float32) for i in range(5)}
    weights = dict(zip(learners, (1.0, 2.5, 0.0, 4.0, 0.5), strict=True))
    sums = [codec.accumulator(MIXED, ROUND) for _ in range(2)]
    expected = np.zeros(MIXED.size)
    for i, (learner, update) in enumerate(learners.items()):
        key = Key(ROUND, learner)
        payload, _ = codec.encode(update, MIXED, key, {})
        sums[i % 2].add(payload, weights[learner], learner)
        expected += weights[learner] * codec.decode(payload, MIXED, key)
    sums[0].merge(sums[1])
    expected /= sum(weights.values())
    np.testing.assert_allclose(sums[0].mean(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", ["conv1.bias", "conv2.weight", "dense.weight"])
def test_what_is_not_finite_is_refused_by_name(line: str, value: float, tensor: str):
    update = np.random.default_rng(1).standard_normal(MIXED.size).astype(np.float32)
    update[MIXED.slice(tensor).start] = value
    with pytest.raises(LayoutError, match=tensor):
        parse(line).encode(update, MIXED, KEY, {})


@pytest.mark.parametrize("line", LINES)
def test_foreign_vectors_are_refused(line: str):
    codec = parse(line)
    for wrong in (
        np.zeros(3, np.float32),
        np.zeros(MIXED.size, np.float64),
        np.zeros((MIXED.size, 1), np.float32),
    ):
        with pytest.raises(LayoutError):
            codec.encode(wrong, MIXED, KEY, {})


@pytest.mark.parametrize("line", LINES)
def test_a_strided_view_is_as_good(line: str):
    codec, wide = parse(line), np.random.default_rng(1).standard_normal((MIXED.size, 2)).astype(np.float32)
    assert codec.encode(wide[:, 0], MIXED, KEY, {}) == codec.encode(wide[:, 0].copy(), MIXED, KEY, {})


@pytest.mark.parametrize("line", LINES)
def test_another_layout_or_codec_is_refused(line: str):
    codec = parse(line)
    payload, _ = codec.encode(LAYOUTS["odd"].zeros(), LAYOUTS["odd"], KEY, {})
    with pytest.raises(PayloadError, match="another model"):
        codec.decode(payload, MIXED, KEY)
    others = [name for name, other in CODECS.items() if other.code != read(payload).codec]
    other = next(other for other in LINES if other.startswith(others[0]))
    with pytest.raises(PayloadError, match="codec"):
        parse(other).decode(payload, LAYOUTS["odd"], KEY)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_a_weight_is_a_weight(line: str, weight: float):
    codec = parse(line)
    payload, _ = codec.encode(MIXED.zeros(), MIXED, KEY, {})
    with pytest.raises(SettingsError, match="weight"):
        codec.accumulator(MIXED, ROUND).add(payload, weight, "north")


def test_sums_of_different_rounds_do_not_mix():
    for line in LINES:
        codec = parse(line)
        with pytest.raises(SettingsError, match="round"):
            codec.accumulator(MIXED, ROUND).merge(codec.accumulator(MIXED, b"round two"))


@pytest.mark.parametrize("line", LINES)
def test_chains_are_as_safe_as_their_codec(line: str):
    chain = parse(f"clip(norm=5) | gaussian_noise(std=1e-3) | error_feedback | {line}")
    for layout in LAYOUTS.values():
        for name, update in updates(layout).items():
            memory, before = chain.start(layout), update.copy()
            for number in range(2):
                key = Key(f"round {number}".encode(), "north", b"secret")
                payload, memory = chain.encode(update, layout, key, memory)
                total = chain.accumulator(layout, key.round)
                total.add(payload, 1.0, key.learner)
                for vector in (memory["error_feedback"], chain.decode(payload, layout, key), total.mean()):
                    assert vector.shape == (layout.size,)
                    assert np.isfinite(vector).all(), name
            np.testing.assert_array_equal(update, before)
    payload, _ = chain.encode(updates(MIXED)["normal"], MIXED, Key(ROUND, "north", b"s"), chain.start(MIXED))
    with pytest.raises(PayloadError):
        chain.decode(payload[:-1], MIXED, KEY)
    update = updates(MIXED)["normal"]
    update[MIXED.slice("conv2.weight")] = np.nan
    with pytest.raises(LayoutError, match=r"conv2\.weight"):
        chain.encode(update, MIXED, Key(ROUND, "north", b"s"), chain.start(MIXED))


@pytest.mark.parametrize("name", ["quicfl", "ecdq", "hadamard", "kashin"])
def test_learners_that_rotate_alike_are_added_before_rotating_back(name: str, monkeypatch):
    codec, layout, inverses = parse(f"{name}(bits=2)"), LAYOUTS["odd"], []
    total = codec.accumulator(layout, ROUND)
    original = rotated_domain.decoded
    monkeypatch.setattr(rotated_domain, "decoded", lambda *a, **k: inverses.append(1) or original(*a, **k))
    for i in range(5):
        key = Key(ROUND, f"learner {i}")
        total.add(codec.encode(updates(layout)["normal"], layout, key, {})[0], 1.0, key.learner)
    assert not inverses
    total.mean()
    assert len(inverses) == 1
