"""Models on the way down: exact differences from one that the site holds already.

The bits of a model are compared with those of a base (exclusive or), the four bytes of all numbers are laid side by
side, and the result is compressed. What did not change costs next to nothing, what did costs about ten bytes a number;
and the site has the very same bits as the controller, whatever happened before. A model without a base is a difference
from nothing.

In a run whose way down is compressed the codec's own differences between versions take their place, and a learner's
model goes as its update; what is exact is then only the first version that a site gets, or one that it can no longer
be led to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
import zstandard

from abaton.codecs import lacking
from abaton.engines.contract import Way
from abaton.errors import PayloadError
from abaton.store import digest_of
from abaton.vectors import Vector

_LEVEL = 3
_REMEMBERED = 16


def model_name(model: Vector) -> str:
    """The name of a model on the network: the digest of its bits."""
    return digest_of(np.ascontiguousarray(model, dtype="<f4").tobytes())


def encode(model: Vector, base: Vector | None = None) -> bytes:
    """A model as a difference from a base.

    >>> model = np.arange(1000, dtype=np.float32)
    >>> bool((decode(encode(model), 1000) == model).all())
    True
    >>> moved = model.copy(); moved[3] = 7
    >>> len(encode(moved, model)) < 60, bool((decode(encode(moved, model), 1000, model) == moved).all())
    (True, True)
    """
    bits = np.ascontiguousarray(model, dtype="<f4").view("<u4")
    if base is not None:
        bits = bits ^ np.ascontiguousarray(base, dtype="<f4").view("<u4")
    planes = np.ascontiguousarray(bits.view(np.uint8).reshape(-1, 4).T)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(planes.tobytes())


def decode(data: bytes, size: int, base: Vector | None = None) -> Vector:
    """The model of so many numbers; bytes that say they are more, or are not whole, are refused."""
    try:
        if zstandard.frame_content_size(data) != 4 * size:
            raise ValueError
        planes = zstandard.ZstdDecompressor().decompress(data, max_output_size=4 * size)
        bits = np.frombuffer(planes, np.uint8).reshape(4, size).T.copy().view("<u4").reshape(size)
    except (zstandard.ZstdError, ValueError):
        raise PayloadError("a model that came over the network is not readable", where="network") from None
    if base is not None:
        bits = bits ^ np.ascontiguousarray(base, dtype="<f4").view("<u4")
    return bits.view("<f4")


class Shelf:
    """The models that the controller sent last, by name: what sites hold is measured against them."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._models: OrderedDict[str, Vector] = OrderedDict()
        self._versions: dict[str, int] = {}
        self._most = most

    def parcel(
        self, model: Vector, held: Iterable[str], way: Way | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """A model for a site that holds some: its name, the name of the base, and what makes the one of the other."""
        return self._exact(model, held) if way is None else self._led(model, held, way)

    def _led(self, model: Vector, held: Iterable[str], way: Way) -> tuple[dict[str, Any], bytes]:
        """The differences from a version that is held, and the update that makes the model, if a learner made it."""
        start = model_name(way.start)
        self._versions[start] = way.version
        known = {self._versions[name]: name for name in held if name in self._versions}
        steps, exact = lacking(way.lately, known, way.version), b""
        if steps is None:
            named, exact = self._exact(way.start, held)
            base, steps = named["base"], ()
        else:
            base = known[way.version - len(steps)]
        about = {
            "model": start if not way.author else model_name(model),
            "base": base,
            "start": start,
            "exact": len(exact),
            "steps": [[step.version, len(step.data)] for step in steps],
            "made": [way.version, way.author],
        }
        return about, b"".join([exact, *(step.data for step in steps), way.payload])

    def _exact(self, model: Vector, held: Iterable[str]) -> tuple[dict[str, Any], bytes]:
        name = model_name(model)
        known = {other: self._models[other] for other in held if other in self._models}
        self._models[name] = model
        self._models.move_to_end(name)
        while len(self._models) > self._most:
            self._models.popitem(last=False)
        base = min(known, key=lambda other: int(np.count_nonzero(known[other] != model)), default=None)
        return {"model": name, "base": base}, encode(model, None if base is None else known[base])
