"""The codec interface: keys, pipelines and specs."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import CodecKey, KeyPurpose, RawCodec, build_pipeline, parse_codec
from abaton.errors import LayoutError, PayloadError, SettingsError
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout([Tensor("weight", (2, 3), TensorRole.DENSE), Tensor("bias", (2,), TensorRole.BIAS)])
KEY = CodecKey(b"round one", "north", b"only here")


def test_random_streams_are_independent():
    other_keys = [
        CodecKey(b"round two", "north"),
        CodecKey(b"round one", "south"),
        CodecKey(b"round one", "north", b"other"),
    ]
    seeds = {purpose: KEY.derive(purpose) for purpose in KeyPurpose}
    assert len(set(seeds.values())) == len(seeds)
    assert [
        seeds[KeyPurpose.ROTATION] == other_key.derive(KeyPurpose.ROTATION) for other_key in other_keys
    ] == [
        False,
        True,
        True,
    ]
    assert [seeds[KeyPurpose.DITHER] == other_key.derive(KeyPurpose.DITHER) for other_key in other_keys] == [
        False,
        False,
        True,
    ]
    assert [seeds[KeyPurpose.NOISE] == other_key.derive(KeyPurpose.NOISE) for other_key in other_keys] == [
        False,
        False,
        False,
    ]


def test_repr_of_a_key_contains_no_secret():
    assert repr(KEY) == "CodecKey(learner='north')"


def test_key_requires_a_round_key():
    with pytest.raises(SettingsError, match="round's key"):
        CodecKey(b"", "north")


def test_raw_round_trip_is_exact():
    update = np.float32([1, -0.0, 1e-45, 3e38, -2, 5, 6, 7])
    payload = RawCodec().encode(update, LAYOUT, KEY)
    assert RawCodec().decode(payload, LAYOUT, KEY).tobytes() == update.tobytes()
    assert len(payload) == 28 + 32


def test_raw_refuses_values_that_are_not_finite():
    update = LAYOUT.zeros()
    update[6] = np.nan
    with pytest.raises(LayoutError, match="bias"):
        RawCodec().encode(update, LAYOUT, KEY)


def test_pipeline_of_one_codec_writes_its_bytes():
    update = np.arange(8, dtype=np.float32)
    payload, state = build_pipeline(RawCodec()).encode(update, LAYOUT, KEY, {})
    assert payload == RawCodec().encode(update, LAYOUT, KEY)
    assert state == {}
    assert build_pipeline(build_pipeline(RawCodec())) == build_pipeline(RawCodec())


def test_mean_is_weighted_and_merges():
    a, b = np.ones(8, np.float32), np.full(8, 4, np.float32)
    one, two = (RawCodec().accumulator(LAYOUT, b"round one") for _ in range(2))
    one.add(RawCodec().encode(a, LAYOUT, KEY), 2, "north")
    two.add(RawCodec().encode(b, LAYOUT, KEY), 1, "south")
    one.merge(two)
    np.testing.assert_array_equal(one.mean(), np.full(8, 2, np.float32))


def test_refused_payload_does_not_change_the_sum():
    accumulator = RawCodec().accumulator(LAYOUT, b"round one")
    with pytest.raises(PayloadError):
        accumulator.add(b"nonsense", 1, "north")
    with pytest.raises(SettingsError, match="no update"):
        accumulator.mean()


@pytest.mark.parametrize("text", ["raw", " raw() "])
def test_parse_raw(text: str):
    assert parse_codec(text) == build_pipeline(RawCodec())
    assert parse_codec(parse_codec(text).spec) == parse_codec(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "spec is invalid"),
        ("raw(", "spec is invalid"),
        ("rar", "there is no codec 'rar'"),
        ("raw(bits=1)", "no setting 'bits'"),
        ("raw(1)", "without a name"),
        ("raw | raw", "there is no transform 'raw'"),
        ("__import__('os').system('true')", "spec is invalid"),
        ("raw(**{})", "spec is invalid"),
        ("(" * 300 + "raw" + ")" * 300, "spec is invalid|characters"),
        ("raw" + " " * 500, "characters"),
    ],
)
def test_invalid_spec_is_refused(text: str, message: str):
    with pytest.raises(SettingsError, match=message) as caught:
        parse_codec(text)
    assert caught.value.exit_code == 2
