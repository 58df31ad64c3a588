"""One thread for arithmetic: small models train fastest so, and parallel work is done over learners."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> list[Any]:
    import scipy.linalg.cython_blas  # noqa: F401  # the library that compiled matrix products use

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


class OneThread:
    """Lets PyTorch and the matrix library use one thread each; as before when the last of all users has left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = [(library, library.num_threads) for library in _libraries()]
                self._before.append((None, torch.get_num_threads()))
                for library, _ in self._before:
                    _set(library, 1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for library, count in self._before:
                    _set(library, count)


def _set(library: Any, count: int) -> None:
    if library is None:
        torch.set_num_threads(count)
    else:
        library.set_num_threads(count)


one_thread = OneThread()
"""The settings belong to the process, so there is one of it; learners' training enters it again and again."""
