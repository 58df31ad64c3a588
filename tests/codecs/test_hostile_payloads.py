"""Hostile payloads: for any bytes a decoder returns an update of the right size or raises PayloadError."""

from __future__ import annotations

import tracemalloc
import zlib
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codecs.codec_specs import MIXED, SPECS, updates

from abaton.codecs import CodecKey, parse_codec
from abaton.codecs.payload_format import OVERHEAD, read_header
from abaton.errors import PayloadError

KEY = CodecKey(b"round one", "north")
specs = pytest.mark.parametrize("spec", SPECS)


@cache
def payload_of(spec: str) -> bytes:
    """Return a valid payload; it is encoded when a test needs it, since the first one compiles kernels."""
    return parse_codec(spec).encode(updates(MIXED)["normal"], MIXED, KEY, {})[0]


def with_checksum(header: bytes, body: bytes) -> bytes:
    """Return a payload with a correct length and checksum, so that the body is tested."""
    payload = header[:20] + len(body).to_bytes(4, "little") + body
    return payload + zlib.crc32(payload).to_bytes(4, "little")


def check_decoding(spec: str, payload: bytes) -> None:
    """Decode and add: either a valid update, or a PayloadError and an unchanged sum."""
    codec = parse_codec(spec)
    try:
        decoded = codec.decode(payload, MIXED, KEY)
    except PayloadError:
        total = codec.accumulator(MIXED, KEY.round)
        with pytest.raises(PayloadError):
            total.add(payload, 1.0, KEY.learner)
        return
    assert decoded.shape == (MIXED.size,)
    assert np.isfinite(decoded).all()


@specs
def test_every_truncation_is_refused(spec: str):
    payload = payload_of(spec)
    for end in {*range(0, len(payload), max(1, len(payload) // 97)), len(payload) - 1}:
        with pytest.raises(PayloadError):
            parse_codec(spec).decode(payload[:end], MIXED, KEY)


@specs
def test_truncated_bodies_decode_or_are_refused(spec: str):
    header, body = payload_of(spec)[:24], payload_of(spec)[24:-4]
    for end in range(0, len(body), max(1, len(body) // 97)):
        check_decoding(spec, with_checksum(header, body[:end]))
    for more in (b"\0", b"\xff", body):
        with pytest.raises(PayloadError):
            parse_codec(spec).decode(with_checksum(header, body + more), MIXED, KEY)


@specs
@given(data=st.data())
def test_bit_flips_are_detected(spec: str, data: st.DataObject):
    payload = bytearray(payload_of(spec))
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PayloadError):
        parse_codec(spec).decode(bytes(payload), MIXED, KEY)


@specs
@given(data=st.data())
def test_bit_flips_with_a_valid_checksum_decode_or_are_refused(spec: str, data: st.DataObject):
    header, body = payload_of(spec)[:24], bytearray(payload_of(spec)[24:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        bit = data.draw(st.integers(0, 8 * len(body) - 1))
        body[bit // 8] ^= 1 << bit % 8
    check_decoding(spec, with_checksum(header, bytes(body)))


@specs
@given(body=st.binary(max_size=300))
def test_random_bodies_decode_or_are_refused(spec: str, body: bytes):
    check_decoding(spec, with_checksum(payload_of(spec)[:24], body))


@specs
@given(payload=st.binary(max_size=100))
def test_random_bytes_are_refused(spec: str, payload: bytes):
    with pytest.raises(PayloadError):
        parse_codec(spec).decode(payload, MIXED, KEY)


@specs
def test_a_length_bomb_allocates_nothing_large(spec: str):
    header, body = bytearray(payload_of(spec)[:24]), payload_of(spec)[24:-4]
    bombs = [with_checksum(bytes(header), b"\xff" * n + body) for n in (4, 8, 12)]
    bombs += [with_checksum(bytes(header), body[:4] + b"\xff" * 4 + body[8:]) if len(body) > 8 else b""]
    header[16:20] = b"\xff" * 4
    bombs.append(with_checksum(bytes(header), body))
    huge = bytearray(payload_of(spec))
    huge[20:24] = b"\xff" * 4
    bombs.append(bytes(huge))
    tracemalloc.start()
    for bomb in bombs:
        check_decoding(spec, bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


@specs
def test_a_wrong_key_never_crashes(spec: str):
    for key in (CodecKey(b"round two", "north"), CodecKey(b"round one", "south")):
        try:
            decoded = parse_codec(spec).decode(payload_of(spec), MIXED, key)
        except PayloadError:
            continue
        assert np.isfinite(decoded).all()


def test_header_errors_state_the_problem():
    payload = payload_of("raw")
    cases = {
        "starts with": b"XXXX" + payload[4:],
        "version 9": payload[:5] + b"\x09" + payload[6:],
        "checksum": payload[:-1] + bytes([payload[-1] ^ 1]),
        "at least": payload[:10],
        "body bytes": payload + b"\0",
    }
    for problem, broken in cases.items():
        with pytest.raises(PayloadError, match=problem.replace("starts with", "start with")):
            read_header(broken)
    assert len(payload) == OVERHEAD + 4 * MIXED.size
