"""The head of a sealed envelope: for which study, from whom, to which key, and under which number.

Everything in the head is readable on the way and bound to the content: change a letter and it does not open. The whole
format is told byte by byte in ``docs/sealed-format.md``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from abaton.canonical import canonical
from abaton.errors import AbatonError
from abaton.governance.keys import Kind
from abaton.governance.refusals import Code, Denied
from abaton.governance.tags import is_digest, is_name, is_tag

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
            raise Denied(Code.MALFORMED, "the head of the envelope is not sound", where="sealed data")

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
                Code.MALFORMED, "this is not sealed data of this form", where="sealed data"
            ) from None
        except Denied:
            raise
        except AbatonError:
            raise Denied(
                Code.MALFORMED, "this is not sealed data of this form", where="sealed data"
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
                raise Denied(Code.TRUNCATED, "the end is missing", where="sealed data")
            self._waiting += piece
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self._waiting or any(self._pieces):
            raise Denied(Code.MALFORMED, "something follows after the end", where="sealed data")


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
        raise Denied(Code.MALFORMED, "this is not sealed data", where="sealed data")
    head = _lengthy(pieces, MOST_HEAD)
    header = Header.read(head)
    wrapped = _lengthy(pieces, MOST_WRAPPED)
    return Preamble(header, wrapped, write_preamble(header, wrapped))


def _lengthy(pieces: Pieces, most: int) -> bytes:
    (size,) = _LENGTH.unpack(pieces.take(_LENGTH.size))
    if size > most:
        raise Denied(Code.MALFORMED, "a length is beyond its limit", where="sealed data")
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
            raise Denied(Code.MALFORMED, "a chunk has a length that cannot be", where="sealed data")
        yield raw, pieces.take(size), last


def frame(sealed: bytes, *, last: bool) -> bytes:
    """A chunk with its length and the sign that it is the last."""
    return _LENGTH.pack(len(sealed) | (LAST if last else 0)) + sealed
