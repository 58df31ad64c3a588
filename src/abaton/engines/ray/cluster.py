"""Connection to a Ray cluster, by its address or started on this machine, and an executor for functions on it."""

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

_CONNECT_SECONDS = 10.0


class ClusterError(AbatonError):
    """The Ray cluster does not respond, or is gone."""


def require_ray() -> None:
    """Check that Ray is installed, before a run on a cluster starts.

    Raises:
        SettingsError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise SettingsError(
            "Ray is not installed", where="engine ray", remedy="install it with: pip install 'abaton[ray]'"
        )


def connect(address: str = "") -> bool:
    """Connect to a Ray cluster, unless this process is connected already.

    Ray's usage statistics and its dashboard are off in a cluster that is started here; an existing cluster keeps its
    settings.

    Args:
        address: the address of the cluster, by default `RAY_ADDRESS`; without either a cluster is started on this
            machine and ends with `disconnect`.

    Returns:
        Whether a connection was made here, which `disconnect` then ends.

    Raises:
        SettingsError: Ray is not installed.
        ClusterError: There is no response at the address.
    """
    require_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads it when it is imported
    import ray

    if ray.is_initialized():
        return False
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = address or os.environ.get("RAY_ADDRESS", "")
    no_logs = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    try:
        if address and address != "local":
            _check_address(address)
            ray.init(address, **no_logs)
        else:
            ray.init("local", include_dashboard=False, **no_logs)
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            "the Ray cluster does not respond" if address else "Ray cannot be started on this machine",
            where=address or "engine ray",
            remedy="check the address, that the cluster runs the same Ray and Python, and Ray's own token",
        ) from error
    return True


def _check_address(address: str) -> None:
    """Check that a Ray cluster responds at the address; Ray alone takes minutes to detect that it does not.

    >>> _check_address("head")
    Traceback (most recent call last):
    abaton.errors.SettingsError: 'head' is not the address of a Ray cluster (engine ray): ...
    """
    host, _, port = address.rpartition(":")
    if address == "auto":
        return  # Ray finds the cluster on this machine
    if not host or "/" in host or not port.isdecimal():
        raise SettingsError(
            f"'{address}' is not the address of a Ray cluster",
            where="engine ray",
            remedy="use HOST:PORT as 'ray start --head' prints it, or auto for the cluster on this machine",
        )
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
        pass


def disconnect() -> None:
    """Disconnect from the Ray cluster, and stop a cluster that was started here."""
    import ray

    ray.shutdown()


def processors() -> int:
    """Return the number of tasks that the Ray cluster runs at once."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


_MAX_RETRIES = 3


class RayExecutor:
    """Executor of functions on a cluster; a function whose worker exits is run again, so it must be idempotent.

    Attributes:
        size: the number of functions that run at once.
    """

    def __init__(self) -> None:
        self.size = processors()
        self._open: set[Any] = set()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a function on a machine of the Ray cluster."""
        import ray

        ref = ray.remote(max_retries=_MAX_RETRIES)(function).remote(*arguments)
        self._open.add(ref)
        result: Future[Any] = Future()

        def done(ray_future: Future[Any]) -> None:
            self._open.discard(ref)
            if (error := ray_future.exception()) is None:
                result.set_result(ray_future.result())
            else:
                result.set_exception(
                    _cluster_error(was_lost=not isinstance(error, ray.exceptions.RayTaskError))
                )

        ref.future().add_done_callback(done)
        return result

    def close(self) -> None:
        """Cancel the functions that run on the Ray cluster."""
        import ray

        for ref in list(self._open):
            ray.cancel(ref, force=True)


@contextmanager
def ray_pool(address: str = "") -> Iterator[RayExecutor]:
    """Return an executor on the Ray cluster at an address (see `connect`) as a context manager."""
    is_new = connect(address)
    pool = RayExecutor()
    try:
        yield pool
    finally:
        pool.close()
        if is_new:
            disconnect()


def _cluster_error(*, was_lost: bool) -> ClusterError:
    """Return the error of a function that failed on the Ray cluster; its text may contain data and is omitted."""
    return ClusterError(
        "workers of a task exited repeatedly" if was_lost else "a task failed on a worker",
        where="Ray",
        remedy="check that its machines see the same folders and have the same version of Abaton; then use --resume",
    )
