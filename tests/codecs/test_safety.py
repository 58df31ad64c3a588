"""Hostile payloads: whatever the bytes, a decoder gives an update of the right size or a PayloadError."""

from __future__ import annotations

import tracemalloc
import zlib
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lines import LINES, MIXED, updates

from abaton.codecs import Key, parse
from abaton.codecs.payload_format import OVERHEAD, read
from abaton.errors import PayloadError

KEY = Key(b"round one", "north")
lines = pytest.mark.parametrize("line", LINES)


@cache
def payload_of(line: str) -> bytes:
    """A sound payload; made when a test asks for it, as the first one of its codec compiles."""
    return parse(line).encode(updates(MIXED)["normal"], MIXED, KEY, {})[0]


def sealed(header: bytes, body: bytes) -> bytes:
    """A payload with a right length and checksum, so that the body itself is what is judged."""
    whole = header[:20] + len(body).to_bytes(4, "little") + body
    return whole + zlib.crc32(whole).to_bytes(4, "little")


def judge(line: str, payload: bytes) -> None:
    """Decode and add: either a sound update, or a PayloadError and nothing added."""
    codec = parse(line)
    try:
        decoded = codec.decode(payload, MIXED, KEY)
    except PayloadError:
        total = codec.accumulator(MIXED, KEY.round)
        with pytest.raises(PayloadError):
            total.add(payload, 1.0, KEY.learner)
        return
    assert decoded.shape == (MIXED.size,)
    assert np.isfinite(decoded).all()


@lines
def test_every_truncation_is_refused(line: str):
    payload = payload_of(line)
    for end in {*range(0, len(payload), max(1, len(payload) // 97)), len(payload) - 1}:
        with pytest.raises(PayloadError):
            parse(line).decode(payload[:end], MIXED, KEY)


@lines
def test_every_truncated_body_is_judged(line: str):
    header, body = payload_of(line)[:24], payload_of(line)[24:-4]
    for end in range(0, len(body), max(1, len(body) // 97)):
        judge(line, sealed(header, body[:end]))
    for more in (b"\0", b"\xff", body):
        with pytest.raises(PayloadError):
            parse(line).decode(sealed(header, body + more), MIXED, KEY)


@lines
@given(data=st.data())
def test_bit_flips_are_noticed(line: str, data: st.DataObject):
    payload = bytearray(payload_of(line))
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PayloadError):
        parse(line).decode(bytes(payload), MIXED, KEY)


@lines
@given(data=st.data())
def test_sealed_bit_flips_are_judged(line: str, data: st.DataObject):
    header, body = payload_of(line)[:24], bytearray(payload_of(line)[24:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        bit = data.draw(st.integers(0, 8 * len(body) - 1))
        body[bit // 8] ^= 1 << bit % 8
    judge(line, sealed(header, bytes(body)))


@lines
@given(body=st.binary(max_size=300))
def test_random_bodies_are_judged(line: str, body: bytes):
    judge(line, sealed(payload_of(line)[:24], body))


@lines
@given(payload=st.binary(max_size=100))
def test_random_bytes_are_refused(line: str, payload: bytes):
    with pytest.raises(PayloadError):
        parse(line).decode(payload, MIXED, KEY)


@lines
def test_a_length_bomb_allocates_nothing_large(line: str):
    header, body = bytearray(payload_of(line)[:24]), payload_of(line)[24:-4]
    bombs = [sealed(bytes(header), b"\xff" * n + body) for n in (4, 8, 12)]
    bombs += [sealed(bytes(header), body[:4] + b"\xff" * 4 + body[8:]) if len(body) > 8 else b""]
    header[16:20] = b"\xff" * 4
    bombs.append(sealed(bytes(header), body))
    huge = bytearray(payload_of(line))
    huge[20:24] = b"\xff" * 4
    bombs.append(bytes(huge))
    tracemalloc.start()
    for bomb in bombs:
        judge(line, bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


@lines
def test_a_wrong_key_never_crashes(line: str):
    for key in (Key(b"round two", "north"), Key(b"round one", "south")):
        try:
            decoded = parse(line).decode(payload_of(line), MIXED, key)
        except PayloadError:
            continue
        assert np.isfinite(decoded).all()


def test_the_envelope_says_what_is_wrong():
    payload = payload_of("raw")
    cases = {
        "starts with": b"XXXX" + payload[4:],
        "version 9": payload[:5] + b"\x09" + payload[6:],
        "checksum": payload[:-1] + bytes([payload[-1] ^ 1]),
        "shortest": payload[:10],
        "body bytes": payload + b"\0",
    }
    for what, broken in cases.items():
        with pytest.raises(PayloadError, match=what.replace("starts with", "start with")):
            read(broken)
    assert len(payload) == OVERHEAD + 4 * MIXED.size
