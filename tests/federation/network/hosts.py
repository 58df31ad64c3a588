"""Hosts for a test: where network namespaces are not allowed, tests say so and are skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from benchmarks._hosts import Hosts, why_not


@contextmanager
def hosts(names: Sequence[str]) -> Iterator[Hosts]:
    """Hosts from their start to their end."""
    if why := why_not():
        pytest.skip(why)
    made = Hosts(names)
    try:
        made.start()
        yield made
    finally:
        made.stop()
