"""The Ray cluster: one that is there already, by its address, or a small one of our own on this machine.

Bulk work on a Ray cluster, as the pools of the standard library take it: functions in, futures out.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from abaton.errors import AbatonError, SettingsError

_KNOCK = 10.0  # seconds


class ClusterError(AbatonError):
    """The Ray cluster cannot be reached, or is gone."""


def require_ray() -> None:
    """Refuse to go on without Ray, before anything is begun.

    Raises:
        SettingsError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise SettingsError(
            "Ray is not installed", where="engine ray", remedy="install it with: pip install 'abaton[ray]'"
        )


def connect(address: str = "") -> bool:
    """Connect to a Ray cluster, unless this process is connected already.

    Ray's usage statistics and its dashboard are off in a cluster that is started here; an existing one keeps the
    settings it was started with.

    Args:
        address: where the cluster is; without one `RAY_ADDRESS` counts, and without that a cluster of this machine
            is started, which ends with `disconnect`.

    Returns:
        Whether a connection was made here, which `disconnect` then ends.

    Raises:
        SettingsError: Ray is not installed.
        ClusterError: nothing answers at the address.
    """
    require_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads it when it is imported
    import ray

    if ray.is_initialized():
        return False
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = address or os.environ.get("RAY_ADDRESS", "")
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    try:
        if address and address != "local":
            _knock(address)
            ray.init(address, **quiet)
        else:
            ray.init("local", include_dashboard=False, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            "there is no Ray cluster that answers" if address else "Ray cannot be started on this machine",
            where=address or "engine ray",
            remedy="check the address, that the cluster runs the same Ray and Python, and Ray's own token",
        ) from error
    return True


def _knock(address: str) -> None:
    """Notice at once that nobody is there, which takes Ray minutes.

    >>> _knock("head")
    Traceback (most recent call last):
    abaton.errors.SettingsError: 'head' is not the address of a Ray cluster (engine ray): ...
    """
    host, _, port = address.rpartition(":")
    if address == "auto":
        return  # Ray finds the cluster that runs on this machine
    if not host or "/" in host or not port.isdecimal():
        raise SettingsError(
            f"'{address}' is not the address of a Ray cluster",
            where="engine ray",
            remedy="use HOST:PORT as 'ray start --head' tells it, or auto for the cluster on this machine",
        )
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK):
        pass


def disconnect() -> None:
    """End the connection, and with it a cluster that was started here."""
    import ray

    ray.shutdown()


def processors() -> int:
    """How many tasks the cluster can do at once."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


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
