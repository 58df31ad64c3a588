"""Viterbi search of a trellis code in 32 lanes: the sequence of cosets closest to a sequence of residues.

A trellis code (Ungerboeck 1982) with S = 2^v states is a shift register r = (b << v) | s of a state s and a
coded bit b; the next state is r >> 1. The register chooses one of the four cosets 4Z + j of the integers,
j = 2·parity(r & h0) + parity(r & h1). The parity of j follows from the state; b chooses between two cosets at
distance 2.

Residues are numbers modulo 4 in units of 1/64, as integers from 0 to 255. The distance of a residue to a coset is
folded to g = 0 ... 127 and costs ((2g + 1)²) >> 6. Metrics are 16-bit integers, so the result does not depend
on the instruction set: a step costs at most 1,016, metrics of two states differ by at most v steps, and that
of state 0 is subtracted before they can overflow. Ties choose the even predecessor.

Value i of a block belongs to lane i mod 32 and step i div 32. Every lane starts in state 0; its end is free.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import expanded, kernel
from abaton.kernels.simd import (
    INT,
    INTS,
    LONG,
    WIDTH,
    constant,
    has_features,
    intrinsic,
    ir,
    load,
    pointer,
    store,
    types,
)

LANES = 32
STEPS = 4  # steps in one call of the search; the steps of a block are a multiple
RESIDUES_PER_UNIT = 64  # residues per unit of the grid
START_METRIC = 16_000  # of all states but 0 before the first step
TAPS = {8: (0o4, 0o13), 64: (0o24, 0o103), 256: (0o362, 0o515)}
"""Ungerboeck's parity-check taps (h1, h0) of one-dimensional codes, by number of states."""

Shorts = NDArray[np.int16]
Bits32 = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

SHORT = ir.IntType(16)
SHORTS = ir.VectorType(SHORT, LANES)
BYTES = ir.VectorType(ir.IntType(8), WIDTH)


def cosets(states: int) -> Bytes:
    """Return the coset j of every register (b << v) | s of a trellis code.

    >>> cosets(8).tolist()
    [0, 2, 2, 0, 1, 3, 3, 1, 2, 0, 0, 2, 3, 1, 1, 3]
    """
    low, high = TAPS[states]
    return np.array(
        [2 * ((r & high).bit_count() & 1) + ((r & low).bit_count() & 1) for r in range(2 * states)], np.uint8
    )


def parity(build: Any, value: Any) -> Any:
    """Return the parity of the nine bits of a trellis register in every lane."""
    value = build.xor(value, build.lshr(value, constant(INTS, 8)))
    for shift in (4, 2, 1):
        value = build.xor(value, build.lshr(value, constant(INTS, shift)))
    return build.and_(value, constant(INTS, 1))


def _distances(build: Any, residue: Any) -> list[Any]:
    """Return the trellis metrics of 32 residues for the four cosets."""

    def number(value: int) -> Any:
        return constant(SHORTS, value)

    def fold(coset: int) -> Any:
        shifted = build.and_(build.add(residue, number(128 - RESIDUES_PER_UNIT * coset)), number(255))
        centred = build.sub(shifted, number(128))
        return build.xor(centred, build.ashr(centred, number(15)))

    def metric(distance: Any) -> Any:
        odd = build.add(build.add(distance, distance), number(1))
        return build.lshr(build.mul(odd, odd), number(6))

    folded = [fold(0), fold(1)]
    opposite = [build.sub(number(127), distance) for distance in folded]  # cosets j and j + 2 are opposite
    return [metric(distance) for distance in (*folded, *opposite)]


def _pass(
    build: Any, states: int, steps: int, source: Any, target: Any, residues: Any, decisions: Any
) -> None:
    """Generate ``steps`` trellis steps: groups of 2^steps states pass through registers, without memory in between."""
    coset, group = cosets(states).tolist(), 1 << steps
    metrics = [_distances(build, load(build, residues, SHORTS, LANES * t)) for t in range(steps)]
    reference = load(build, source, SHORTS)  # state 0, subtracted to keep metrics small
    for base in range(0, states, group):
        current = {
            s: build.sub(load(build, source, SHORTS, LANES * s), reference) for s in range(base, base + group)
        }
        for t in range(steps):
            following = {}
            for s in sorted(current):
                for r in () if s & 1 else (s, s | states):  # both registers of states s and s + 1
                    even = build.add(current[s], metrics[t][coset[r]])
                    odd = build.add(current[s | 1], metrics[t][coset[r | 1]])
                    is_odd = build.icmp_signed("<", odd, even)
                    following[r >> 1] = build.select(is_odd, odd, even)
                    address = build.gep(decisions, [ir.Constant(LONG, t * states + (r >> 1))])
                    build.store(build.bitcast(is_odd, INT), address).align = 4
            current = following
        for s, value in current.items():
            store(build, value, target, LANES * s)


