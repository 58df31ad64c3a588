"""Size of the error, its bias, and its decrease with the number of learners."""

import numpy as np
import pytest

from abaton.codecs import CodecKey, parse_codec
from abaton.layout import Layout, Tensor, TensorRole

EXPECTED = {
    "quicfl": (1.4654, 0.2136, 0.04264, 0.00951),
    "eden": (0.5708, 0.1331, 0.0358, 0.00959),
    "ecdq": (0.5497, 0.0974, 0.0227, 0.00558),
    "tcdq": (0.3637, 0.0714, 0.01694, 0.00419),
}
QUICK = [(name, b) for name in EXPECTED for b in (1, 2, 3, 4)]


def flat(size):
    return Layout([Tensor("weight", (size,), TensorRole.DENSE)])


def vnmse(codec, update, layout, key):
    payload = codec.encode(update, layout, key)
    error = codec.decode(payload, layout, key).astype(np.float64) - update
    return (error**2).sum() / (update.astype(np.float64) ** 2).sum(), 8 * len(payload) / layout.size


@pytest.mark.parametrize(("name", "bits"), QUICK)
def test_error_on_a_small_vector(name, bits):
    update, layout = np.random.default_rng(bits).lognormal(size=1 << 17).astype(np.float32), flat(1 << 17)
    error, _ = vnmse(parse_codec(f"{name}(bits={bits})").codec, update, layout, CodecKey(b"key", "north"))
    assert error == pytest.approx(EXPECTED[name][bits - 1], rel=0.06 if bits == 1 else 0.025)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["normal", "lognormal"])
@pytest.mark.parametrize(("name", "bits"), QUICK)
def test_error_at_a_million_values(name, bits, distribution):
    codec, layout = parse_codec(f"{name}(bits={bits})").codec, flat(1 << 20)
    measurements = []
    for seed in range(8):
        update = getattr(np.random.default_rng(seed), distribution)(size=1 << 20).astype(np.float32)
        measurements.append(vnmse(codec, update, layout, CodecKey(bytes([seed + 1]), "north")))
    errors, sizes = zip(*measurements, strict=True)
    tolerance = {"quicfl": (0.02, 0.007, 0.005, 0.005)}.get(name, (0.005,) * 4)[bits - 1]
    assert np.mean(errors) == pytest.approx(EXPECTED[name][bits - 1], rel=tolerance)
    limits = {"ecdq": (0.551, 0.0977, 0.0228, 0.0056), "tcdq": (0.3645, 0.0716, 0.0170, 0.0042)}
    if name in limits:
        assert np.mean(errors) <= limits[name][bits - 1]
        assert max(sizes) <= bits + 0.005


@pytest.mark.parametrize(
    "spec",
    ["quicfl(bits=1)", "quicfl(bits=3)", "ecdq(bits=1)", "ecdq(bits=4)", "tcdq(bits=0.3)", "tcdq(bits=1)"],
)
def test_error_shrinks_as_one_over_the_learners(spec):
    codec, layout = parse_codec(spec).codec, flat(1 << 16)
    update = np.random.default_rng(0).lognormal(size=layout.size).astype(np.float32)
    shrunk = []
    for learners in (1, 10, 100):
        total = codec.accumulator(layout, b"key")
        for i in range(learners):
            total.add(codec.encode(update, layout, CodecKey(b"key", f"learner {i}")), 1.0, f"learner {i}")
        error = total.mean().astype(np.float64) - update
        shrunk.append(learners * (error**2).sum() / (update.astype(np.float64) ** 2).sum())
    assert shrunk[1:] == pytest.approx([shrunk[0]] * 2, rel=0.08)


def mean_of_many(spec, update, times):
    codec, layout = parse_codec(spec).codec, flat(update.size)
    total = np.zeros(update.size)
    for i in range(times):
        key = CodecKey(i.to_bytes(4, "little"), "north")
        total += codec.decode(codec.encode(update, layout, key), layout, key)
    return total / times


SPARSE = np.zeros(1024, np.float32)
SPARSE[:3] = 1, 0.5, 0.25


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("quicfl(bits=1)", 1.47),
        ("ecdq(bits=1)", 0.55),
        ("tcdq(bits=1)", 0.39),
        ("tcdq(bits=0.3)", 3.2),
        ("hadamard(bits=2)", 2.0),
    ],
)
def test_sparse_vectors_are_decoded_without_bias(spec, error):
    times = 3000
    mean = mean_of_many(spec, SPARSE, times)
    bias = ((mean - SPARSE) ** 2).sum() / (SPARSE**2).sum()
    assert bias < 2 * error / times
    np.testing.assert_allclose(mean[:3], SPARSE[:3], atol=0.02)


def test_eden_is_biased_on_sparse_vectors():
    mean = mean_of_many("eden(bits=1)", SPARSE, 500)
    np.testing.assert_allclose(mean[:3], [1.3125, 0, 0], atol=0.01)
