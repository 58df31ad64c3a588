"""Planning a privacy budget: what rounds cost, before a study starts."""

from __future__ import annotations

import math
from typing import Any

from abaton.controller.differential_privacy import Lots, curve
from abaton.errors import SettingsError

NEIGHBOURS: dict[str, str] = {
    "none": "no lots: exact; what two neighbouring federations are is in the noise multiplier",
    "fixed": "lots of a fixed size, without replacement; neighbours: one learner has other data (Renyi bound)",
    "poisson": "each learner drawn by its own coin; neighbours: one learner more or less (Renyi bound)",
}


def plan(
    noise: float,
    delta: float,
    rounds: int,
    lots: str = "none",
    drawn: tuple[int, int] = (1, 1),
    epsilon: float | None = None,
) -> dict[str, Any]:
    """Epsilon after chosen rounds, and how many rounds stay within a budget.

    Args:
        noise: standard deviation of the noise over the most that one learner can change.
        delta: the chance that the promise may fail.
        rounds: how many are planned.
        lots: `none`, `fixed` or `poisson`.
        drawn: how many learners take part in a round, and among how many.
        epsilon: a budget.
    """
    kind = _check(noise, delta, lots, drawn, epsilon)

    def after(counts: list[int]) -> list[tuple[int, float]]:
        return curve(counts, noise=noise, delta=delta, lots=kind, drawn=drawn[0], among=drawn[1])

    rows = [
        {"round": count, "epsilon": spent, "zcdp": zcdp_bound(count, noise, delta)}
        for count, spent in after(_shown(rounds))
    ]
    made: dict[str, Any] = {
        "noise": noise,
        "delta": delta,
        "lots": kind,
        "drawn": drawn[0],
        "among": drawn[1],
        "rounds": rows,
    }
    made["neighbours"] = NEIGHBOURS[kind]
    if epsilon is not None:
        low, high = 0, rounds + 1  # the budget holds after `low` rounds and not, or not asked, after `high`
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if after([middle])[0][1] <= epsilon else (low, middle)
        made |= {"budget": epsilon, "within": low}
    return made


def zcdp_bound(rounds: int, noise: float, delta: float) -> float:
    """The simple bound without lots: rho = rounds / (2 noise^2), epsilon = rho + 2 sqrt(rho ln(1 / delta)).

    >>> round(zcdp_bound(1, 1.0, 1e-5), 3)
    5.299
    """
    rho = rounds / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _shown(rounds: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 and so on, and the last."""
    chosen = {m * 10**e for e in range(len(str(rounds))) for m in (1, 2, 5)}
    return sorted({count for count in chosen if count < rounds} | {rounds})


def _check(noise: float, delta: float, lots: str, drawn: tuple[int, int], epsilon: float | None) -> Lots:
    for name, value, fits, remedy in (
        ("noise", noise, 0 < noise < math.inf, "use a number above 0"),
        ("delta", delta, 0 < delta < 1, "use a number between 0 and 1"),
        ("lots", lots, lots in NEIGHBOURS, f"use one of {', '.join(NEIGHBOURS)}"),
        ("drawn", drawn[0], 1 <= drawn[0] <= drawn[1], "draw at least 1, and at most as many as there are"),
        ("epsilon", epsilon, epsilon is None or epsilon > 0, "use a number above 0"),
    ):
        if not fits:
            raise SettingsError(f"{name} is {value}", where="privacy", remedy=remedy)
    kinds: dict[str, Lots] = {"none": "none", "fixed": "fixed", "poisson": "poisson"}
    return kinds[lots]
