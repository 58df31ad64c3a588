from __future__ import annotations

import hashlib
import tracemalloc
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.governance.conftest import WHEN, drawing

from abaton.errors import AbatonError
from abaton.governance.keys import Ring
from abaton.governance.sealed_envelope import (
    CHUNK,
    MAGIC,
    Compression,
    Header,
    canonical_lines,
    frame,
    look,
    open_file,
    opened,
    seal,
    seal_file,
    write_preamble,
)
from abaton.governance.identifiers import Denied, RefusalCode

CENTRE = Ring.new("centre", drawing("centre"), WHEN)
SITE = Ring.new("site-a", drawing("site"), WHEN)
HYBRID = Ring.new("hybrid", drawing("hybrid"), WHEN, hybrid=True)
KEY = bytes(range(32))


def head(compression=Compression.ZSTD, centre=CENTRE, **changes) -> Header:
    made = Header(
        "heart", "ab" * 32, SITE.signing.id, centre.public.sealing.id, 1, "A" * 26, WHEN, compression
    )
    return replace(made, **changes)


def sealed(content: bytes, header: Header | None = None, centre=CENTRE) -> bytes:
    header = header or head(centre=centre)
    return b"".join(seal([content], header, SITE.signing, centre.public.sealing, KEY))


def open_bytes(data: bytes, ring=CENTRE, site=SITE, limit=1 << 30) -> bytes:
    stream = opened([data], ring, site.public.key, limit=limit)
    assert isinstance(next(stream), Header)
    return b"".join(stream)


def refused(data: bytes, **more) -> RefusalCode:
    with pytest.raises(Denied) as caught:
        open_bytes(data, **more)
    return caught.value.code


