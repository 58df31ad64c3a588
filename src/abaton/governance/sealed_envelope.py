"""Sealing: content in any size, readable by one recipient alone, from a sender who cannot be imitated.

The content is compressed and cut into chunks of 64 KiB. Each is encrypted with AES-256-GCM under a key that is used
for this envelope only and is itself sealed to the recipient (HPKE). The number of a chunk and whether it is the last
are in its nonce, so chunks cannot be left out, repeated, exchanged or cut off. The sender signs all of it at the end.
Everything in the head is readable on the way and bound to the content: change a letter and it does not open. The whole
format is told byte by byte in ``docs/sealed-format.md``.

Sealing and opening are functions from pieces of bytes to pieces of bytes; memory does not grow with the content. What
:func:`opened` yields must not be used before it has come to its end: only then is it known to be whole and genuine.
Sealed files are written and opened whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Self, cast

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from abaton.canonical_json import canonical
from abaton.errors import AbatonError, Refused, SettingsError
from abaton.atomic_files import replacing
from abaton.governance.keys import Kind, PrivateKey, PublicKey, Ring
from abaton.governance.identifiers import Denied, RefusalCode, is_digest, is_name, is_tag

MAGIC = b"ABATSEAL"
FORMAT = "abaton-sealed/1"
CHUNK = 65_536
MOST_HEAD = 4_096
MOST_WRAPPED = 4_096
SIGNATURE_BYTES = 64
TAG_BYTES = 16
LAST = 1 << 31

_LENGTH = struct.Struct("<I")


class Compression(StrEnum):
    """How the content is made smaller before it is sealed."""

    ZSTD = "zstd"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Header:
    """What is written on the outside of an envelope.

    Args:
        study: The study's identifier.
        document: The fingerprint of the study document that the content was made under.
        sender: The id of the sender's signing key.
        recipient: The id of the key it is sealed to.
        sequence: A number that the sender uses once in a study.
        subject: The tag of the one person inside, or empty when it holds many or none.
        created: When it was sealed.
        compression: How the content was made smaller.
    """

    study: str
    document: str
    sender: str
    recipient: str
    sequence: int
    subject: str
    created: str
    compression: Compression = Compression.ZSTD

    def __post_init__(self) -> None:
        if not self._is_sound():
            raise Denied(RefusalCode.MALFORMED, "the head of the envelope is not sound", where="sealed data")

    def _is_sound(self) -> bool:
        return (
            is_name(self.study)
            and is_digest(self.document)
            and _is_key_id(self.sender, {Kind.SIGN})
            and _is_key_id(self.recipient, {Kind.SEAL, Kind.HYBRID})
            and type(self.sequence) is int
            and 0 <= self.sequence < 2**53
            and (self.subject == "" or is_tag(self.subject))
            and isinstance(self.created, str)
            and len(self.created) <= 40
            and self.created.isascii()
        )

    def written(self) -> bytes:
        """The head as it is written."""
        return canonical({"format": FORMAT, **asdict(self), "compression": self.compression.value})

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """The head as it was written; anything that this version would have written otherwise is refused."""
        try:
            row: dict[str, Any] = json.loads(raw)
            if row.pop("format") != FORMAT:
                raise TypeError
            header = cls(**{**row, "compression": Compression(row["compression"])})
            if header.written() != raw:
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise Denied(
                RefusalCode.MALFORMED, "this is not sealed data of this form", where="sealed data"
            ) from None
        except Denied:
            raise
        except AbatonError:
            raise Denied(
                RefusalCode.MALFORMED, "this is not sealed data of this form", where="sealed data"
            ) from None
        return header


def _is_key_id(text: object, kinds: set[Kind]) -> bool:
    if not isinstance(text, str):
        return False
    kind, _, name = text.partition(":")
    return kind in {k.value for k in kinds} and is_tag(name)


class Pieces:
    """Bytes that come in pieces of any size, taken in the sizes that are needed."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._waiting = bytearray()

    def take(self, size: int) -> bytes:
        """The next bytes; too few of them is a truncation."""
        while len(self._waiting) < size:
            piece = next(self._pieces, None)
            if piece is None:
                raise Denied(RefusalCode.TRUNCATED, "the end is missing", where="sealed data")
            self._waiting += piece
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self._waiting or any(self._pieces):
            raise Denied(RefusalCode.MALFORMED, "something follows after the end", where="sealed data")


@dataclass(frozen=True, slots=True)
class Preamble:
    """All that stands before the chunks."""

    header: Header
    wrapped: bytes
    raw: bytes


def write_preamble(header: Header, wrapped: bytes) -> bytes:
    """Magic, head and the sealed key, each with its length."""
    head = header.written()
    return MAGIC + _LENGTH.pack(len(head)) + head + _LENGTH.pack(len(wrapped)) + wrapped


