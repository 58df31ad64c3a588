"""Which software made a result: kept with every run, so that it can be made again."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from abaton import __version__

_PARTS = ("numpy", "numba", "torch", "scikit-learn")


def versions() -> dict[str, str]:
    """The versions that the bits of a result may depend on.

    >>> list(versions())[:2]
    ['abaton', 'python']
    """
    made = {"abaton": __version__, "python": platform.python_version()}
    for part in _PARTS:
        try:
            made[part] = version(part)
        except PackageNotFoundError:  # an adapter that is not installed cannot have been used
            continue
    return made
