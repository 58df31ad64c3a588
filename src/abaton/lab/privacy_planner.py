"""Planning of a differential-privacy budget before a study starts."""

from __future__ import annotations

import math
from typing import Any

from abaton.controller.differential_privacy import Sampling, epsilon_curve
from abaton.errors import SettingsError

NEIGHBOURS: dict[str, str] = {
    "none": "no sampling: exact; the noise multiplier defines neighbouring federations",
    "fixed": "samples of a fixed size, without replacement; neighbours: one learner has other data (Renyi bound)",
    "poisson": "independent sampling of each learner; neighbours: one learner added or removed (Renyi bound)",
}


def plan_budget(
    noise_multiplier: float,
    delta: float,
    rounds: int,
    sampling: str = "none",
    sample: tuple[int, int] = (1, 1),
    epsilon: float | None = None,
) -> dict[str, Any]:
    """Plan a privacy budget: epsilon after selected rounds, and how many rounds stay within it.

    Args:
        noise_multiplier: standard deviation of the noise over the clipping norm.
        delta: probability that the guarantee fails.
        rounds: planned number of rounds.
        sampling: `none`, `fixed` or `poisson`.
        sample: number of learners per round, and population size.
        epsilon: a budget.
    """
    kind = _check(noise_multiplier, delta, sampling, sample, epsilon)

    def after(counts: list[int]) -> list[tuple[int, float]]:
        return epsilon_curve(
            counts,
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=kind,
            sample_size=sample[0],
            population=sample[1],
        )

    rows = [
        {"round": count, "epsilon": spent, "zcdp": zcdp_bound(count, noise_multiplier, delta)}
        for count, spent in after(_reported_rounds(rounds))
    ]
    result: dict[str, Any] = {
        "noise_multiplier": noise_multiplier,
        "delta": delta,
        "sampling": kind,
        "sample_size": sample[0],
        "population": sample[1],
        "rounds": rows,
    }
    result["neighbours"] = NEIGHBOURS[kind]
    if epsilon is not None:
        low, high = 0, rounds + 1  # the budget suffices for `low` rounds and not for `high`
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if after([middle])[0][1] <= epsilon else (low, middle)
        result |= {"budget": epsilon, "within": low}
    return result


def zcdp_bound(rounds: int, noise_multiplier: float, delta: float) -> float:
    """Return the planner's bound without sampling: rho = rounds / (2 noise^2), rho + 2 sqrt(rho ln(1 / delta)).

    >>> round(zcdp_bound(1, 1.0, 1e-5), 3)
    5.299
    """
    rho = rounds / (2 * noise_multiplier**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _reported_rounds(rounds: int) -> list[int]:
    """Return the rounds that a privacy plan reports: 1, 2, 5, 10, 20, 50 and so on, and the last."""
    selected = {m * 10**e for e in range(len(str(rounds))) for m in (1, 2, 5)}
    return sorted({count for count in selected if count < rounds} | {rounds})


def _check(
    noise_multiplier: float, delta: float, sampling: str, sample: tuple[int, int], epsilon: float | None
) -> Sampling:
    for name, value, fits, remedy in (
        ("noise_multiplier", noise_multiplier, 0 < noise_multiplier < math.inf, "use a number above 0"),
        ("delta", delta, 0 < delta < 1, "use a number between 0 and 1"),
        ("sampling", sampling, sampling in NEIGHBOURS, f"use one of {', '.join(NEIGHBOURS)}"),
        ("sample_size", sample[0], 1 <= sample[0] <= sample[1], "use a number from 1 to the population"),
        ("epsilon", epsilon, epsilon is None or epsilon > 0, "use a number above 0"),
    ):
        if not fits:
            raise SettingsError(f"{name} is {value}", where="privacy", remedy=remedy)
    sampling_kinds: dict[str, Sampling] = {"none": "none", "fixed": "fixed", "poisson": "poisson"}
    return sampling_kinds[sampling]
