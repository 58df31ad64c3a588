"""Payload fields as text, for inspection."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abaton.codecs import payload_format, sparse_codec, sstc, stc
from abaton.codecs.registry import CODECS

if TYPE_CHECKING:
    from abaton.layout import Layout


@dataclass(frozen=True, slots=True)
class PayloadField:
    """One field of a payload: its offset and size in bytes, its name, its value as text."""

    offset: int
    size: int
    name: str
    value: str


def inspect_payload(payload: bytes, layout: Layout | None = None) -> list[PayloadField]:
    """Inspect a payload: return its header fields, and body fields that do not depend on the study's settings."""
    payload, statistics = payload_format.split_payload(payload)
    header = payload_format.read_header(payload)
    if layout is not None and (layout.trained is not layout or statistics):
        layout = layout.trained
    names = {codec.code: name for name, codec in CODECS.items()}
    name = names.get(header.codec, "unknown codec")
    layout_note = (
        ""
        if layout is None
        else ", matches the layout"
        if _has_layout(header, layout)
        else ", DIFFERS from the layout"
    )
    fields = [
        PayloadField(0, 4, "magic", "ABTN"),
        PayloadField(4, 1, "codec", f"{header.codec} ({name})"),
        PayloadField(5, 1, "version", str(header.version)),
        PayloadField(6, 2, "flags", f"{header.flags:#06x}{_format_flags(name, header.flags)}"),
        PayloadField(8, 8, "layout", f"{header.layout:016x}{layout_note}"),
        PayloadField(
            16,
            4,
            "d",
            f"{header.size:,} values, {4 * header.size / len(payload):,.1f}x smaller than raw",
        ),
        PayloadField(20, 4, "body length", f"{len(header.body):,}"),
    ]
    fields += _body_fields(
        name, header, layout if layout is not None and _has_layout(header, layout) else None
    )
    fields.append(PayloadField(len(payload) - 4, 4, "checksum", "CRC-32, matches"))
    if statistics:
        size = payload_format.read_header(statistics).size
        fields.append(PayloadField(len(payload), len(statistics), "statistics", f"{size:,} values, raw"))
    return fields


def _has_layout(header: payload_format.PayloadHeader, layout: Layout) -> bool:
    return header.layout == payload_format.layout_hash(layout) and header.size == layout.size


def _format_flags(name: str, flags: int) -> str:
    settings = {
        "stc": ((stc.SCOPES, 0, "scope"), (stc.CODINGS, 2, "coding"), (stc.BIASES, 4, "biases")),
        "sstc": ((sstc.CODINGS, 0, "coding"), (sstc.BIASES, 4, "biases")),
    }.get(name, ())
    values = [f"{setting}={_choice(choices, flags >> shift & 3)}" for choices, shift, setting in settings]
    return f" ({', '.join(values)})" if values else ""


def _choice(choices: tuple[str, ...], index: int) -> str:
    if index >= len(choices):
        raise payload_format.payload_error("its flags are unknown")
    return choices[index]


def _body_fields(
    name: str, header: payload_format.PayloadHeader, layout: Layout | None
) -> list[PayloadField]:
    body, offset, fields = header.body, 24, []
    is_sparse = name in ("stc", "sstc") and len(body) >= 8
    if is_sparse and not (name == "stc" and header.flags & 3):
        scale, count = struct.unpack_from("<fI", body)
        fields = [PayloadField(24, 4, "μ", f"{scale:.6g}"), PayloadField(28, 4, "entries", f"{count:,}")]
        offset = 32
    dense_bytes = _dense_part_bytes(name, header.flags, layout) if is_sparse and layout is not None else 0
    end = 24 + len(body)
    if end - dense_bytes > offset:
        fields.append(
            PayloadField(
                offset,
                end - dense_bytes - offset,
                "coded" if is_sparse else "body",
                _bits_per_entry(fields, end - dense_bytes - offset),
            )
        )
    if dense_bytes:
        fields.append(PayloadField(end - dense_bytes, dense_bytes, "dense part", "biases and norms"))
    return fields


def _bits_per_entry(fields: list[PayloadField], size: int) -> str:
    count = int(fields[1].value.replace(",", "")) if fields else 0
    return f"{8 * size / count:.2f} bits per entry" if count else ""


def _dense_part_bytes(name: str, flags: int, layout: Layout) -> int:
    biases = _choice(stc.BIASES if name == "stc" else sstc.BIASES, flags >> 4 & 3)
    return sparse_codec.dense_part_bytes(
        sparse_codec.split_layout(layout, all_tensors=biases == "sparse"), biases
    )
