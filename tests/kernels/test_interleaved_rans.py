"""The rANS coder is a bijection, its codes have the ideal length, and any bytes are safe to decode."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import abaton
from abaton.kernels import interleaved_rans, simd_fallback
from abaton.kernels.interleaved_rans import (
    LANES,
    MIN_STATE,
    STATE_BYTES,
    TOTAL,
    decode_symbols,
    encode_symbols,
    open_code,
    rans_table,
)

PROCESSORS = {
    "haswell": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2",
    "x86-64-v2": "+sse4.2,+popcnt",
    "x86-64": "+sse2",
}


def frequencies(kind: str) -> np.ndarray:
    """Return rows of frequencies: like a quantiser's, extreme, or random with zeros."""
    rng = np.random.default_rng(1)
    match kind:
        case "normal":
            points = np.exp(-((np.arange(12) - 5.5 - rng.uniform(0, 1, (32, 1))) ** 2) / 2)
        case "one symbol":
            return np.full((3, 1), TOTAL)
        case "rare":
            return np.array([[1, 1, 1, TOTAL - 4, 1], [TOTAL - 4, 1, 1, 1, 1]])
        case "uniform":
            points = np.ones((2, 4096))
        case "zeros":
            points = rng.exponential(size=(16, 40)) ** 4 * (rng.random((16, 40)) < 0.5)
            points[:, 17] = 1
        case _:
            raise AssertionError(kind)
    counts = np.floor(points / points.sum(axis=1, keepdims=True) * (TOTAL - points.shape[1])).astype(np.int64)
    counts += points > 0
    counts[np.arange(len(counts)), counts.argmax(axis=1)] += TOTAL - counts.sum(axis=1)
    return counts


KINDS = ["normal", "one symbol", "rare", "uniform", "zeros"]


