"""Network namespaces as hosts; tests are skipped where they are not allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from benchmarks._hosts import Hosts, why_not


@contextmanager
def hosts(names: Sequence[str]) -> Iterator[Hosts]:
    """Start the hosts, yield them, stop them."""
    if reason := why_not():
        pytest.skip(reason)
    hosts = Hosts(names)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()