def read_preamble(pieces: Pieces) -> Preamble:
    """What stands before the chunks; lengths beyond their limits are refused before anything is read."""
    if pieces.take(len(MAGIC)) != MAGIC:
        raise Denied(RefusalCode.MALFORMED, "this is not sealed data", where="sealed data")
    head = _lengthy(pieces, MOST_HEAD)
    header = Header.read(head)
    wrapped = _lengthy(pieces, MOST_WRAPPED)
    return Preamble(header, wrapped, write_preamble(header, wrapped))


def _lengthy(pieces: Pieces, most: int) -> bytes:
    (size,) = _LENGTH.unpack(pieces.take(_LENGTH.size))
    if size > most:
        raise Denied(RefusalCode.MALFORMED, "a length is beyond its limit", where="sealed data")
    return pieces.take(size)


def read_frames(pieces: Pieces) -> Iterator[tuple[bytes, bytes, bool]]:
    """Every chunk as (its length as written, its bytes, whether it is the last)."""
    last = False
    while not last:
        raw = pieces.take(_LENGTH.size)
        (word,) = _LENGTH.unpack(raw)
        last, size = bool(word & LAST), word & ~LAST
        whole = CHUNK + TAG_BYTES
        if (size != whole and not last) or not TAG_BYTES <= size <= whole:
            raise Denied(RefusalCode.MALFORMED, "a chunk has a length that cannot be", where="sealed data")
        yield raw, pieces.take(size), last


def frame(sealed: bytes, *, last: bool) -> bytes:
    """A chunk with its length and the sign that it is the last."""
    return _LENGTH.pack(len(sealed) | (LAST if last else 0)) + sealed


MOST_CONTENT = 1 << 40
_INFO = b"abaton-seal-1\0"
_SIGNED = b"abaton-seal-1 signature\0"
_LARGEST_WINDOW = 1 << 23  # what a hostile sender can make the reader set aside

Find = Callable[[str], PublicKey | None]
"""The sender's signing key by its id, or nothing if it does not count."""


def seal(
    content: Iterable[bytes], header: Header, signer: PrivateKey, recipient: PublicKey, content_key: bytes
) -> Iterator[bytes]:
    """Seal content piece by piece.

    Args:
        content: What to seal.
        header: What is written on the outside; its sender and recipient must be the two keys.
        signer: The sender's signing key.
        recipient: The key to seal to.
        content_key: 32 random bytes that are used for nothing else, ever.
    """
    if header.sender != signer.id or header.recipient != recipient.id or len(content_key) != 32:
        raise SettingsError("the head of the envelope names other keys", remedy="name those that are used")
    opening = write_preamble(header, recipient.wrap(content_key, _INFO + header.written()))
    written = hashlib.sha256(opening)
    yield opening
    about, cipher = written.digest(), AESGCM(content_key)
    for number, (chunk, last) in enumerate(_chunks(_compressed(content, header.compression))):
        piece = frame(cipher.encrypt(_nonce(number, last=last), chunk, about), last=last)
        written.update(piece)
        yield piece
    yield signer.sign(_SIGNED + written.digest())


def opened(
    pieces: Iterable[bytes], ring: Ring, find: Find, *, limit: int = MOST_CONTENT
) -> Iterator[Header | bytes]:
    """Open an envelope: first its header, then the content in pieces. Use nothing of it before the end is reached.

    Args:
        pieces: The envelope's bytes.
        ring: The recipient's keys.
        find: The sender's key by its id.
        limit: The most bytes that the content may have.
    """
    reading = Pieces(pieces)
    preamble = read_preamble(reading)
    sender = _sender(preamble.header, find)
    yield preamble.header
    info = _INFO + preamble.header.written()
    content_key = ring.opening(preamble.header.recipient).unwrap(preamble.wrapped, info)
    if len(content_key) != 32:
        raise Denied(RefusalCode.MALFORMED, "the sealed key has another length", where="sealed data")
    seen = hashlib.sha256(preamble.raw)
    chunks = _decrypted(reading, seen, AESGCM(content_key), seen.digest())
    size = 0
    for piece in _expanded(chunks, preamble.header.compression):
        size += len(piece)
        if size > limit:
            raise Denied(RefusalCode.TOO_LARGE, "the content is larger than allowed", where="sealed data")
        yield piece
    _check_end(reading, seen, sender)


@dataclass(frozen=True, slots=True)
class Looked:
    """What can be known of an envelope without opening it: its head, its fingerprint and its size."""

    header: Header
    digest: str
    size: int


def look(pieces: Iterable[bytes], find: Find) -> Looked:
    """Check form and signature of an envelope without being able to read it.

    This is what a service that takes envelopes needs; the key that opens them can stay elsewhere.
    """
    reading = Pieces(pieces)
    preamble = read_preamble(reading)
    sender = _sender(preamble.header, find)
    seen, size = hashlib.sha256(preamble.raw), len(preamble.raw)
    for length, sealed, _ in read_frames(reading):
        seen.update(length + sealed)
        size += len(length) + len(sealed)
    signature = _check_end(reading, seen, sender)
    seen.update(signature)
    return Looked(preamble.header, seen.hexdigest(), size + len(signature))


