"""Sealed envelopes: authenticated encryption of content of any size to one recipient, signed by the sender.

The content is compressed and cut into chunks of 64 KiB. Each chunk is encrypted with AES-256-GCM under a key that is
used for one envelope and is wrapped for the recipient with HPKE. The nonce contains chunk number and last flag, so
chunks cannot be removed, repeated, exchanged or truncated. The sender signs the whole envelope. The header is
readable and authenticated. The format is specified in ``docs/sealed-format.md``.

Sealing and opening map pieces of bytes to pieces of bytes in constant memory. The output of :func:`open_envelope`
must not be used before its end, because only then is it verified. Sealed files are written and opened atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from abaton.atomic_files import atomic_write
from abaton.canonical_json import to_canonical_json
from abaton.errors import RefusedError, SettingsError
from abaton.governance.envelope_format import (
    CHUNK_BYTES,
    SIGNATURE_BYTES,
    Compression,
    EnvelopeHeader,
    FrameReader,
    encode_frame,
    read_frames,
    read_preamble,
    write_preamble,
)
from abaton.governance.keys import KeySet, PrivateKey, PublicKey
from abaton.governance.refusals import DeniedError, RefusalCode

MAX_CONTENT_BYTES = 1 << 40
_INFO = b"abaton-seal-1\0"  # frozen: part of the bytes
_SIGNED = b"abaton-seal-1 signature\0"  # frozen: part of the bytes
_MAX_ZSTD_WINDOW = 1 << 23  # memory that a hostile sender can make the reader allocate

Find = Callable[[str], PublicKey | None]
"""Lookup of the sender's signing key by id; None if it is not accepted."""


def seal(
    content: Iterable[bytes],
    header: EnvelopeHeader,
    signer: PrivateKey,
    recipient: PublicKey,
    content_key: bytes,
) -> Iterator[bytes]:
    """Seal content into an envelope, piece by piece.

    Args:
        content: The content.
        header: Readable header; its sender and recipient must be the two keys.
        signer: Signing key of the sender.
        recipient: Key to seal to.
        content_key: 32 random bytes for this envelope only.
    """
    if header.sender != signer.id or header.recipient != recipient.id or len(content_key) != 32:
        raise SettingsError(
            "the envelope header names other keys than those used",
            remedy="use the ids of signer and recipient, and a content key of 32 bytes",
        )
    preamble = write_preamble(header, recipient.wrap(content_key, _INFO + header.encode()))
    envelope_hash = hashlib.sha256(preamble)
    yield preamble
    associated_data, cipher = envelope_hash.digest(), AESGCM(content_key)
    for number, (chunk, last) in enumerate(_chunks(_compress(content, header.compression))):
        piece = encode_frame(cipher.encrypt(_nonce(number, last=last), chunk, associated_data), last=last)
        envelope_hash.update(piece)
        yield piece
    yield signer.sign(_SIGNED + envelope_hash.digest())


def open_envelope(
    pieces: Iterable[bytes], key_set: KeySet, find: Find, *, limit: int = MAX_CONTENT_BYTES
) -> Iterator[EnvelopeHeader | bytes]:
    """Open a sealed envelope: yield header, then content; use nothing before the end is reached.

    Args:
        pieces: Bytes of the envelope.
        key_set: Keys of the recipient.
        find: Returns the sender's key by id.
        limit: Largest size of the content in bytes.
    """
    reader = FrameReader(pieces)
    preamble = read_preamble(reader)
    sender = _sender(preamble.header, find)
    yield preamble.header
    info = _INFO + preamble.header.encode()
    content_key = key_set.opening_key(preamble.header.recipient).unwrap(preamble.wrapped, info)
    if len(content_key) != 32:
        raise DeniedError(
            RefusalCode.MALFORMED,
            f"the content key has {len(content_key)} bytes, not 32",
            where="sealed data",
        )
    envelope_hash = hashlib.sha256(preamble.raw)
    chunks = _decrypt(reader, envelope_hash, AESGCM(content_key), envelope_hash.digest())
    size = 0
    for piece in _decompress(chunks, preamble.header.compression):
        size += len(piece)
        if size > limit:
            raise DeniedError(
                RefusalCode.TOO_LARGE, f"the content is larger than {limit} bytes", where="sealed data"
            )
        yield piece
    _check_end(reader, envelope_hash, sender)


@dataclass(frozen=True, slots=True)
class EnvelopeInfo:
    """Header, digest and size of an unopened envelope."""

    header: EnvelopeHeader
    digest: str
    size: int


def inspect_envelope(pieces: Iterable[bytes], find: Find) -> EnvelopeInfo:
    """Check format and signature of a sealed envelope without opening it; the opening key can be elsewhere."""
    reader = FrameReader(pieces)
    preamble = read_preamble(reader)
    sender = _sender(preamble.header, find)
    envelope_hash, size = hashlib.sha256(preamble.raw), len(preamble.raw)
    for length, sealed, _ in read_frames(reader):
        envelope_hash.update(length + sealed)
        size += len(length) + len(sealed)
    signature = _check_end(reader, envelope_hash, sender)
    envelope_hash.update(signature)
    return EnvelopeInfo(preamble.header, envelope_hash.hexdigest(), size + len(signature))


