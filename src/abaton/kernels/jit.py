"""Compiled loops: one way to say that a function is a kernel, and one process that compiles it.

Machine code is kept on disk, beside the package or where ``NUMBA_CACHE_DIR`` says. Whoever needs a kernel holds its
lock while looking for it there: of many workers that begin at once, one compiles and the others read what it wrote.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.compiler_lock import global_compiler_lock

Function = TypeVar("Function", bound=Callable[..., object])

_WAY: Any = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def kernel(function: Function) -> Function:
    """Compile a function to machine code at its first call and keep the result on disk.

    One thread, no fused multiply-add, no reordering of sums: the same bits on every machine.
    """
    return _compiled_once(function, njit(**_WAY)(function))


def inner(function: Function) -> Function:
    """A kernel that only other kernels call; Python cannot."""
    return _compiled_once(function, njit(**{**_WAY, "no_cpython_wrapper": True})(function))


def inlined(function: Function) -> Function:
    """A small kernel whose machine code is pasted into the kernels that call it."""
    return _compiled_once(function, njit(**{**_WAY, "forceinline": True})(function))


def spelled(function: Function) -> Function:
    """A part of a kernel that is spelled out before anything is compiled: never compiled alone, so sooner ready.

    For long kernels of many parts; the compiler sees less of what it could make quicker than with ``inlined``.
    """
    return cast(Function, njit(**{**_WAY, "inline": "always"})(function))


def _compiled_once(function: Function, dispatcher: Any) -> Function:
    compile_now = dispatcher.compile

    def compile_once(signature: Any) -> Any:
        # The compiler's own lock comes first: threads of this process would otherwise wait for each other's in turn.
        with global_compiler_lock, _locked(dispatcher.stats.cache_path, function):
            return compile_now(signature)

    dispatcher.compile = compile_once
    return cast(Function, dispatcher)


def _locked(folder: str, function: Callable[..., object]) -> Any:
    """A file that is locked by this process until it is closed."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    handle = (Path(folder) / f"{function.__module__}.{function.__qualname__}.lock").open("w")
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle
