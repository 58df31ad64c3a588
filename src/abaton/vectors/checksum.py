"""CRC-32 at memory speed: the checksum of zlib, folded 256 bytes at a time where the processor can.

A message is a polynomial over two elements, and its CRC-32 the remainder after division by P. Sixteen bytes
times x^n can be replaced by any polynomial with the same remainder: their two halves times the remainders of
x^(n+32) and x^(n-32) (Gopal et al. 2009, in the bit order of zlib). So 256 bytes are folded into the next 256
with two carry-less multiplications for every 16, and zlib itself divides what is left. Processors without
these multiplications, and short messages, go to zlib right away: the number is the same.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.vectors.jit import kernel
from abaton.vectors.lanes import LONG, LONGS, constant, has, intrinsic, ir, tools, types

Bytes = NDArray[np.uint8]

CHUNK = 256
_ALL = 0xFFFFFFFF
_POLYNOMIAL = 0x104C11DB7


def _remainder(power: int) -> int:
    """The remainder of x^power, its bits reversed and moved by one as products of reversed numbers need it."""
    value = 1
    for _ in range(power):
        value <<= 1
        if value >> 32:
            value ^= _POLYNOMIAL
    return int(f"{value:032b}"[::-1], 2) << 1


FACTORS = (_remainder(8 * CHUNK + 32), _remainder(8 * CHUNK - 32))


def crc32(data: Any, start: int = 0) -> int:
    """The CRC-32 of some bytes; ``start`` is that of the bytes before them.

    >>> crc32(b"abaton" * 1000) == zlib.crc32(b"abaton" * 1000)
    True
    """
    view = memoryview(data).cast("B")
    whole, folded = len(view) - len(view) % CHUNK, np.empty(CHUNK, np.uint8)
    if whole == 0 or not _fold(np.frombuffer(view, np.uint8, whole), np.uint32(start ^ _ALL), folded):
        return zlib.crc32(view, start)
    # Started from all ones, zlib divides what is left as it is; its answer is already inverted as it should be.
    return zlib.crc32(view[whole:], zlib.crc32(folded.data, _ALL))


def _multiply(build: Any, one: Any, other: Any, halves: int) -> Any:
    """Carry-less products of the lower (0x00) or upper (0x11) halves of four 128-bit lanes."""
    kind = ir.FunctionType(LONGS, [LONGS, LONGS, ir.IntType(8)])
    call = tools.get_or_insert_function(build.module, kind, "llvm.x86.pclmulqdq.512")
    return build.call(call, [one, other, ir.Constant(ir.IntType(8), halves)])


@intrinsic
def _fold_all(_: Any, data: Any, start: Any, folded: Any) -> Any:
    """Fold all chunks of ``data`` into one; ``start`` is what the division begins with. False if it cannot."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        if not has(context, "avx512f", "vpclmulqdq"):
            return ir.Constant(ir.IntType(1), 0)

        def whole(value: int) -> Any:
            return ir.Constant(LONG, value)

        arrays = {
            i: tools.create_struct_proxy(signature.args[i])(context, build, value=args[i]) for i in (0, 2)
        }

        def place(i: int, at: Any) -> Any:
            return build.bitcast(build.gep(arrays[i].data, [at]), LONGS.as_pointer())

        def loaded(at: Any) -> Any:
            value = build.load(place(0, at))
            value.align = 1
            return value

        factors = constant(LONGS, list(FACTORS) * 4)
        spaces = [tools.alloca_once(build, LONGS) for _ in range(CHUNK // 64)]
        first = build.insert_element(
            constant(LONGS, 0), build.zext(args[1], LONG), ir.Constant(ir.IntType(32), 0)
        )
        for i, space in enumerate(spaces):
            value = loaded(whole(64 * i))
            build.store(build.xor(value, first) if i == 0 else value, space)
        chunks = build.sub(build.udiv(arrays[0].nitems, whole(CHUNK)), whole(1))
        with tools.for_range(build, chunks, intp=LONG) as loop:
            at = build.mul(build.add(loop.index, whole(1)), whole(CHUNK))
            for i, space in enumerate(spaces):
                value = build.load(space)
                low, high = (_multiply(build, value, factors, halves) for halves in (0x00, 0x11))
                after = loaded(build.add(at, whole(64 * i)))
                build.store(build.xor(build.xor(low, high), after), space)
        for i, space in enumerate(spaces):
            build.store(build.load(space), place(2, whole(64 * i))).align = 1
        return ir.Constant(ir.IntType(1), 1)

    return types.boolean(data, types.uint32, folded), generate


@kernel
def _fold(data: Bytes, start: Any, folded: Bytes) -> bool:
    return bool(_fold_all(data, start, folded))
