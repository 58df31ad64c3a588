"""The contract: keys, chains and the codec line."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import Key, KeyPurpose, Raw, chain, parse
from abaton.errors import LayoutError, PayloadError, SettingsError
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout([Tensor("weight", (2, 3), Role.DENSE), Tensor("bias", (2,), Role.BIAS)])
KEY = Key(b"round one", "north", b"only here")


def test_streams_are_apart():
    others = [Key(b"round two", "north"), Key(b"round one", "south"), Key(b"round one", "north", b"other")]
    seeds = {purpose: KEY.derive(purpose) for purpose in KeyPurpose}
    assert len(set(seeds.values())) == len(seeds)
    assert [seeds[KeyPurpose.ROTATION] == k.derive(KeyPurpose.ROTATION) for k in others] == [
        False,
        True,
        True,
    ]
    assert [seeds[KeyPurpose.DITHER] == k.derive(KeyPurpose.DITHER) for k in others] == [False, False, True]
    assert [seeds[KeyPurpose.NOISE] == k.derive(KeyPurpose.NOISE) for k in others] == [False, False, False]


def test_a_key_shows_no_secrets():
    assert repr(KEY) == "Key(learner='north')"


def test_a_key_needs_a_round():
    with pytest.raises(SettingsError, match="round's key"):
        Key(b"", "north")


def test_raw_gives_back_the_bits():
    update = np.float32([1, -0.0, 1e-45, 3e38, -2, 5, 6, 7])
    payload = Raw().encode(update, LAYOUT, KEY)
    assert Raw().decode(payload, LAYOUT, KEY).tobytes() == update.tobytes()
    assert len(payload) == 28 + 32


def test_raw_refuses_what_is_not_finite():
    update = LAYOUT.zeros()
    update[6] = np.nan
    with pytest.raises(LayoutError, match="bias"):
        Raw().encode(update, LAYOUT, KEY)


def test_chain_of_a_codec_is_that_codec():
    update = np.arange(8, dtype=np.float32)
    payload, memory = chain(Raw()).encode(update, LAYOUT, KEY, {})
    assert payload == Raw().encode(update, LAYOUT, KEY)
    assert memory == {}
    assert chain(chain(Raw())) == chain(Raw())


def test_mean_is_weighted_and_merges():
    a, b = np.ones(8, np.float32), np.full(8, 4, np.float32)
    one, two = (Raw().accumulator(LAYOUT, b"round one") for _ in range(2))
    one.add(Raw().encode(a, LAYOUT, KEY), 2, "north")
    two.add(Raw().encode(b, LAYOUT, KEY), 1, "south")
    one.merge(two)
    np.testing.assert_array_equal(one.mean(), np.full(8, 2, np.float32))


def test_a_refused_payload_leaves_the_sum_alone():
    accumulator = Raw().accumulator(LAYOUT, b"round one")
    with pytest.raises(PayloadError):
        accumulator.add(b"nonsense", 1, "north")
    with pytest.raises(SettingsError, match="nothing"):
        accumulator.mean()


@pytest.mark.parametrize("text", ["raw", " raw() "])
def test_parse_raw(text: str):
    assert parse(text) == chain(Raw())
    assert parse(parse(text).spec) == parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("raw(", "cannot be read"),
        ("rar", "there is no codec 'rar'"),
        ("raw(bits=1)", "no setting 'bits'"),
        ("raw(1)", "without a name"),
        ("raw | raw", "there is no step 'raw'"),
        ("__import__('os').system('true')", "cannot be read"),
        ("raw(**{})", "cannot be read"),
        ("(" * 300 + "raw" + ")" * 300, "cannot be read|characters"),
        ("raw" + " " * 500, "characters"),
    ],
)
def test_a_bad_line_is_refused(text: str, message: str):
    with pytest.raises(SettingsError, match=message) as caught:
        parse(text)
    assert caught.value.exit_code == 2
