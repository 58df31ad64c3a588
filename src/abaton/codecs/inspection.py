"""What a payload says, field by field: for people who look at bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abaton.codecs import sparse_codec as sparse, sstc, stc, payload_format
from abaton.codecs.registry import CODECS
from abaton.errors import PayloadError

if TYPE_CHECKING:
    from abaton.layout import Layout


@dataclass(frozen=True, slots=True)
class Field:
    """One piece of a payload."""

    at: int
    bytes: int
    name: str
    value: str


def explain(payload: bytes, layout: Layout | None = None) -> list[Field]:
    """Every field of the envelope, and of the body as far as its codec tells without the study's settings."""
    envelope = payload_format.read(payload)
    names = {codec.code: name for name, codec in CODECS.items()}
    name = names.get(envelope.codec, "unknown to this version")
    fits = (
        ""
        if layout is None
        else ", the layout given"
        if _fits(envelope, layout)
        else ", NOT the layout given"
    )
    fields = [
        Field(0, 4, "magic", "ABTN"),
        Field(4, 1, "codec", f"{envelope.codec} ({name})"),
        Field(5, 1, "version", str(envelope.version)),
        Field(6, 2, "flags", f"{envelope.flags:#06x}{_settings(name, envelope.flags)}"),
        Field(8, 8, "layout", f"{envelope.layout:016x}{fits}"),
        Field(
            16,
            4,
            "d",
            f"{envelope.size:,} numbers, {4 * envelope.size / len(payload):,.1f}x smaller than raw",
        ),
        Field(20, 4, "body length", f"{len(envelope.body):,}"),
    ]
    fields += _body(name, envelope, layout if layout is not None and _fits(envelope, layout) else None)
    return [*fields, Field(len(payload) - 4, 4, "checksum", "CRC-32, matches")]


def _fits(envelope: payload_format.Envelope, layout: Layout) -> bool:
    return envelope.layout == payload_format.layout_hash(layout) and envelope.size == layout.size


def _settings(name: str, flags: int) -> str:
    words = {
        "stc": ((stc.SCOPES, 0, "scope"), (stc.CODINGS, 2, "coding"), (stc.BIASES, 4, "biases")),
        "sstc": ((sstc.CODINGS, 0, "coding"), (sstc.BIASES, 4, "biases")),
    }.get(name, ())
    told = [f"{what}={_word(choices, flags >> shift & 3)}" for choices, shift, what in words]
    return f" ({', '.join(told)})" if told else ""


def _word(choices: tuple[str, ...], index: int) -> str:
    if index >= len(choices):
        raise PayloadError("the payload is broken: its flags name no setting", remedy="send it again")
    return choices[index]


def _body(name: str, envelope: payload_format.Envelope, layout: Layout | None) -> list[Field]:
    body, at, fields = envelope.body, 24, []
    sparse_codec = name in ("stc", "sstc") and len(body) >= 8
    if sparse_codec and not (name == "stc" and envelope.flags & 3):
        scale, count = struct.unpack_from("<fI", body)
        fields = [Field(24, 4, "μ", f"{scale:.6g}"), Field(28, 4, "entries", f"{count:,}")]
        at = 32
    rest = _rest(name, envelope.flags, layout) if sparse_codec and layout is not None else 0
    end = 24 + len(body)
    if end - rest > at:
        fields.append(
            Field(at, end - rest - at, "coded" if sparse_codec else "body", _coded(fields, end - rest - at))
        )
    if rest:
        fields.append(Field(end - rest, rest, "rest", "biases and norms"))
    return fields


def _coded(fields: list[Field], size: int) -> str:
    count = int(fields[1].value.replace(",", "")) if fields else 0
    return f"{8 * size / count:.2f} bits an entry" if count else ""


def _rest(name: str, flags: int, layout: Layout) -> int:
    biases = _word(stc.BIASES if name == "stc" else sstc.BIASES, flags >> 4 & 3)
    return sparse.rest_bytes(sparse.split(layout, all_tensors=biases == "sparse"), biases)
