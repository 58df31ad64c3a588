"""Properties that all quantisers share."""

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abaton.codecs import CodecKey, parse_codec, payload_format
from abaton.codecs.rotated_domain import split_blocks
from abaton.errors import LayoutError, PayloadError, SettingsError
from abaton.layout import Layout, Tensor, TensorRole

CODECS = [
    "quicfl(bits=1)", "quicfl(bits=2)", "quicfl(bits=3)", "quicfl(bits=4)", "quicfl(bits=2, shared_bits=0)",
    "ecdq(bits=1)", "ecdq(bits=2)", "ecdq(bits=3)", "ecdq(bits=4)", "tcdq(bits=0.3)", "tcdq(bits=1)",
    "tcdq(bits=2, states=8)", "tcdq(bits=3.35)", "tcdq(bits=6, states=256)", "eden(bits=1)", "eden(bits=3)", "drive",
    "hadamard(bits=2)", "kashin(bits=2)", "qsgd(bits=1)", "qsgd(bits=4)",
]  # fmt: skip
KEY = CodecKey(b"a round's key", "north")


def flat(size):
    return Layout([Tensor("weight", (size,), TensorRole.DENSE)])


def normal(size, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def nmse(decoded, update):
    update = update.astype(np.float64)
    return ((decoded - update) ** 2).sum() / (update**2).sum()


@pytest.fixture(params=CODECS)
def codec(request):
    return parse_codec(request.param).codec


@pytest.mark.parametrize("size", [0, 1, 2, 31, 33, 129, 1023, 1024, 1025, 5000, 70_001])
def test_round_trip_at_every_size(codec, size):
    update, layout = normal(size, size), flat(size)
    payload = codec.encode(update, layout, KEY)
    decoded = codec.decode(payload, layout, KEY)
    assert decoded.shape == (size,)
    assert decoded.dtype == np.float32
    assert size < 1000 or nmse(decoded, update) < 20


def test_encode_is_pure(codec):
    update, layout = normal(3000), flat(3000)
    update.flags.writeable = False
    assert codec.encode(update, layout, KEY) == codec.encode(update.copy(), layout, KEY)


def test_learners_and_rounds_have_their_own_randomness(codec):
    update, layout = normal(3000), flat(3000)
    decoded = [
        codec.decode(codec.encode(update, layout, key), layout, key)
        for key in (KEY, CodecKey(b"a round's key", "south"), CodecKey(b"another key", "north"))
    ]
    assert not np.array_equal(decoded[0], decoded[1])
    assert not np.array_equal(decoded[0], decoded[2])


def test_a_strided_update_is_the_same_update(codec):
    update, layout = normal(6000)[::2], flat(3000)
    assert codec.encode(update, layout, KEY) == codec.encode(update.copy(), layout, KEY)


@pytest.mark.parametrize("size", [1, 100, 1500])
def test_zeros_stay_zeros(codec, size):
    payload = codec.encode(np.zeros(size, np.float32), flat(size), KEY)
    assert not codec.decode(payload, flat(size), KEY).any()
    assert len(payload) < 28 + 8 + 32 + 4 * min(size, 160)


@pytest.mark.parametrize("scale", [1e-45, 1e-39, 1e-20, 1e20, 1e38, 3.4e38])
def test_subnormal_and_huge_values(codec, scale):
    update, layout = (np.sign(normal(2000)) * scale).astype(np.float32), flat(2000)
    payload = codec.encode(update, layout, KEY)
    decoded, total = codec.decode(payload, layout, KEY), codec.accumulator(layout, KEY.round)
    assert np.isfinite(decoded).all()
    total.add(payload, 2.0, KEY.learner)
    np.testing.assert_allclose(total.mean(), decoded, rtol=1e-5, atol=1e-5 * scale + 3e-45)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_tensor_name(codec, bad):
    update = normal(2000)
    update[1700] = bad
    with pytest.raises(LayoutError, match=r"north.*'weight'"):
        codec.encode(update, flat(2000), KEY)


@pytest.mark.parametrize("position", [0, slice(None), slice(-5, None)])
def test_values_that_are_not_finite_are_refused_at_any_position(codec, position):
    update = normal(70_005)
    update[position] = np.nan
    with pytest.raises(LayoutError, match="weight"):
        codec.encode(update, flat(70_005), KEY)


def test_updates_that_do_not_fit_are_refused(codec):
    for update in (normal(10), normal(2000).astype(np.float64), normal(2000).reshape(2, 1000)):
        with pytest.raises(LayoutError):
            codec.encode(update, flat(2000), KEY)


GOLDEN = {  # first 16 digits of SHA-256 of a payload: a change is a new version of the format
    "quicfl(bits=1)": "e1acbd38abd6fe8c",
    "quicfl(bits=2)": "c858d4c79dc919a0",
    "quicfl(bits=3)": "36cf3e6d4775f459",
    "quicfl(bits=4)": "c35eb1b003a133de",
    "ecdq(bits=1)": "36123de82a7434bf",
    "ecdq(bits=2)": "7fd3478815179c87",
    "ecdq(bits=3)": "10e8dcb17859c97a",
    "ecdq(bits=4)": "ee14667bb2acd834",
    "tcdq(bits=0.3)": "6487804a567c40b9",
    "tcdq(bits=1)": "730e99cdb10332af",
    "tcdq(bits=2)": "2a3ac319c12acace",
    "tcdq(bits=4)": "3297042771092a2a",
    "tcdq(bits=2, states=8)": "b3fda7af7fe7dca7",
    "tcdq(bits=2, states=256)": "fafd8c52799b26c6",
    "quicfl(bits=2, shared_bits=0)": "3be3777a7eeb99e5",
    "hadamard(bits=2)": "756a283022efd11b",
    "qsgd(bits=2)": "9a0e07e79749297e",
}


@pytest.mark.parametrize("spec", GOLDEN)
def test_payloads_keep_their_bytes(spec):
    update = (np.arange(3000) % 17 - 8).astype(np.float32)
    payload = parse_codec(spec).codec.encode(update, flat(3000), KEY)
    assert hashlib.sha256(payload).hexdigest()[:16] == GOLDEN[spec]


def test_sum_is_the_weighted_mean_of_decoded_updates(codec):
    layout, learners = flat(3100), ["north", "south", "east"]
    weights, expected = [1.0, 0.0, 2.5], np.zeros(3100)
    first, second = codec.accumulator(layout, KEY.round), codec.accumulator(layout, KEY.round)
    for i, (learner, weight) in enumerate(zip(learners, weights, strict=True)):
        key = CodecKey(KEY.round, learner)
        payload = codec.encode(normal(3100, i), layout, key)
        (first if i < 2 else second).add(payload, weight, learner)
        expected += weight * codec.decode(payload, layout, key)
    first.merge(second)
    np.testing.assert_allclose(first.mean(), expected / 3.5, atol=2e-5)


def test_many_additions_do_not_drift():
    codec, layout = parse_codec("quicfl(bits=4)").codec, flat(1024)
    payload, total = codec.encode(normal(1024), layout, KEY), codec.accumulator(layout, KEY.round)
    for _ in range(1000):
        total.add(payload, 0.1, KEY.learner)
    np.testing.assert_allclose(total.mean(), codec.decode(payload, layout, KEY), atol=1e-5)


def test_refused_payload_does_not_change_the_sum(codec):
    layout = flat(2048)
    good, total = codec.encode(normal(2048), layout, KEY), codec.accumulator(layout, KEY.round)
    total.add(good, 1.0, KEY.learner)
    before = total.mean()
    body = bytearray(good[24:-4])
    body[0] ^= 255
    with pytest.raises(PayloadError):
        total.add(payload_format.pack(codec.code, layout, body), 1.0, KEY.learner)
    np.testing.assert_array_equal(total.mean(), before)


def hostile(codec, payload, layout):
    """Check that an arbitrary body with a correct checksum decodes to finite values or is refused."""
    try:
        assert np.isfinite(codec.decode(payload, layout, KEY)).all()
    except PayloadError:
        return
    total = codec.accumulator(layout, KEY.round)
    total.add(payload, 1.0, KEY.learner)
    assert np.isfinite(total.mean()).all()


@pytest.mark.parametrize("spec", CODECS)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_broken_bodies_with_a_good_checksum(spec, data):
    codec, layout = parse_codec(spec).codec, flat(data.draw(st.sampled_from([5, 1030, 2500])))
    body = bytearray(codec.encode(normal(layout.size), layout, KEY)[24:-4])
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(body)))
    extra = data.draw(st.binary(max_size=20))
    for changed in (body, body[:end], body + extra):
        hostile(codec, payload_format.pack(codec.code, layout, changed), layout)


