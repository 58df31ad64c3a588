"""One thread for arithmetic: small models train fastest so, and parallel work is done over learners."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_inside = 0
_before: list[tuple[Any, int]] = []


@cache
def _libraries() -> list[Any]:
    import scipy.linalg.cython_blas  # noqa: F401  # the library that compiled matrix products use

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch and the matrix library use one thread each; as before when the last of all users has left."""
    global _inside
    with _lock:
        if not _inside:
            _before[:] = [(library, library.num_threads) for library in _libraries()]
            _before.append((None, torch.get_num_threads()))
            for library, _ in _before:
                _set(library, 1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                for library, count in _before:
                    _set(library, count)


def _set(library: Any, count: int) -> None:
    if library is None:
        torch.set_num_threads(count)
    else:
        library.set_num_threads(count)
