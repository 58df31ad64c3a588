"""The envelope of every payload: a header of 24 bytes, the codec's body, a checksum of 4.

All numbers are little-endian; ``docs/wire-format.md`` has the bytes::

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


class Envelope(NamedTuple):
    """What a payload says about itself, and its body."""

    codec: int
    version: int
    flags: int
    layout: int
    size: int
    body: memoryview


def layout_hash(layout: Layout) -> int:
    """The layout's name in a header: the first 64 bits of its digest."""
    return int(layout.digest[:16], 16)


def pack(code: int, layout: Layout, *body: bytes | memoryview, flags: int = 0) -> bytes:
    """A payload: the parts of a body in their envelope."""
    length = sum(memoryview(part).nbytes for part in body)
    if layout.size > _MAX or length > _MAX:
        raise LayoutError(
            f"the model has {layout.size:,} numbers, a payload can name {_MAX:,}",
            remedy="split the model into several layouts",
        )
    header = _HEADER.pack(MAGIC, code, VERSION, flags, layout_hash(layout), layout.size, length)
    crc = crc32(header)
    for part in body:
        crc = crc32(part, crc)
    return b"".join((header, *body, _TRAILER.pack(crc)))


def read(payload: bytes) -> Envelope:
    """Open a payload's envelope without knowing whose it is; nothing is copied."""
    view = memoryview(payload)
    if len(view) < OVERHEAD:
        raise _broken(f"it has {len(view)} bytes, the shortest has {OVERHEAD}")
    magic, code, version, flags, layout, size, length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise _broken("it does not start with 'ABTN'")
    if version != VERSION:
        raise PayloadError(
            f"the payload has format version {version}, this build reads {VERSION}",
            remedy="use the same Abaton version at the site and the centre",
        )
    if length != len(view) - OVERHEAD:
        raise _broken(f"its header says {length:,} body bytes, there are {len(view) - OVERHEAD:,}")
    if crc32(view[:-4]) != _TRAILER.unpack_from(view, len(view) - 4)[0]:
        raise _broken("its checksum does not match")
    return Envelope(code, version, flags, layout, size, view[24:-4])


def unpack(payload: bytes, code: int, layout: Layout, *, flags: int = 0) -> Envelope:
    """Open a payload that must be of this codec and this layout; ``flags`` masks the ones allowed."""
    envelope = read(payload)
    if envelope.codec != code:
        raise PayloadError(
            f"the payload was written by codec {envelope.codec}, expected {code}",
            remedy="use the study's codec at every site",
        )
    if envelope.layout != layout_hash(layout) or envelope.size != layout.size:
        raise PayloadError(
            "the payload was made for another model",
            where=f"layout {layout.digest[:12]}, {layout.size:,} numbers",
            remedy="fetch the community model of this study again",
        )
    if envelope.flags & ~flags:
        raise _broken(f"it has unknown flags {envelope.flags & ~flags:#06x}")
    return envelope


def exact(body: memoryview, size: int) -> None:
    """Refuse a body that is not exactly as long as it must be."""
    if len(body) != size:
        raise _broken(f"its body has {len(body):,} bytes, {size:,} were expected")


def _broken(what: str) -> PayloadError:
    return PayloadError(f"the payload is broken: {what}", remedy="send it again")
