"""Sixteen numbers at a time: the vector instructions that kernels are built from.

Instructions are written for vectors of 16 float32 and lowered by LLVM to whatever the processor has
(AVX-512, AVX2, NEON). Every operation here is exact or rounds once, in a fixed order: results do not depend
on the width.

The random numbers are a keyed counter hash: the splitmix64 finaliser over a counter, with a second key word
mixed in between its two multiplications, so that two streams are never shifted copies of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
from llvmlite import ir as llvm_ir
from numba.core import cgutils as numba_tools
from numba.cpython.unsafe import numbers as numba_numbers
from numba.extending import intrinsic as numba_intrinsic

# The compiler's own parts are not typed; named here once as such.
ir: Any = llvm_ir
tools: Any = numba_tools
types: Any = numba.types
trailing_zeros: Any = numba_numbers.trailing_zeros

WIDTH = 16
FLOAT, INT, LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS = ir.VectorType(FLOAT, WIDTH)
INTS = ir.VectorType(INT, WIDTH)
LONGS = ir.VectorType(LONG, WIDTH // 2)

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def intrinsic(function: Callable[..., Any]) -> Any:
    """A piece of a kernel written as vector instructions; constant arguments arrive as literals."""
    return numba_intrinsic(prefer_literal=True)(function)


def constant(kind: Any, values: Sequence[float] | float) -> Any:
    """A vector of constants, or one constant in every lane."""
    lanes = values if isinstance(values, Sequence) else [values] * kind.count
    return ir.Constant(kind, [ir.Constant(kind.element, lane) for lane in lanes])


def splat(build: Any, value: Any, kind: Any) -> Any:
    """One run-time value in every lane."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = build.insert_element(nothing, value, ir.Constant(INT, 0))
    return build.shuffle_vector(first, nothing, constant(ir.VectorType(INT, kind.count), 0))


def pointer(context: Any, build: Any, kind: Any, array: Any, index: Any) -> Any:
    """The address of one element of an array."""
    return build.gep(tools.create_struct_proxy(kind)(context, build, value=array).data, [index])


def load(build: Any, address: Any, kind: Any, offset: Any = 0) -> Any:
    """The vector that starts ``offset`` elements after an address."""
    step = ir.Constant(LONG, offset) if isinstance(offset, int) else offset
    value = build.load(build.bitcast(build.gep(address, [step]), kind.as_pointer()))
    value.align = 4
    return value


def store(build: Any, value: Any, address: Any, offset: Any = 0) -> None:
    """Write a vector ``offset`` elements after an address."""
    step = ir.Constant(LONG, offset) if isinstance(offset, int) else offset
    build.store(value, build.bitcast(build.gep(address, [step]), value.type.as_pointer())).align = 4


def multiply_add(build: Any, one: Any, other: Any, summand: Any) -> Any:
    """Give one·other + summand, fused where the processor can; only for factors that make both the same."""
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    call = tools.get_or_insert_function(build.module, kind, f"llvm.fmuladd.v{WIDTH}f32")
    return build.call(call, [one, other, summand])


def hashed(build: Any, counters: Any, key: Any, other: Any) -> Any:
    """Random bits from counters and two key words: 64 in each of 8 lanes."""

    def shifted(value: Any, by: int) -> Any:
        return build.xor(value, build.lshr(value, constant(LONGS, by)))

    state = build.add(build.mul(counters, constant(LONGS, GOLDEN)), splat(build, key, LONGS))
    state = build.mul(shifted(state, 30), constant(LONGS, FIRST))
    state = build.xor(state, splat(build, other, LONGS))
    return shifted(build.mul(shifted(state, 27), constant(LONGS, SECOND)), 31)


def counted(build: Any, index: Any) -> Any:
    """The counters of the ``index``-th vector of random bits: 8·index + 0..7."""
    first = build.mul(index, ir.Constant(LONG, WIDTH // 2))
    return build.add(splat(build, first, LONGS), constant(LONGS, list(range(WIDTH // 2))))


def random_bits(build: Any, index: Any, key: Any, other: Any) -> Any:
    """32 random bits in each of 16 lanes, for the ``index``-th vector of a stream."""
    return build.bitcast(hashed(build, counted(build, index), key, other), INTS)


def unit_pairs(build: Any, bits: Any) -> tuple[Any, Any]:
    """Two vectors of numbers in (1, 2) from one of random bits, 16 bits each, symmetric about 1.5."""
    halves = (build.and_(bits, constant(INTS, 0xFFFF)), build.lshr(bits, constant(INTS, 16)))
    shifted = (build.shl(half, constant(INTS, 7)) for half in halves)
    low, high = (build.bitcast(build.or_(half, constant(INTS, 0x3F800040)), FLOATS) for half in shifted)
    return low, high


def fused(build: Any, one: Any, other: Any, summand: Any) -> Any:
    """Give one·other + summand rounded once, on every processor."""
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    call = tools.get_or_insert_function(build.module, kind, f"llvm.fma.v{WIDTH}f32")
    return build.call(call, [one, other, summand])


def pushed(build: Any, value: Any, word: Any, count: int) -> Any:
    """Push the lowest ``count`` bits of a value into a word from above: the first pushed come to lie lowest."""
    kind = ir.FunctionType(INTS, [INTS] * 3)
    call = tools.get_or_insert_function(build.module, kind, f"llvm.fshr.v{WIDTH}i32")
    return build.call(call, [value, word, constant(INTS, count)])


def truth_bits(build: Any, truths: Any) -> Any:
    """Sixteen truths as the bits of one 16-bit number, lane 0 lowest."""
    return build.bitcast(truths, ir.IntType(WIDTH))


def has(context: Any, *features: str) -> bool:
    """Whether the processor that code is made for has some features."""
    known = context.codegen()._get_host_cpu_features().split(",")
    return all(f"+{feature}" in known for feature in features)


def has_permute(context: Any) -> bool:
    """Whether the processor can look up 16 lanes in a table of 16 with one instruction (AVX-512)."""
    return has(context, "avx512f")


def permute(build: Any, table: Any, index: Any) -> Any:
    """Look up table[index mod 16] in every lane; only where ``has_permute``."""
    kind = ir.FunctionType(FLOATS, [FLOATS, INTS])
    call = tools.get_or_insert_function(build.module, kind, "llvm.x86.avx512.permvar.sf.512")
    return build.call(call, [table, index])


def permute_two(build: Any, tables: Sequence[Any], index: Any) -> Any:
    """The same in two tables of 16, one after the other."""
    kind = ir.FunctionType(FLOATS, [FLOATS, INTS, FLOATS])
    call = tools.get_or_insert_function(build.module, kind, "llvm.x86.avx512.vpermi2var.ps.512")
    return build.call(call, [tables[0], index, tables[1]])


@intrinsic
def put_word(_: Any, buffer: Any, place: Any, word: Any) -> Any:
    """Write the eight bytes of a word, lowest first, wherever they lie."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        address = pointer(context, build, signature.args[0], args[0], args[1])
        build.store(args[2], build.bitcast(address, LONG.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(buffer, types.int64, types.uint64), generate
