"""Compiled loops: one way to say that a function is a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compile a function to machine code at its first call and keep the result on disk.

    One thread, no fused multiply-add, no reordering of sums: the same bits on every machine.
    """
    return cast(Function, njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """A small kernel that is pasted into the kernels that call it."""
    return cast(Function, njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))
