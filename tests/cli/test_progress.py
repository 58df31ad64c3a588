"""Estimates of the time left: not too early, stable and accurate."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from abaton.cli.progress import TimeEstimate, approximate_duration


def estimates_of(arrivals: list[float], rounds: int) -> list[tuple[float, float | None, float]]:
    """Return after each version the time, the estimated and the true time left."""
    estimate, lines = TimeEstimate(rounds), []
    for version, now in enumerate(arrivals, 1):
        estimate.note(now, version)
        lines.append((now, estimate.seconds_left(now), arrivals[-1] - now))
    return lines


def test_there_is_no_estimate_before_enough_progress():
    lines = estimates_of([0.2 * n for n in range(1, 201)], 200)
    assert all(left is None for now, left, _ in lines if now < 3)
    assert all(left is not None for now, left, _ in lines if now > 4)
    assert TimeEstimate(None).seconds_left(100.0) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_start_and_uneven_learners_keep_the_estimate_stable(seed):
    rng = random.Random(seed)
    now, arrivals = 20.0, []  # twenty seconds of compiling before the first version
    for _ in range(300):
        now += rng.expovariate(4.0) * (8 if rng.random() < 0.05 else 1)
        arrivals.append(now)
    lines = [line for line in estimates_of(arrivals, 300) if line[1] is not None]
    late = [(left, truth) for now, left, truth in lines if now > 0.4 * arrivals[-1] and truth > 10]
    assert all(truth / 2 < left < 2 * truth for left, truth in late), "within a factor of two"
    estimates = [left for _, left, truth in lines if truth > 10]
    jumps = [abs(after - before) / before for before, after in pairwise(estimates)]
    assert max(jumps) < 0.35, "from one version to the next it never leaps"


def test_estimates_are_rounded():
    assert [approximate_duration(s) for s in (0, 12, 54, 100, 1799, 3000, 9000)] == [
        "a few seconds",
        "about 10 s",
        "about 55 s",
        "about 2 min",
        "about 30 min",
        "about 50 min",
        "about 2 h 30 min",
    ]