def draw(counts: np.ndarray, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random rows, and a symbol of each with the row's frequencies."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(counts), size)
    symbols = (np.cumsum(counts, axis=1)[rows] <= rng.integers(0, TOTAL, size)[:, None]).sum(axis=1)
    return rows.astype(np.uint32), (rows * counts.shape[1] + symbols).astype(np.uint16)


def code_by_definition(symbols: np.ndarray, counts: np.ndarray) -> bytes:
    """Return the code as the format defines it, with Python's integers."""
    starts = (np.cumsum(counts, axis=1) - counts).ravel().tolist()
    sizes, states, rans_words = counts.ravel().tolist(), [MIN_STATE] * LANES, []

    def add(lane: int, s: int) -> None:
        x = states[lane]
        if x >= sizes[s] << 18:
            rans_words.append(x % 65536)
            x //= 65536
        states[lane] = x // sizes[s] * TOTAL + starts[s] + x % sizes[s]

    *first, last = symbols[:-512].tolist(), symbols[-512:].tolist()
    for s in reversed(last):
        add(0, s)
    for lane in range(1, min(LANES, len(rans_words) + 1)):
        states[lane] += rans_words.pop()
    for i, s in reversed(list(enumerate(*first))):
        add(i % LANES, s)
    return b"".join(x.to_bytes(4, "little") for x in states) + b"".join(
        word.to_bytes(2, "little") for word in reversed(rans_words)
    )


@pytest.mark.parametrize("size", [32, 512, 544, 1056, 5024])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_as_defined_and_decode_to_the_symbols(kind, size):
    counts = frequencies(kind)
    rows, symbols = draw(counts, size)
    table = rans_table(counts)
    code = encode_symbols(symbols, table)
    assert code == code_by_definition(symbols, counts)
    np.testing.assert_array_equal(decode_symbols(code, rows, table), symbols)


@pytest.mark.parametrize("kind", KINDS)
def test_scalar_loops_give_the_same_code(kind):
    counts = frequencies(kind)
    rows, symbols = draw(counts, 10_016)
    table, rans_words, states = (
        rans_table(counts),
        np.empty(symbols.size + 1, np.uint16),
        np.empty(LANES, np.uint32),
    )
    count = simd_fallback.write_rans(symbols, table.intervals, states, rans_words)
    code = states.tobytes() + rans_words[:count].tobytes()
    assert code == encode_symbols(symbols, table)
    decoded = np.empty(rows.size, np.uint32)
    states, rans_words = open_code(code)
    assert simd_fallback.read_rans(rans_words, states, rows, table.intervals, table.width, decoded)
    np.testing.assert_array_equal(decoded, symbols)


def test_every_symbol_decodes_after_every_other_and_in_every_lane():
    counts = frequencies("zeros")
    table, possible = rans_table(counts), np.flatnonzero(counts.ravel())
    pairs = np.stack(np.meshgrid(possible, possible), axis=-1).reshape(-1)
    symbols = np.resize(pairs, -(-pairs.size // LANES) * LANES).astype(np.uint16)
    rows = (symbols // np.uint32(table.width)).astype(np.uint32)
    np.testing.assert_array_equal(decode_symbols(encode_symbols(symbols, table), rows, table), symbols)


@pytest.mark.parametrize("kind", KINDS)
def test_the_length_is_nearly_ideal(kind):
    counts = frequencies(kind)
    _, symbols = draw(counts, 1 << 18)
    ideal = float((14 - np.log2(counts.ravel()[symbols])).sum())
    length = 8 * len(encode_symbols(symbols, rans_table(counts)))
    assert ideal <= length + 32 * 32
    assert length <= ideal + 32 * LANES + 0.0005 * symbols.size


def test_states_cost_few_bytes():
    """Words of the last symbols start the states; without them a code would take 62 bytes more."""
    counts, excess = frequencies("normal"), []
    for seed in range(200):
        _, symbols = draw(counts, 2048, seed)
        ideal = float((14 - np.log2(counts.ravel()[symbols])).sum())
        excess.append(len(encode_symbols(symbols, rans_table(counts))) - ideal / 8)
    assert 30 < np.mean(excess) < 38


def test_no_symbols_have_an_empty_code():
    table, nothing = rans_table(frequencies("normal")), np.empty(0, np.uint32)
    assert encode_symbols(nothing.astype(np.uint16), table) == b""
    assert decode_symbols(b"", nothing, table) is not None
    assert decode_symbols(b"1", nothing, table) is None


@pytest.mark.parametrize(
    "counts",
    [[[TOTAL - 1]], [[TOTAL + 1, -1]], [[TOTAL], [TOTAL + 1]], [[TOTAL] + [0] * (1 << 16)]],
)
def test_invalid_frequencies_are_refused(counts):
    with pytest.raises(ValueError, match="must sum to 16384"):
        rans_table(np.array(counts))


def test_only_the_code_itself_is_accepted():
    counts = frequencies("normal")
    rows, symbols = draw(counts, 640)
    table = rans_table(counts)
    code = encode_symbols(symbols, table)
    assert decode_symbols(code[:-2], rows, table) is None
    assert decode_symbols(code[:-1], rows, table) is None
    assert decode_symbols(code + b"\0\0", rows, table) is None
    assert decode_symbols(code[: STATE_BYTES - 2], rows, table) is None
    assert decode_symbols(code, rows[:-LANES], table) is None
    # Another code of the same length can only be the code of other symbols.
    for position in range(0, len(code), 7):
        changed = bytearray(code)
        changed[position] ^= 1 << position % 8
        decoded = decode_symbols(bytes(changed), rows, table)
        assert decoded is None or encode_symbols(decoded.astype(np.uint16), table) == bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_are_safe_to_decode(kind):
    """Symbols stay in their rows, whatever the bytes: the search would otherwise read outside its tables."""
    counts, rng = frequencies(kind), np.random.default_rng(2)
    table = rans_table(counts)
    for _ in range(2000):
        rows = rng.integers(0, len(counts), LANES * int(rng.integers(1, 8))).astype(np.uint32)
        code = rng.integers(0, 256, STATE_BYTES + 2 * int(rng.integers(0, 200)), dtype=np.uint8)
        code[: int(rng.integers(0, STATE_BYTES))] = rng.choice([0, 255])
        states, rans_words = open_code(code.tobytes())
        symbols = np.full(rows.size, table.width * rows[0], np.uint32)
        symbols[:] = table.width * rows
        interleaved_rans.read(rans_words, states, rows, table.intervals, table.guesses, symbols)
        np.testing.assert_array_equal(symbols // np.uint32(table.width), rows)


def digests() -> list[str]:
    """Return the digests of a code of each table, and of what it decodes to."""
    results = []
    for kind in KINDS:
        counts = frequencies(kind)
        rows, symbols = draw(counts, 4096)
        code = encode_symbols(symbols, rans_table(counts))
        decoded = decode_symbols(code, rows, rans_table(counts))
        assert decoded is not None
        results += [hashlib.sha256(data).hexdigest() for data in (code, decoded.tobytes())]
    return results


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_codes_do_not_depend_on_the_width_of_vectors(tmp_path, processor):
    environment = {
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": PROCESSORS[processor],
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(Path(abaton.__file__).parents[1]), str(Path(__file__).parent)]),
    }
    done = subprocess.run(
        [sys.executable, "-c", "import test_interleaved_rans as t; print('\\n'.join(t.digests()))"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == digests()