def _sender(header: Header, find: Find) -> PublicKey:
    found = find(header.sender)
    if found is None:
        raise Denied(RefusalCode.UNKNOWN_SENDER, "nobody here knows the sender", where="sealed data")
    return found


def _check_end(reading: Pieces, seen: hashlib._Hash, sender: PublicKey) -> bytes:
    signature = reading.take(SIGNATURE_BYTES)
    reading.end()
    if not sender.verify(signature, _SIGNED + seen.digest()):
        raise Denied(RefusalCode.FORGED, "the signature is not the sender's", where="sealed data")
    return signature


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _decrypted(reading: Pieces, seen: hashlib._Hash, cipher: AESGCM, about: bytes) -> Iterator[bytes]:
    for number, (length, sealed, last) in enumerate(read_frames(reading)):
        seen.update(length + sealed)
        try:
            yield cipher.decrypt(_nonce(number, last=last), sealed, about)
        except InvalidTag:
            raise Denied(RefusalCode.TAMPERED, f"chunk {number} was changed", where="sealed data") from None


def _chunks(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) > CHUNK:  # never all of it: the last chunk must be known as such
            yield bytes(waiting[:CHUNK]), False
            del waiting[:CHUNK]
    yield bytes(waiting), True


def _compressed(pieces: Iterable[bytes], how: Compression) -> Iterator[bytes]:
    if how is Compression.NONE:
        yield from pieces
        return
    packing = zstandard.ZstdCompressor(level=3).compressobj()
    for piece in pieces:
        yield packing.compress(piece)
    yield packing.flush()


def _expanded(chunks: Iterator[bytes], how: Compression) -> Iterator[bytes]:
    if how is Compression.NONE:
        yield from chunks
        return
    source = _Readable(chunks)
    unpacking = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    with unpacking.stream_reader(cast("IO[bytes]", source), read_size=CHUNK) as stream:
        try:
            while piece := stream.read(CHUNK):  # bounded: a small chunk cannot fill the memory
                yield piece
        except zstandard.ZstdError:
            raise Denied(RefusalCode.MALFORMED, "the content does not unpack", where="sealed data") from None
    if source.read(1):
        raise Denied(RefusalCode.MALFORMED, "something follows after the content", where="sealed data")


class _Readable:
    """Chunks as something that can be read from."""

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


_PIECE = 1 << 18
_LONGEST_LINE = 1 << 28


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file's bytes, a quarter of a megabyte at a time."""
    try:
        with path.open("rb") as file:
            yield from pieces_in(file)
    except OSError as error:
        raise SettingsError(
            "the file cannot be read", where=str(path), remedy=error.strerror or "check the path"
        ) from None


def pieces_in(file: IO[bytes]) -> Iterator[bytes]:
    """The bytes of an open file, a quarter of a megabyte at a time."""
    while piece := file.read(_PIECE):
        yield piece


def canonical_lines(path: Path) -> Iterator[bytes]:
    """The records of a file, one line each in the one form that stands for their content."""
    with path.open("rb") as file:
        if path.suffix == ".json":
            yield canonical(_json(file.read(), path, 1)) + b"\n"
            return
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
            if line.strip():
                yield canonical(_json(line, path, number)) + b"\n"


def _json(raw: bytes, path: Path, line: int) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(
            "this is not JSON",
            where=f"{path.name}, line {line}",
            remedy="mend it, or seal the file with --as-is",
        ) from None


def seal_file(
    content: Iterable[bytes],
    target: Path,
    header: Header,
    signer: PrivateKey,
    recipient: PublicKey,
    content_key: bytes,
) -> int:
    """Seal content into a file and return its size; the file is there only when it is complete and on the disk."""
    size = 0
    with appearing(target) as file:
        for piece in seal(content, header, signer, recipient, content_key):
            size += file.write(piece)
    return size


def open_file(
    source: Path,
    target: Path,
    ring: Ring,
    find: Find,
    *,
    accept: Callable[[Looked], object],
    limit: int = MOST_CONTENT,
) -> Looked:
    """Open a sealed file; nothing is under the target's name until all of it is known to be whole and genuine.

    Args:
        source: The sealed file.
        target: Where the content goes.
        ring: The recipient's keys.
        find: The sender's key by its id.
        accept: Called once all is verified, before the content appears; it raises to refuse (replays, wrong study).
        limit: The most bytes that the content may have.
    """
    looked = look(pieces_of(source), find)
    with appearing(target) as file:
        stream = opened(pieces_of(source), ring, find, limit=limit)
        next(stream)
        for piece in stream:
            assert isinstance(piece, bytes)
            file.write(piece)
        accept(looked)
    return looked


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when it is complete, readable by its owner alone."""
    try:
        with replacing(target, mode=0o600) as begun, begun.open("wb") as file:
            yield file
        sync_folder(target.parent)
    except OSError as error:
        raise SettingsError(
            "the file was not written", where=str(target), remedy=error.strerror or "choose another place"
        ) from None


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
