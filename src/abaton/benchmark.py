"""Measurements: every benchmark prints one list of named numbers with their targets."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Measure:
    """One measured number, what it should be, and whether it is."""

    name: str
    value: float
    unit: str
    target: str | None = None
    holds: bool | None = None

    def row(self) -> dict[str, Any]:
        """The form printed by ``abaton bench NAME --json``."""
        return asdict(self)


def at_most(name: str, value: float, limit: float, unit: str) -> Measure:
    """A number that must not exceed a limit."""
    return Measure(name, value, unit, f"<= {limit:g}", value <= limit)


def at_least(name: str, value: float, limit: float, unit: str) -> Measure:
    """A number that must reach a limit."""
    return Measure(name, value, unit, f">= {limit:g}", value >= limit)


def within(name: str, value: float, expected: float, tolerance: float, unit: str) -> Measure:
    """A number that must lie within a relative tolerance of what is expected."""
    holds = abs(value - expected) <= tolerance * abs(expected)
    return Measure(name, value, unit, f"{expected:g} ± {100 * tolerance:g} %", holds)


def best_seconds(call: Callable[[], object], *, repeats: int = 7, inner: int = 1) -> float:
    """The fastest of several timings of a call, in seconds: the least disturbed one."""
    gc.collect()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        best = min(best, (time.perf_counter() - start) / inner)
    return best
