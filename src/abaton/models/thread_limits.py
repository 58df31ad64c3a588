"""Limit of PyTorch and BLAS to one thread: fastest for small models, since learners train in parallel."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> list[Any]:
    import scipy.linalg.cython_blas  # noqa: F401  # the BLAS library of compiled kernels

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


class SingleThread:
    """Context manager that limits PyTorch and BLAS to one thread until the last concurrent context ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._saved: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._saved = [(library, library.num_threads) for library in _libraries()]
                self._saved.append((None, torch.get_num_threads()))
                for library, _ in self._saved:
                    _set(library, 1)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                for library, count in self._saved:
                    _set(library, count)


def _set(library: Any, count: int) -> None:
    if library is None:
        torch.set_num_threads(count)
    else:
        library.set_num_threads(count)


one_thread = SingleThread()
"""Shared instance, because the limits apply to the process; entered by every training."""
