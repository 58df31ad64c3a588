"""Payload format: a header of 24 bytes, the codec's body, a checksum of 4 bytes.

All integers are little-endian; see ``docs/wire-format.md``::

    0  magic 'ABTN'   4  codec u8   5  version u8   6  flags u16   8  layout u64
    16 d u32          20 body length u32            24 body ...    CRC-32 u32
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from abaton.errors import LayoutError, PayloadError
from abaton.layout import Layout

MAGIC = b"ABTN"
VERSION = 1
OVERHEAD = 28

_HEADER = struct.Struct("<4sBBHQII")
_TRAILER = struct.Struct("<I")
_MAX = 2**32 - 1


class PayloadHeader(NamedTuple):
    """Header fields of a payload, and its body."""

    codec: int
    version: int
    flags: int
    layout: int
    size: int
    body: memoryview


def layout_hash(layout: Layout) -> int:
    """Return the layout's identifier in a payload header: the first 64 bits of its digest."""
    return int(layout.digest[:16], 16)


def pack(code: int, layout: Layout, *body: bytes | memoryview, flags: int = 0) -> bytes:
    """Return a payload in the wire format: header, the concatenated body, checksum."""
    length = sum(memoryview(chunk).nbytes for chunk in body)
    if layout.size > _MAX or length > _MAX:
        raise LayoutError(
            f"the model has {layout.size:,} values and the body {length:,} bytes, a payload allows {_MAX:,}",
            remedy="split the model into several layouts",
        )
    header = _HEADER.pack(MAGIC, code, VERSION, flags, layout_hash(layout), layout.size, length)
    crc = crc32(header)
    for chunk in body:
        crc = crc32(chunk, crc)
    return b"".join((header, *body, _TRAILER.pack(crc)))


def read_header(payload: bytes) -> PayloadHeader:
    """Return the header and body of a payload of any codec, without copying."""
    view = memoryview(payload)
    if len(view) < OVERHEAD:
        raise payload_error(f"it has {len(view)} bytes, at least {OVERHEAD} are needed")
    magic, code, version, flags, layout, size, length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise payload_error("it does not start with 'ABTN'")
    if version != VERSION:
        raise PayloadError(
            f"the payload has format version {version}, this build reads {VERSION}",
            remedy="use the same Abaton version at the site and the centre",
        )
    if length != len(view) - OVERHEAD:
        raise payload_error(f"its header states {length:,} body bytes, there are {len(view) - OVERHEAD:,}")
    if crc32(view[:-4]) != _TRAILER.unpack_from(view, len(view) - 4)[0]:
        raise payload_error("its checksum does not match")
    return PayloadHeader(code, version, flags, layout, size, view[24:-4])


def split_payload(payload: bytes) -> tuple[bytes, bytes]:
    """Return the first payload, by the length in its header, and the bytes after it, such as a second payload."""
    if len(payload) < OVERHEAD:
        raise payload_error(f"it has {len(payload)} bytes, at least {OVERHEAD} are needed")
    end = OVERHEAD + int(_HEADER.unpack_from(payload)[-1])
    return payload[:end], payload[end:]


def unpack(payload: bytes, code: int, layout: Layout, *, flags: int = 0) -> PayloadHeader:
    """Check a payload's format for this codec and layout; return header and body; ``flags`` masks allowed flags."""
    header = read_header(payload)
    if header.codec != code:
        raise PayloadError(
            f"the payload has codec {header.codec}, expected {code}",
            remedy="use the study's codec at every site",
        )
    if header.layout != layout_hash(layout) or header.size != layout.size:
        raise PayloadError(
            "the payload belongs to another model",
            where=f"layout {layout.digest[:12]}, {layout.size:,} values",
            remedy="fetch the community model of this study again",
        )
    if header.flags & ~flags:
        raise payload_error(f"it has unknown flags {header.flags & ~flags:#06x}")
    return header


def check_body_size(body: memoryview, size: int) -> None:
    """Raise an error for a payload body of any other size."""
    if len(body) != size:
        raise payload_error(f"its body has {len(body):,} bytes, {size:,} were expected")


def payload_error(problem: str) -> PayloadError:
    """Return the error for a payload whose format is invalid."""
    return PayloadError(f"the payload is invalid: {problem}", remedy="send it again")
