"""SIMD primitives on vectors of 16 float32, as LLVM instructions.

They exist because Numba's vectoriser fails on butterflies and bit packing. LLVM lowers them to the instructions of
the processor (AVX-512, AVX2, NEON). Every operation is exact or rounds once, in a fixed order, so results do
not depend on the vector width. A SIMD kernel is kept only if it is at least 1.5 times as fast as its fallback on
AVX2; tests compare both bit for bit.

Random values are a keyed counter hash: the splitmix64 finaliser over a counter, with a second key word
added between its two multiplications, so that no two streams are shifted copies of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
from llvmlite import ir as llvm_ir
from numba.core import cgutils as numba_tools
from numba.cpython.unsafe import numbers as numba_numbers
from numba.extending import intrinsic as numba_intrinsic

# The compiler's modules have no type annotations.
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
    """Declare a function that generates SIMD instructions; constant arguments are passed as literals."""
    return numba_intrinsic(prefer_literal=True)(function)


def constant(vector_type: Any, values: Sequence[float] | float) -> Any:
    """Return a SIMD vector of constants, or one constant in every lane."""
    lanes = values if isinstance(values, Sequence) else [values] * vector_type.count
    return ir.Constant(vector_type, [ir.Constant(vector_type.element, lane) for lane in lanes])


def splat(build: Any, value: Any, vector_type: Any) -> Any:
    """Return a SIMD vector with one run-time value in every lane."""
    nothing = ir.Constant(vector_type, ir.Undefined)
    first = build.insert_element(nothing, value, ir.Constant(INT, 0))
    return build.shuffle_vector(first, nothing, constant(ir.VectorType(INT, vector_type.count), 0))


def pointer(context: Any, build: Any, vector_type: Any, array: Any, index: Any) -> Any:
    """Return the LLVM address of one element of an array."""
    return build.gep(tools.create_struct_proxy(vector_type)(context, build, value=array).data, [index])


def load(build: Any, address: Any, vector_type: Any, offset: Any = 0) -> Any:
    """Load the SIMD vector that starts ``offset`` elements after an address."""
    step = ir.Constant(LONG, offset) if isinstance(offset, int) else offset
    value = build.load(build.bitcast(build.gep(address, [step]), vector_type.as_pointer()))
    value.align = 4
    return value


def store(build: Any, value: Any, address: Any, offset: Any = 0) -> None:
    """Store a SIMD vector ``offset`` elements after an address."""
    step = ir.Constant(LONG, offset) if isinstance(offset, int) else offset
    build.store(value, build.bitcast(build.gep(address, [step]), value.type.as_pointer())).align = 4


def multiply_add(build: Any, one: Any, other: Any, summand: Any) -> Any:
    """Return SIMD one·other + summand, fused where available; use it only where both forms give the same bits."""
    vector_type = ir.FunctionType(FLOATS, [FLOATS] * 3)
    call = tools.get_or_insert_function(build.module, vector_type, f"llvm.fmuladd.v{WIDTH}f32")
    return build.call(call, [one, other, summand])


def hash_counters(build: Any, counters: Any, key: Any, other: Any) -> Any:
    """Return SIMD random bits from counters and two key words: 64 in each of 8 lanes."""

    def shifted(value: Any, by: int) -> Any:
        return build.xor(value, build.lshr(value, constant(LONGS, by)))

    state = build.add(build.mul(counters, constant(LONGS, GOLDEN)), splat(build, key, LONGS))
    state = build.mul(shifted(state, 30), constant(LONGS, FIRST))
    state = build.xor(state, splat(build, other, LONGS))
    return shifted(build.mul(shifted(state, 27), constant(LONGS, SECOND)), 31)


def counter_vector(build: Any, index: Any) -> Any:
    """Return the SIMD counters of the ``index``-th vector of random bits: 8·index + 0..7."""
    first = build.mul(index, ir.Constant(LONG, WIDTH // 2))
    return build.add(splat(build, first, LONGS), constant(LONGS, list(range(WIDTH // 2))))


def random_bits(build: Any, index: Any, key: Any, other: Any) -> Any:
    """Return a SIMD vector of 32 random bits in each of 16 lanes, the ``index``-th of a stream."""
    return build.bitcast(hash_counters(build, counter_vector(build, index), key, other), INTS)


def unit_pairs(build: Any, bits: Any) -> tuple[Any, Any]:
    """Return two SIMD vectors of values in (1, 2) from one of random bits, 16 bits each, symmetric about 1.5."""
    halves = (build.and_(bits, constant(INTS, 0xFFFF)), build.lshr(bits, constant(INTS, 16)))
    shifted = (build.shl(half, constant(INTS, 7)) for half in halves)
    low, high = (build.bitcast(build.or_(half, constant(INTS, 0x3F800040)), FLOATS) for half in shifted)
    return low, high


def fused_multiply_add(build: Any, one: Any, other: Any, summand: Any) -> Any:
    """Return SIMD one·other + summand, rounded once on every processor."""
    vector_type = ir.FunctionType(FLOATS, [FLOATS] * 3)
    call = tools.get_or_insert_function(build.module, vector_type, f"llvm.fma.v{WIDTH}f32")
    return build.call(call, [one, other, summand])


def push_bits(build: Any, value: Any, word: Any, count: int) -> Any:
    """Shift the lowest ``count`` bits of each SIMD lane into a word from above; the first end up lowest."""
    vector_type = ir.FunctionType(INTS, [INTS] * 3)
    call = tools.get_or_insert_function(build.module, vector_type, f"llvm.fshr.v{WIDTH}i32")
    return build.call(call, [value, word, constant(INTS, count)])


def mask_bits(build: Any, truths: Any) -> Any:
    """Return the booleans of sixteen SIMD lanes as the bits of one 16-bit integer, lane 0 lowest."""
    return build.bitcast(truths, ir.IntType(WIDTH))


def has_features(context: Any, *features: str) -> bool:
    """Return whether the target processor has all the SIMD features."""
    known = context.codegen()._get_host_cpu_features().split(",")
    return all(f"+{feature}" in known for feature in features)


def has_permute(context: Any) -> bool:
    """Return whether the processor can look up 16 lanes in a table of 16 with one instruction (AVX-512)."""
    return has_features(context, "avx512f")


def permute(build: Any, table: Any, index: Any) -> Any:
    """Return table[index mod 16] in every SIMD lane; only where ``has_permute``."""
    vector_type = ir.FunctionType(FLOATS, [FLOATS, INTS])
    call = tools.get_or_insert_function(build.module, vector_type, "llvm.x86.avx512.permvar.sf.512")
    return build.call(call, [table, index])


def permute_two(build: Any, tables: Sequence[Any], index: Any) -> Any:
    """Return entries of two SIMD tables of 16 by index mod 32; only where ``has_permute``."""
    vector_type = ir.FunctionType(FLOATS, [FLOATS, INTS, FLOATS])
    call = tools.get_or_insert_function(build.module, vector_type, "llvm.x86.avx512.vpermi2var.ps.512")
    return build.call(call, [tables[0], index, tables[1]])


@intrinsic
def put_word(_: Any, buffer: Any, index: Any, word: Any) -> Any:
    """Write the eight bytes of a word, lowest first, at any alignment, as one LLVM store."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        address = pointer(context, build, signature.args[0], args[0], args[1])
        build.store(args[2], build.bitcast(address, LONG.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(buffer, types.int64, types.uint64), generate
