"""Decorators for compiled kernels, with a shared on-disk cache.

Machine code is cached beside the package or in ``NUMBA_CACHE_DIR``. A file lock beside the cache lets one process
compile while other processes that start at the same time wait and read its result. Compiled code is not shipped,
because Numba's cache is specific to processor, version and file time stamp.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.compiler_lock import global_compiler_lock

Function = TypeVar("Function", bound=Callable[..., object])

_OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def kernel(function: Function) -> Function:
    """Compile a function with Numba at its first call and cache the machine code on disk.

    One thread, no fused multiply-add, no reordering of sums: results are bit-identical on every machine.
    """
    return _with_compile_lock(function, njit(**_OPTIONS)(function))


def inner(function: Function) -> Function:
    """Compile a kernel with Numba that only other kernels can call, not Python."""
    return _with_compile_lock(function, njit(**{**_OPTIONS, "no_cpython_wrapper": True})(function))


def inlined(function: Function) -> Function:
    """Compile a small kernel with Numba whose machine code is inlined into its callers."""
    return _with_compile_lock(function, njit(**{**_OPTIONS, "forceinline": True})(function))


def expanded(function: Function) -> Function:
    """Let Numba expand a function into its callers before compilation, which shortens the compile time.

    For long kernels of many functions; the compiler optimises less than with ``inlined``.
    """
    return cast(Function, njit(**{**_OPTIONS, "inline": "always"})(function))


def _with_compile_lock(function: Function, dispatcher: Any) -> Function:
    compile_kernel = dispatcher.compile

    def compile_locked(signature: Any) -> Any:
        # Take the compiler's lock first: threads of this process would otherwise deadlock on the two locks.
        with global_compiler_lock, _lock_file(dispatcher.stats.cache_path, function):
            return compile_kernel(signature)

    dispatcher.compile = compile_locked
    return cast(Function, dispatcher)


def _lock_file(folder: str, function: Callable[..., object]) -> Any:
    """Return the lock file of a kernel's compilation, locked by this process until it is closed."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    handle = (Path(folder) / f"{function.__module__}.{function.__qualname__}.lock").open("w")
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle
