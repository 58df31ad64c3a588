"""The codebooks of QUIC-FL as its kernels want them, from the shipped tables.

``quicfl_tables.json`` holds the first half of each table R[h, x] (the other half is its mirror image), made
by ``quicfl_solver.solve`` and rounded to float32: about seven kilobytes for all settings.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from abaton.codecs.quicfl_solver import THRESHOLD, Table, full, staircase
from abaton.layout import Vector

DEFAULT = {1: 6, 2: 5, 3: 4, 4: 4}
"""How many shared random bits the published method uses for each number of bits."""

LANES = 16


class Codebooks(NamedTuple):
    """Rows of 16: codewords by message, and where in z each message turns into the next."""

    codewords: Vector
    intervals: Vector
    cells: int  # 1 if the intervals are found by cells
    rows: int
    edge: np.float32


@lru_cache(maxsize=1)
def _shipped() -> dict[str, list[float]]:
    tables: dict[str, list[float]] = json.loads(
        files("abaton.codecs").joinpath("quicfl_tables.json").read_text("utf-8")
    )
    return tables


def table(bits: int, shared_bits: int) -> Table:
    """The shipped table R[h, x].

    >>> table(1, 1).round(2).tolist()
    [[-5.4, 0.79], [-0.79, 5.4]]
    """
    half = np.array(_shipped()[f"bits={bits} shared_bits={shared_bits}"], dtype=np.float32).astype(np.float64)
    return full(half, bits, shared_bits)


def intervals_of(bits: int, shared_bits: int) -> tuple[Table, Table]:
    """For each codebook where a message ends and the next begins: at low + u·width, with u in (1, 2)."""
    _, knots, rank = staircase(table(bits, shared_bits))
    low, high = knots[rank], knots[rank + 1]
    return 2 * low - high, high - low


@lru_cache(maxsize=32)
def codebooks(bits: int, shared_bits: int) -> Codebooks:
    """The tables of the kernels ``codebooks.write`` and ``codebooks.add``."""
    from abaton.kernels.codebook_quantiser import cell_rows, interval_rows

    values, ends = table(bits, shared_bits), intervals_of(bits, shared_bits)
    _, knots, _ = staircase(values)
    cells = cell_rows(*ends) if bits > 1 else None
    intervals = interval_rows(*ends) if cells is None else cells
    codewords = np.tile(values, LANES >> bits)
    # Rounding must not leave a number below the edge that no codeword reaches.
    edge = np.nextafter(np.float32(min(THRESHOLD, knots[-1])), np.float32(0))
    return Codebooks(
        codewords.astype(np.float32).ravel(), intervals, int(cells is not None), len(values), edge
    )
