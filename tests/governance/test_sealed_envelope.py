from __future__ import annotations

import hashlib
import tracemalloc
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.governance.conftest import WHEN, random_source

from abaton.errors import AbatonError
from abaton.governance.envelope_format import (
    CHUNK_BYTES,
    MAGIC,
    Compression,
    EnvelopeHeader,
    encode_frame,
    write_preamble,
)
from abaton.governance.keys import KeySet
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.sealed_envelope import (
    canonical_lines,
    inspect_envelope,
    open_envelope,
    open_file,
    seal,
    seal_file,
)

CENTRE = KeySet.new("centre", random_source("centre"), WHEN)
SITE = KeySet.new("site-a", random_source("site"), WHEN)
HYBRID = KeySet.new("hybrid", random_source("hybrid"), WHEN, hybrid=True)
KEY = bytes(range(32))


def header_with(compression=Compression.ZSTD, centre=CENTRE, **changes) -> EnvelopeHeader:
    default = EnvelopeHeader(
        "heart", "ab" * 32, SITE.signing_key.id, centre.public.sealing_key.id, 1, "A" * 26, WHEN, compression
    )
    return replace(default, **changes)


def sealed(content: bytes, header: EnvelopeHeader | None = None, centre=CENTRE) -> bytes:
    header = header or header_with(centre=centre)
    return b"".join(seal([content], header, SITE.signing_key, centre.public.sealing_key, KEY))


def open_bytes(data: bytes, key_set=CENTRE, site=SITE, limit=1 << 30) -> bytes:
    stream = open_envelope([data], key_set, site.public.key, limit=limit)
    assert isinstance(next(stream), EnvelopeHeader)
    return b"".join(stream)


def refused(data: bytes, **more) -> RefusalCode:
    with pytest.raises(DeniedError) as caught:
        open_bytes(data, **more)
    return caught.value.code


