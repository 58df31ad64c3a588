"""Bulk work on a Ray cluster, as the pools of the standard library take it: functions in, futures out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from abaton.engines.ray.cluster import ClusterError, connect, disconnect, processors

_AGAIN = 3


class RayPool:
    """Runs functions on a cluster; one whose worker dies is run again, so it must be one that may be.

    Attributes:
        size: how many of them run at once.
    """

    def __init__(self) -> None:
        self.size = processors()
        self._open: set[Any] = set()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a function with some arguments on some machine."""
        import ray

        ref = ray.remote(max_retries=_AGAIN)(work).remote(*arguments)
        self._open.add(ref)
        made: Future[Any] = Future()

        def done(answer: Future[Any]) -> None:
            self._open.discard(ref)
            if (error := answer.exception()) is None:
                made.set_result(answer.result())
            else:
                made.set_exception(_plain(lost=not isinstance(error, ray.exceptions.RayTaskError)))

        ref.future().add_done_callback(done)
        return made

    def close(self) -> None:
        """End what is still under way."""
        import ray

        for ref in list(self._open):
            ray.cancel(ref, force=True)


@contextmanager
def ray_pool(address: str = "") -> Iterator[RayPool]:
    """A pool on the cluster at an address (see `connect`), for as long as it is needed."""
    ours = connect(address)
    pool = RayPool()
    try:
        yield pool
    finally:
        pool.close()
        if ours:
            disconnect()


def _plain(*, lost: bool) -> ClusterError:
    """What became of a task that gave nothing; never the text of its exception, which may hold content."""
    return ClusterError(
        "the cluster keeps losing the workers of a task" if lost else "a worker failed over a task",
        where="Ray",
        remedy="check that its machines see the same folders and have the same Abaton; then go on with --resume",
    )