@pytest.mark.parametrize("spec", CODECS)
@settings(deadline=None, max_examples=25)
@given(body=st.binary(max_size=600), size=st.sampled_from([0, 3, 1024]))
def test_random_bodies_with_a_good_checksum(spec, body, size):
    codec, layout = parse_codec(spec).codec, flat(size)
    hostile(codec, payload_format.pack(codec.code, layout, body), layout)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 1e300])
def test_an_impossible_norm_is_refused(codec, value):
    layout = flat(1024)
    body = bytearray(codec.encode(normal(1024), layout, KEY)[24:-4])
    body[8:16] = struct.pack("<d", value)
    try:
        decoded = codec.decode(payload_format.pack(codec.code, layout, body), layout, KEY)
    except PayloadError:
        return
    assert np.isfinite(decoded).all()


@pytest.mark.parametrize(
    "spec",
    [
        "quicfl(bits=0)",
        "quicfl(bits=5)",
        "quicfl(bits=4, shared_bits=5)",
        "ecdq(bits=1.5)",
        "qsgd(bits=9)",
        "tcdq(bits=0.25)",
        "tcdq(bits=6.05)",
        "tcdq(bits=1.01)",
        "tcdq(bits=2, states=32)",
    ],
)
def test_settings_out_of_range_are_refused(spec):
    with pytest.raises(SettingsError):
        parse_codec(spec)


def test_blocks_cover_a_vector_once():
    for size in (0, 1, 1023, 1024, 65_536, 65_537, 1_690_046):
        blocks = split_blocks(size, 2)
        ends = [start + length for start, length, _, _ in blocks.table.tolist()]
        assert [start for start, *_ in blocks.table.tolist()] == [0, *ends][: len(blocks)]
        assert (blocks.tail.start, blocks.tail.stop) == (ends[-1] if ends else 0, size)
        assert blocks.padded_size < size + 1024