def _sender(header: EnvelopeHeader, find: Find) -> PublicKey:
    key = find(header.sender)
    if key is None:
        raise DeniedError(
            RefusalCode.UNKNOWN_SENDER,
            "the sender's key is not registered",
            where="sealed data",
        )
    return key


def _check_end(reader: FrameReader, envelope_hash: hashlib._Hash, sender: PublicKey) -> bytes:
    signature = reader.read(SIGNATURE_BYTES)
    reader.expect_end()
    if not sender.verify(signature, _SIGNED + envelope_hash.digest()):
        raise DeniedError(
            RefusalCode.FORGED, "the signature does not verify with the sender's key", where="sealed data"
        )
    return signature


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _decrypt(
    reader: FrameReader, envelope_hash: hashlib._Hash, cipher: AESGCM, associated_data: bytes
) -> Iterator[bytes]:
    for number, (length, sealed, last) in enumerate(read_frames(reader)):
        envelope_hash.update(length + sealed)
        try:
            yield cipher.decrypt(_nonce(number, last=last), sealed, associated_data)
        except InvalidTag:
            raise DeniedError(
                RefusalCode.TAMPERED, f"chunk {number} was changed", where="sealed data"
            ) from None


def _chunks(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) > CHUNK_BYTES:  # keep the remainder: the last chunk has a flag
            yield bytes(waiting[:CHUNK_BYTES]), False
            del waiting[:CHUNK_BYTES]
    yield bytes(waiting), True


def _compress(pieces: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    if compression is Compression.NONE:
        yield from pieces
        return
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()


def _decompress(chunks: Iterator[bytes], compression: Compression) -> Iterator[bytes]:
    if compression is Compression.NONE:
        yield from chunks
        return
    source = _ChunkStream(chunks)
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    with decompressor.stream_reader(cast("IO[bytes]", source), read_size=CHUNK_BYTES) as stream:
        try:
            while piece := stream.read(CHUNK_BYTES):  # bounded, so a small chunk cannot exhaust memory
                yield piece
        except zstandard.ZstdError:
            raise DeniedError(
                RefusalCode.MALFORMED, "the content could not be decompressed", where="sealed data"
            ) from None
    if source.read(1):
        raise DeniedError(
            RefusalCode.MALFORMED, "bytes follow after the compressed content", where="sealed data"
        )


class _ChunkStream:
    """Readable stream over chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._waiting = chunks, b""

    def read(self, size: int = -1) -> bytes:
        while not self._waiting:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._waiting = chunk
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        return taken


_PIECE_BYTES = 1 << 18
_MAX_LINE_BYTES = 1 << 28


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file to seal or open as an envelope, in pieces of 256 KiB."""
    try:
        with path.open("rb") as file:
            yield from pieces_in(file)
    except OSError as error:
        raise SettingsError(
            "the file could not be read", where=str(path), remedy=error.strerror or "check the path"
        ) from None


def pieces_in(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes of an open file to seal or open as an envelope, in pieces of 256 KiB."""
    while piece := file.read(_PIECE_BYTES):
        yield piece


def canonical_lines(path: Path) -> Iterator[bytes]:
    """Yield the records of a file to be sealed as canonical JSON, one per line."""
    with path.open("rb") as file:
        if path.suffix == ".json":
            yield to_canonical_json(_json(file.read(), path, 1)) + b"\n"
            return
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 1):
            if line.strip():
                yield to_canonical_json(_json(line, path, number)) + b"\n"


def _json(raw: bytes, path: Path, line: int) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise RefusedError(
            "the line is not JSON",
            where=f"{path.name}, line {line}",
            remedy="correct it, or seal the file with --no-canonicalise",
        ) from None


def seal_file(
    content: Iterable[bytes],
    target: Path,
    header: EnvelopeHeader,
    signer: PrivateKey,
    recipient: PublicKey,
    content_key: bytes,
) -> int:
    """Seal content into a new envelope file, atomically, and return its size."""
    size = 0
    with new_file(target) as file:
        for piece in seal(content, header, signer, recipient, content_key):
            size += file.write(piece)
    return size


def open_file(
    source: Path,
    target: Path,
    key_set: KeySet,
    find: Find,
    *,
    accept: Callable[[EnvelopeInfo], object],
    limit: int = MAX_CONTENT_BYTES,
) -> EnvelopeInfo:
    """Open a sealed envelope file; the target appears only after complete verification.

    Args:
        source: The sealed file.
        target: File for the content.
        key_set: Keys of the recipient.
        find: Returns the sender's key by id.
        accept: Called after verification, before the content appears; raises to refuse (replay, wrong study).
        limit: Largest size of the content in bytes.
    """
    info = inspect_envelope(pieces_of(source), find)
    with new_file(target) as file:
        stream = open_envelope(pieces_of(source), key_set, find, limit=limit)
        next(stream)
        for piece in stream:
            assert isinstance(piece, bytes)
            file.write(piece)
        accept(info)
    return info


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[IO[bytes]]:
    """Open a private file (mode 0600) for an envelope or its content; it appears when it is complete."""
    try:
        with atomic_write(target, mode=0o600) as temporary, temporary.open("wb") as file:
            yield file
        sync_folder(target.parent)
    except OSError as error:
        raise SettingsError(
            "the file could not be written", where=str(target), remedy=error.strerror or "choose another path"
        ) from None


def sync_folder(folder: Path) -> None:
    """Sync the folder of an envelope, so that its new name survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