@intrinsic
def _four_steps(
    _: Any,
    metrics: Any,
    source: Any,
    target: Any,
    residues: Any,
    first: Any,
    decisions: Any,
    to: Any,
    states: Any,
) -> Any:
    """Compute four trellis steps: read metrics at ``source``, write them at ``target``, write their decisions."""
    count = states.literal_value

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        def address(i: int, index: Any) -> Any:
            return pointer(context, build, signature.args[i], args[i], index)

        old, new = address(0, args[1]), address(0, args[2])
        residue, decision = address(3, args[4]), address(5, args[6])
        if count >= 16 and has_features(context, "avx512f"):  # 32 registers: 16 states at once
            _pass(build, count, 4, old, new, residue, decision)
            return context.get_dummy_value()
        between = address(0, ir.Constant(LONG, 2 * LANES * count))
        for i, (start, end) in enumerate(((old, between), (between, new))):
            next_residue = build.gep(residue, [ir.Constant(LONG, 2 * LANES * i)])
            next_decision = build.gep(decision, [ir.Constant(LONG, 2 * count * i)])
            _pass(build, count, 2, start, end, next_residue, next_decision)
        return context.get_dummy_value()

    long = types.int64
    return types.void(metrics, long, long, residues, long, decisions, long, states), generate


@expanded
def _search(residues: Shorts, steps: int, metrics: Shorts, decisions: Bits32, states: int) -> int:
    size = LANES * states
    metrics[:size] = np.int16(START_METRIC)
    metrics[:LANES] = np.int16(0)
    source = 0
    for t in range(0, steps, STEPS):
        _four_steps(metrics, source, size - source, residues, t * LANES, decisions, t * states, states)
        source = size - source
    return source


@intrinsic
def _trace_step(_: Any, decisions: Any, first: Any, states: Any, state: Any, path: Any, to: Any) -> Any:
    """Move 32 lanes one trellis step back: from a state to its predecessor; write the coset of the register between."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        decision_at = pointer(context, build, signature.args[0], args[0], args[1])
        state_at = pointer(context, build, signature.args[3], args[3], ir.Constant(LONG, 0))
        target = build.bitcast(
            pointer(context, build, signature.args[4], args[4], args[5]), BYTES.as_pointer()
        )
        count, one = states.literal_value, constant(INTS, 1)
        for half in (0, 1):
            current = load(build, state_at, INTS, WIDTH * half)
            decision_words = ir.Constant(INTS, ir.Undefined)
            for lane in range(WIDTH):
                index = build.zext(build.extract_element(current, ir.Constant(INT, lane)), LONG)
                word = build.load(build.gep(decision_at, [index]))
                decision_words = build.insert_element(decision_words, word, ir.Constant(INT, lane))
            lanes = constant(INTS, list(range(WIDTH * half, WIDTH * half + WIDTH)))
            odd = build.and_(build.lshr(decision_words, lanes), one)
            register = build.or_(build.shl(current, one), odd)
            low, high = (parity(build, build.and_(register, constant(INTS, tap))) for tap in TAPS[count])
            coset = build.trunc(build.or_(build.shl(high, one), low), BYTES)
            build.store(coset, build.gep(target, [ir.Constant(LONG, half)])).align = 1
            store(build, build.and_(register, constant(INTS, count - 1)), state_at, WIDTH * half)
        return context.get_dummy_value()

    long = types.int64
    return types.void(decisions, long, states, state, path, long), generate


@expanded
def _trace_back(decisions: Bits32, metrics: Shorts, last: int, steps: int, path: Bytes, states: int) -> None:
    state = np.zeros(LANES, np.uint32)
    for lane in range(LANES):
        best = np.int64(0)
        for s in range(1, states):
            if metrics[last + LANES * s + lane] < metrics[last + LANES * best + lane]:
                best = np.int64(s)
        state[lane] = np.uint32(best)
    for t in range(steps - 1, -1, -1):
        _trace_step(decisions, t * states, states, state, path, t * LANES)


@expanded
def _choose(
    residues: Shorts, steps: int, metrics: Shorts, decisions: Bits32, path: Bytes, states: int
) -> None:
    last = _search(residues, steps, metrics, decisions, states)
    _trace_back(decisions, metrics, last, steps, path, states)


@kernel
def search_8(residues: Shorts, steps: int, metrics: Shorts, decisions: Bits32, path: Bytes) -> None:
    """Write the cosets of the sequence closest to ``residues`` in the trellis of 8 states; the rest are buffers."""
    _choose(residues, steps, metrics, decisions, path, 8)


@kernel
def search_64(residues: Shorts, steps: int, metrics: Shorts, decisions: Bits32, path: Bytes) -> None:
    """Write the cosets of the sequence closest to ``residues`` in the trellis of 64 states; the rest are buffers."""
    _choose(residues, steps, metrics, decisions, path, 64)


@kernel
def search_256(residues: Shorts, steps: int, metrics: Shorts, decisions: Bits32, path: Bytes) -> None:
    """Write the cosets of the sequence closest to ``residues`` in the trellis of 256 states; the rest are buffers."""
    _choose(residues, steps, metrics, decisions, path, 256)


SEARCHES = {8: search_8, 64: search_64, 256: search_256}
