"""Results of benchmarks: named values with their targets."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Measured value, its target, and whether the target is met."""

    name: str
    value: float
    unit: str
    target: str | None = None
    holds: bool | None = None

    def to_row(self) -> dict[str, Any]:
        """Return the row of a benchmark result that ``abaton bench NAME --json`` prints."""
        return asdict(self)


def at_most(name: str, value: float, limit: float, unit: str) -> BenchmarkResult:
    """Return a benchmark result that must not exceed a limit."""
    return BenchmarkResult(name, value, unit, f"<= {limit:g}", value <= limit)


def at_least(name: str, value: float, limit: float, unit: str) -> BenchmarkResult:
    """Return a benchmark result that must reach a limit."""
    return BenchmarkResult(name, value, unit, f">= {limit:g}", value >= limit)


def within(name: str, value: float, expected: float, tolerance: float, unit: str) -> BenchmarkResult:
    """Return a benchmark result that must be within a relative tolerance of the expected value."""
    holds = abs(value - expected) <= tolerance * abs(expected)
    return BenchmarkResult(name, value, unit, f"{expected:g} ± {100 * tolerance:g} %", holds)


def best_seconds(call: Callable[[], object], *, repeats: int = 7, inner: int = 1) -> float:
    """Benchmark a call: return the fastest of several timings, in seconds."""
    gc.collect()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        best = min(best, (time.perf_counter() - start) / inner)
    return best
