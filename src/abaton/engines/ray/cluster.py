"""The Ray cluster: one that is there already, by its address, or a small one of our own on this machine."""

from __future__ import annotations

import logging
import os
import socket
from importlib.util import find_spec

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
