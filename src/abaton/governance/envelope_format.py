"""Format of sealed envelopes: header, preamble and frames (``docs/sealed-format.md``)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from abaton.canonical_json import to_canonical_json
from abaton.errors import AbatonError
from abaton.governance.identifiers import is_digest, is_name, is_pseudonym
from abaton.governance.keys import KeyKind
from abaton.governance.refusals import DeniedError, RefusalCode

MAGIC = b"ABATSEAL"


FORMAT = "abaton-sealed/1"


CHUNK_BYTES = 65_536


MAX_HEADER_BYTES = 4_096


MAX_WRAPPED_BYTES = 4_096


SIGNATURE_BYTES = 64


TAG_BYTES = 16


LAST_FLAG = 1 << 31


_LENGTH = struct.Struct("<I")


class Compression(StrEnum):
    """Compression of the content before encryption."""

    ZSTD = "zstd"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EnvelopeHeader:
    """Readable header of an envelope.

    Args:
        study: Identifier of the study.
        document: Digest of the study document under which the content was prepared.
        sender: Id of the sender's signing key.
        recipient: Id of the key that the envelope is sealed to.
        sequence: Number that the sender uses once per study.
        subject: Registry pseudonym of the subject; empty if the envelope contains several subjects or none.
        created: Time of sealing.
        compression: Compression of the content.
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
        if not self._is_valid():
            raise DeniedError(
                RefusalCode.MALFORMED, "the envelope header has invalid fields", where="sealed data"
            )

    def _is_valid(self) -> bool:
        return (
            is_name(self.study)
            and is_digest(self.document)
            and _is_key_id(self.sender, {KeyKind.SIGN})
            and _is_key_id(self.recipient, {KeyKind.SEAL, KeyKind.HYBRID})
            and type(self.sequence) is int
            and 0 <= self.sequence < 2**53
            and (self.subject == "" or is_pseudonym(self.subject))
            and isinstance(self.created, str)
            and len(self.created) <= 40
            and self.created.isascii()
        )

    def encode(self) -> bytes:
        """Encode the header of the envelope format as canonical JSON."""
        return to_canonical_json({"format": FORMAT, **asdict(self), "compression": self.compression.value})

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Decode a header of the envelope format; bytes that this version would encode differently are refused."""
        try:
            row: dict[str, Any] = json.loads(raw)
            if row.pop("format") != FORMAT:
                raise TypeError
            header = cls(**{**row, "compression": Compression(row["compression"])})
            if header.encode() != raw:
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise DeniedError(
                RefusalCode.MALFORMED, "the envelope header is malformed", where="sealed data"
            ) from None
        except DeniedError:
            raise
        except AbatonError:
            raise DeniedError(
                RefusalCode.MALFORMED, "the envelope header is malformed", where="sealed data"
            ) from None
        return header


def _is_key_id(text: object, kinds: set[KeyKind]) -> bool:
    if not isinstance(text, str):
        return False
    kind, _, name = text.partition(":")
    return kind in {k.value for k in kinds} and is_pseudonym(name)


class FrameReader:
    """Reader of fixed sizes from pieces of any size."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._waiting = bytearray()

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes of an envelope in its binary format; a shorter input is a truncation."""
        while len(self._waiting) < size:
            piece = next(self._pieces, None)
            if piece is None:
                raise DeniedError(RefusalCode.TRUNCATED, "the envelope is truncated", where="sealed data")
            self._waiting += piece
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    def expect_end(self) -> None:
        """Raise an error if bytes follow the last frame of an envelope."""
        if self._waiting or any(self._pieces):
            raise DeniedError(
                RefusalCode.MALFORMED, "bytes follow after the end of the envelope", where="sealed data"
            )


@dataclass(frozen=True, slots=True)
class EnvelopePreamble:
    """Part of an envelope before the chunks."""

    header: EnvelopeHeader
    wrapped: bytes
    raw: bytes


def write_preamble(header: EnvelopeHeader, wrapped: bytes) -> bytes:
    """Return the preamble of the envelope format: magic bytes, header, wrapped content key, with lengths."""
    header_bytes = header.encode()
    return MAGIC + _LENGTH.pack(len(header_bytes)) + header_bytes + _LENGTH.pack(len(wrapped)) + wrapped


def read_preamble(pieces: FrameReader) -> EnvelopePreamble:
    """Read the preamble of the envelope format; lengths above their limits are refused before reading."""
    if pieces.read(len(MAGIC)) != MAGIC:
        raise DeniedError(RefusalCode.MALFORMED, "the data are not a sealed envelope", where="sealed data")
    header_bytes = _read_sized(pieces, MAX_HEADER_BYTES)
    header = EnvelopeHeader.decode(header_bytes)
    wrapped = _read_sized(pieces, MAX_WRAPPED_BYTES)
    return EnvelopePreamble(header, wrapped, write_preamble(header, wrapped))


def _read_sized(pieces: FrameReader, limit: int) -> bytes:
    (size,) = _LENGTH.unpack(pieces.read(_LENGTH.size))
    if size > limit:
        raise DeniedError(
            RefusalCode.MALFORMED,
            f"a length field is above its limit of {limit}",
            where="sealed data",
        )
    return pieces.read(size)


def read_frames(pieces: FrameReader) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield each frame of the envelope format as (length field, bytes, is last)."""
    last = False
    while not last:
        raw = pieces.read(_LENGTH.size)
        (length_word,) = _LENGTH.unpack(raw)
        last, size = bool(length_word & LAST_FLAG), length_word & ~LAST_FLAG
        full_bytes = CHUNK_BYTES + TAG_BYTES
        if (size != full_bytes and not last) or not TAG_BYTES <= size <= full_bytes:
            raise DeniedError(RefusalCode.MALFORMED, "a chunk has an invalid length", where="sealed data")
        yield raw, pieces.read(size), last


def encode_frame(sealed: bytes, *, last: bool) -> bytes:
    """Encode a chunk as a frame of the envelope format: its length field contains the flag for the last one."""
    return _LENGTH.pack(len(sealed) | (LAST_FLAG if last else 0)) + sealed