@given(st.binary(max_size=300_000), st.sampled_from(Compression), st.integers(1, 100_000))
def test_what_is_sealed_opens_and_nothing_else_is_needed(content, how, step):
    pieces = [content[i : i + step] for i in range(0, len(content), step)]
    header = head(how)
    data = b"".join(seal(pieces, header, SITE.signing, CENTRE.public.sealing, KEY))
    assert open_bytes(data) == content
    looked = look([data[i : i + step] for i in range(0, len(data), step)], SITE.public.key)
    assert (looked.header, looked.size, looked.digest) == (
        header,
        len(data),
        hashlib.sha256(data).hexdigest(),
    )


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_every_border_of_a_chunk(size):
    content = drawing("c")(size)
    data = sealed(content, head(Compression.NONE))
    assert open_bytes(data) == content
    chunks = max(1, -(-size // CHUNK))
    preamble = len(data) - 64 - size - chunks * 20
    assert preamble == len(write_preamble(head(Compression.NONE), b"x" * 80))


def test_hybrid_keys_seal_too():
    data = sealed(b"x" * 100_000, centre=HYBRID)
    assert open_bytes(data, ring=HYBRID) == b"x" * 100_000


def test_only_the_recipient_can_open_and_only_a_known_sender_is_taken():
    data = sealed(b"secret")
    stranger = Ring.new("centre", drawing("stranger"), WHEN)
    assert refused(data, ring=stranger) is RefusalCode.UNKNOWN_KEY
    assert refused(data, site=stranger) is RefusalCode.UNKNOWN_SENDER
    assert b"secret" not in data


def test_a_sender_cannot_put_his_name_on_somebody_elses_envelope():
    thief = Ring.new("thief", drawing("thief"), WHEN)
    data = sealed(b"secret", head(Compression.NONE))
    stolen = data.replace(SITE.signing.id.encode(), thief.signing.id.encode())[:-64]
    signed = stolen + thief.signing.sign(b"abaton-seal-1 signature\0" + hashlib.sha256(stolen).digest())
    assert look([signed], thief.public.key).header.sender == thief.signing.id  # the outside is genuine
    assert refused(signed, site=thief) is RefusalCode.TAMPERED  # and what is inside does not open


@pytest.mark.parametrize(
    "change", [{"study": "lungs"}, {"document": "cd" * 32}, {"sequence": 2}, {"subject": "B" * 26}]
)
def test_the_head_is_bound_to_the_content(change):
    """Even somebody with the sender's signing key cannot move a sealed key to another head."""
    header, other = head(Compression.NONE), head(Compression.NONE, **change)
    data = sealed(b"secret", header)
    moved = data[:-64].replace(header.written(), other.written())
    signed = moved + SITE.signing.sign(b"abaton-seal-1 signature\0" + hashlib.sha256(moved).digest())
    assert refused(signed) is RefusalCode.TAMPERED


def parts(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    start = len(data) - 64 - 3 * (CHUNK + 20)
    step = CHUNK + 20
    return data[:start], [data[start + i * step : start + (i + 1) * step] for i in range(3)], data[-64:]


@pytest.mark.parametrize("order", [[0, 1], [0, 2], [1, 0, 2], [0, 1, 1, 2], [0, 0, 2], [2], [0, 1, 2, 2]])
def test_chunks_cannot_be_left_out_exchanged_or_repeated_even_by_the_sender(order):
    content = drawing("c")(3 * CHUNK)
    start, chunks, _ = parts(sealed(content, head(Compression.NONE)))
    moved = start + b"".join(chunks[i] for i in order)
    signed = moved + SITE.signing.sign(b"abaton-seal-1 signature\0" + hashlib.sha256(moved).digest())
    assert refused(signed) in {RefusalCode.TAMPERED, RefusalCode.TRUNCATED, RefusalCode.MALFORMED}


def test_the_last_flag_cannot_be_moved():
    start, chunks, _ = parts(sealed(drawing("c")(3 * CHUNK), head(Compression.NONE)))
    body = chunks[0][4:]
    moved = start + frame(body, last=True)
    signed = moved + SITE.signing.sign(b"abaton-seal-1 signature\0" + hashlib.sha256(moved).digest())
    assert refused(signed) is RefusalCode.TAMPERED


SMALL = sealed(b"a little content", head(Compression.NONE))


def test_every_truncation_is_noticed():
    for end in range(len(SMALL)):
        assert refused(SMALL[:end]) is RefusalCode.TRUNCATED
        with pytest.raises(Denied):
            look([SMALL[:end]], SITE.public.key)
    assert refused(SMALL + b"\0") is RefusalCode.MALFORMED


def test_every_flipped_bit_is_noticed():
    for place in range(len(SMALL)):
        for bit in (0, 7):
            flipped = bytearray(SMALL)
            flipped[place] ^= 1 << bit
            with pytest.raises(Denied):
                open_bytes(bytes(flipped))
            with pytest.raises(Denied):
                look([bytes(flipped)], SITE.public.key)


@given(st.binary(max_size=500))
@settings(max_examples=200)
def test_noise_is_refused_in_one_line(noise):
    for data in (noise, MAGIC + noise, SMALL[:100] + noise):
        with pytest.raises(Denied):
            open_bytes(data)


@given(st.dictionaries(st.text(max_size=12), st.none() | st.text() | st.integers() | st.floats(), max_size=9))
def test_foreign_heads_are_refused(row):
    import json

    with pytest.raises(AbatonError):
        Header.read(json.dumps(row).encode())


def test_a_bomb_is_refused_in_constant_memory():
    header = head()
    zeros = (bytes(1 << 20) for _ in range(64))
    data = b"".join(seal(zeros, header, SITE.signing, CENTRE.public.sealing, KEY))
    assert len(data) < 20_000
    tracemalloc.start()
    with pytest.raises(Denied) as caught:
        deque(opened([data], CENTRE, SITE.public.key, limit=10 << 20), maxlen=0)
    assert caught.value.code is RefusalCode.TOO_LARGE
    assert sum(1 for _ in opened([data], CENTRE, SITE.public.key)) > 64
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_large_exports_pass_in_constant_memory(tmp_path):
    piece = drawing("big")(1 << 20)
    tracemalloc.start()
    source, target = tmp_path / "sealed", tmp_path / "plain"
    seal_file((piece for _ in range(40)), source, head(), SITE.signing, CENTRE.public.sealing, KEY)
    open_file(source, target, CENTRE, SITE.public.key, accept=lambda looked: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert target.stat().st_size == 40 << 20
    assert target.stat().st_mode & 0o777 == 0o600
    assert peak < 8 << 20


def test_nothing_appears_until_all_is_verified(tmp_path):
    source, target = tmp_path / "sealed", tmp_path / "plain"
    data = sealed(drawing("c")(4 * CHUNK))
    source.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Denied):
        open_file(source, target, CENTRE, SITE.public.key, accept=lambda looked: None)

    def refuse(looked):
        raise Denied(RefusalCode.REPLAYED, "it was here before")

    source.write_bytes(data)
    with pytest.raises(Denied):
        open_file(source, target, CENTRE, SITE.public.key, accept=refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["sealed"]


def test_lines_are_written_in_the_canonical_form(tmp_path):
    (tmp_path / "a.ndjson").write_text('{"b": 1.0, "a": 2}\n\n{"z":[ ]}\n')
    (tmp_path / "a.json").write_text('{"b": 1.0,\n "a": 2}')
    assert b"".join(canonical_lines(tmp_path / "a.ndjson")) == b'{"a":2,"b":1}\n{"z":[]}\n'
    assert b"".join(canonical_lines(tmp_path / "a.json")) == b'{"a":2,"b":1}\n'
    (tmp_path / "bad.ndjson").write_text('{"name": "Chalmers"\n')
    with pytest.raises(AbatonError, match="line 1") as caught:
        list(canonical_lines(tmp_path / "bad.ndjson"))
    assert "Chalmers" not in str(caught.value)


def test_what_was_sealed_once_opens_for_ever():
    """Whoever can no longer read these bytes has changed the format: that needs a new number in the magic."""
    for name, ring in (("sealed-x25519.hex", CENTRE), ("sealed-hybrid.hex", HYBRID)):
        data = bytes.fromhex((Path(__file__).parent / name).read_text())
        assert open_bytes(data, ring=ring) == b'{"resourceType":"Patient"}\n' * 3


def test_the_bytes_are_those_of_the_documentation():
    """All but the sealed key, which HPKE draws anew, follows from the arguments."""
    content, header = b'{"resourceType":"Patient"}\n', head(Compression.NONE)
    data = sealed(content, header)
    start = len(MAGIC) + 4 + len(header.written()) + 4
    assert data[: start - 4] == MAGIC + len(header.written()).to_bytes(4, "little") + header.written()
    assert data[start - 4 : start] == (80).to_bytes(4, "little")  # 32 encapsulated, 32 key, 16 proof
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    about = hashlib.sha256(data[: start + 80]).digest()
    chunk = AESGCM(KEY).encrypt(bytes(11) + b"\1", content, about)
    assert data[start + 80 : -64] == (len(chunk) | 1 << 31).to_bytes(4, "little") + chunk
    assert SITE.public.signing.verify(
        data[-64:], b"abaton-seal-1 signature\0" + hashlib.sha256(data[:-64]).digest()
    )