@given(st.binary(max_size=300_000), st.sampled_from(Compression), st.integers(1, 100_000))
def test_sealed_content_opens(content, compression, step):
    pieces = [content[i : i + step] for i in range(0, len(content), step)]
    header = header_with(compression)
    data = b"".join(seal(pieces, header, SITE.signing_key, CENTRE.public.sealing_key, KEY))
    assert open_bytes(data) == content
    info = inspect_envelope([data[i : i + step] for i in range(0, len(data), step)], SITE.public.key)
    assert (info.header, info.size, info.digest) == (
        header,
        len(data),
        hashlib.sha256(data).hexdigest(),
    )


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_every_border_of_a_chunk(size):
    content = random_source("c")(size)
    data = sealed(content, header_with(Compression.NONE))
    assert open_bytes(data) == content
    chunks = max(1, -(-size // CHUNK_BYTES))
    preamble = len(data) - 64 - size - chunks * 20
    assert preamble == len(write_preamble(header_with(Compression.NONE), b"x" * 80))


def test_hybrid_keys_seal_too():
    data = sealed(b"x" * 100_000, centre=HYBRID)
    assert open_bytes(data, key_set=HYBRID) == b"x" * 100_000


def test_only_the_recipient_can_open_and_only_a_known_sender_is_accepted():
    data = sealed(b"secret")
    stranger = KeySet.new("centre", random_source("stranger"), WHEN)
    assert refused(data, key_set=stranger) is RefusalCode.UNKNOWN_KEY
    assert refused(data, site=stranger) is RefusalCode.UNKNOWN_SENDER
    assert b"secret" not in data


def test_a_sender_cannot_sign_the_envelope_of_another_sender():
    thief = KeySet.new("thief", random_source("thief"), WHEN)
    data = sealed(b"secret", header_with(Compression.NONE))
    stolen = data.replace(SITE.signing_key.id.encode(), thief.signing_key.id.encode())[:-64]
    signed = stolen + thief.signing_key.sign(b"abaton-seal-1 signature\0" + hashlib.sha256(stolen).digest())
    assert (
        inspect_envelope([signed], thief.public.key).header.sender == thief.signing_key.id
    )  # the signature verifies
    assert refused(signed, site=thief) is RefusalCode.TAMPERED  # but the content does not decrypt


@pytest.mark.parametrize(
    "change", [{"study": "lungs"}, {"document": "cd" * 32}, {"sequence": 2}, {"subject": "B" * 26}]
)
def test_the_header_is_bound_to_the_content(change):
    """A sender's signing key does not suffice to move a wrapped key to another header."""
    header, other = header_with(Compression.NONE), header_with(Compression.NONE, **change)
    data = sealed(b"secret", header)
    moved = data[:-64].replace(header.encode(), other.encode())
    signed = moved + SITE.signing_key.sign(b"abaton-seal-1 signature\0" + hashlib.sha256(moved).digest())
    assert refused(signed) is RefusalCode.TAMPERED


def split_envelope(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    start = len(data) - 64 - 3 * (CHUNK_BYTES + 20)
    step = CHUNK_BYTES + 20
    return data[:start], [data[start + i * step : start + (i + 1) * step] for i in range(3)], data[-64:]


@pytest.mark.parametrize("order", [[0, 1], [0, 2], [1, 0, 2], [0, 1, 1, 2], [0, 0, 2], [2], [0, 1, 2, 2]])
def test_chunks_cannot_be_dropped_exchanged_or_repeated_even_by_the_sender(order):
    content = random_source("c")(3 * CHUNK_BYTES)
    start, chunks, _ = split_envelope(sealed(content, header_with(Compression.NONE)))
    moved = start + b"".join(chunks[i] for i in order)
    signed = moved + SITE.signing_key.sign(b"abaton-seal-1 signature\0" + hashlib.sha256(moved).digest())
    assert refused(signed) in {RefusalCode.TAMPERED, RefusalCode.TRUNCATED, RefusalCode.MALFORMED}


def test_the_last_flag_cannot_be_moved():
    start, chunks, _ = split_envelope(
        sealed(random_source("c")(3 * CHUNK_BYTES), header_with(Compression.NONE))
    )
    body = chunks[0][4:]
    moved = start + encode_frame(body, last=True)
    signed = moved + SITE.signing_key.sign(b"abaton-seal-1 signature\0" + hashlib.sha256(moved).digest())
    assert refused(signed) is RefusalCode.TAMPERED


SMALL = sealed(b"a little content", header_with(Compression.NONE))


def test_every_truncation_is_noticed():
    for end in range(len(SMALL)):
        assert refused(SMALL[:end]) is RefusalCode.TRUNCATED
        with pytest.raises(DeniedError):
            inspect_envelope([SMALL[:end]], SITE.public.key)
    assert refused(SMALL + b"\0") is RefusalCode.MALFORMED


def test_every_flipped_bit_is_noticed():
    for position in range(len(SMALL)):
        for bit in (0, 7):
            flipped = bytearray(SMALL)
            flipped[position] ^= 1 << bit
            with pytest.raises(DeniedError):
                open_bytes(bytes(flipped))
            with pytest.raises(DeniedError):
                inspect_envelope([bytes(flipped)], SITE.public.key)


@given(st.binary(max_size=500))
@settings(max_examples=200)
def test_random_bytes_are_refused(noise):
    for data in (noise, MAGIC + noise, SMALL[:100] + noise):
        with pytest.raises(DeniedError):
            open_bytes(data)


@given(st.dictionaries(st.text(max_size=12), st.none() | st.text() | st.integers() | st.floats(), max_size=9))
def test_foreign_headers_are_refused(row):
    import json

    with pytest.raises(AbatonError):
        EnvelopeHeader.decode(json.dumps(row).encode())


def test_a_bomb_is_refused_in_constant_memory():
    header = header_with()
    zeros = (bytes(1 << 20) for _ in range(64))
    data = b"".join(seal(zeros, header, SITE.signing_key, CENTRE.public.sealing_key, KEY))
    assert len(data) < 20_000
    tracemalloc.start()
    with pytest.raises(DeniedError) as caught:
        deque(open_envelope([data], CENTRE, SITE.public.key, limit=10 << 20), maxlen=0)
    assert caught.value.code is RefusalCode.TOO_LARGE
    assert sum(1 for _ in open_envelope([data], CENTRE, SITE.public.key)) > 64
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_large_exports_pass_in_constant_memory(tmp_path):
    piece = random_source("big")(1 << 20)
    tracemalloc.start()
    source, target = tmp_path / "sealed", tmp_path / "plain"
    seal_file(
        (piece for _ in range(40)), source, header_with(), SITE.signing_key, CENTRE.public.sealing_key, KEY
    )
    open_file(source, target, CENTRE, SITE.public.key, accept=lambda info: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert target.stat().st_size == 40 << 20
    assert target.stat().st_mode & 0o777 == 0o600
    assert peak < 8 << 20


def test_the_target_appears_only_after_verification(tmp_path):
    source, target = tmp_path / "sealed", tmp_path / "plain"
    data = sealed(random_source("c")(4 * CHUNK_BYTES))
    source.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DeniedError):
        open_file(source, target, CENTRE, SITE.public.key, accept=lambda info: None)

    def refuse(info):
        raise DeniedError(RefusalCode.REPLAYED, "the envelope was opened before")

    source.write_bytes(data)
    with pytest.raises(DeniedError):
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


def test_golden_envelopes_open():
    """If these bytes no longer open, the format has changed and needs a new number in the magic bytes."""
    for name, key_set in (("sealed-x25519.hex", CENTRE), ("sealed-hybrid.hex", HYBRID)):
        data = bytes.fromhex((Path(__file__).parent / name).read_text())
        assert open_bytes(data, key_set=key_set) == b'{"resourceType":"Patient"}\n' * 3


def test_the_bytes_are_those_of_the_documentation():
    """All bytes but the wrapped key, which HPKE randomises, follow from the arguments."""
    content, header = b'{"resourceType":"Patient"}\n', header_with(Compression.NONE)
    data = sealed(content, header)
    start = len(MAGIC) + 4 + len(header.encode()) + 4
    assert data[: start - 4] == MAGIC + len(header.encode()).to_bytes(4, "little") + header.encode()
    assert data[start - 4 : start] == (80).to_bytes(
        4, "little"
    )  # 32 encapsulated key, 32 content key, 16 tag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    associated_data = hashlib.sha256(data[: start + 80]).digest()
    chunk = AESGCM(KEY).encrypt(bytes(11) + b"\1", content, associated_data)
    assert data[start + 80 : -64] == (len(chunk) | 1 << 31).to_bytes(4, "little") + chunk
    assert SITE.public.signing_key.verify(
        data[-64:], b"abaton-seal-1 signature\0" + hashlib.sha256(data[:-64]).digest()
    )
