"""Ranking of the Metis paper's strategies on real images, and the effect of Byzantine learners.

Equal simulated time. CIFAR-10 averaged down to 8x8, 10,000 rows, one hidden layer of 96 units, ten learners with
power-law sizes, every second one ten times slower; batch size 50, learning rate 0.05, momentum 0.75, 4 local
epochs, a round trip of 20 batches, the time of 4 rounds of SyncFedAvg for all strategies, 3 seeds. The partition is
the same for all seeds; others change the order of neighbours. All strategies share all settings, the paper's
thresholds included; none was tuned. The control shuffles all rows instead of a window of 50 over rows sorted by
class.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.cli.output import note
from abaton.controller import STRATEGIES
from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
from abaton.lab.robustness import robustness_experiment
from abaton.lab.strategy_comparison import (
    StrategyTrial,
    compare,
    confidence_interval,
    paired_difference,
    select_trials,
)

DATA = Path(os.environ.get("ABATON_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
SEEDS, ROWS, PARTITION = (1, 2, 3), 10_000, 1990
CONTROL = "Non-IID(3x8), full shuffle"
HARD = "Non-IID(3x8)"


def run() -> list[BenchmarkResult]:
    """Measure all strategies, the paper's claims, and Byzantine learners."""
    if not (DATA / "vision" / "cifar10_20k.npz").is_file():
        note("strategies: skipped, because there is no cifar10_20k; name its folder with ABATON_DATA")
        return []
    runs = compare(_settings(), list(STRATEGIES), SEEDS, report=note)
    return [*_table(runs), *_ranking(runs), *_leads(runs), *_byzantine()]


def _base_settings() -> ExperimentSettings:
    return ExperimentSettings(
        ExperimentTask("cifar10_20k", str(DATA)), ExperimentEnvironment(rows=ROWS, partition_seed=PARTITION)
    )


def _settings() -> dict[str, ExperimentSettings]:
    base = _base_settings()
    settings = {
        classes: replace(base, environment=replace(base.environment, classes=classes))
        for classes in ("IID", "Non-IID(5x7)", HARD)
    }
    return settings | {CONTROL: replace(base, training=replace(base.training, shuffle_window=0))}


def _table(runs: Sequence[StrategyTrial]) -> list[BenchmarkResult]:
    rows = []
    for environment in _settings():
        for strategy in STRATEGIES:
            estimate = confidence_interval(
                [trial.accuracy for trial in select_trials(runs, environment, strategy)]
            )
            rows.append(
                BenchmarkResult(
                    f"accuracy, {environment}, {strategy}", estimate.mean, f"± {estimate.half_width:.3f}"
                )
            )
    return rows


def _ranking(runs: Sequence[StrategyTrial]) -> list[BenchmarkResult]:
    def mean(environment: str, strategy: str) -> float:
        return confidence_interval(
            [trial.accuracy for trial in select_trials(runs, environment, strategy)]
        ).mean

    hard = {strategy: mean(HARD, strategy) for strategy in STRATEGIES}
    control = {strategy: mean(CONTROL, strategy) for strategy in STRATEGIES}
    dvw = max(hard["AsyncDVW(na)"], hard["AsyncDVW(a)"])
    fedavg = max(hard["SyncFedAvg"], hard["AsyncFedAvg"])
    others = max(value for strategy, value in hard.items() if not strategy.startswith("AsyncDVW"))
    last = min(value for strategy, value in control.items() if strategy != "FedAsync")
    return [
        at_least("3x8: AsyncDVW over the best other strategy", dvw - others, 0.0, "accuracy"),
        at_least("3x8: SyncDVW over SyncFedAvg", hard["SyncDVW"] - hard["SyncFedAvg"], 0.05, "accuracy"),
        at_least(
            "3x8: AsyncDVW(na) over AsyncFedAvg", hard["AsyncDVW(na)"] - hard["AsyncFedAvg"], 0.05, "accuracy"
        ),
        at_least(
            "3x8: AsyncFedAvg over SyncFedAvg", hard["AsyncFedAvg"] - hard["SyncFedAvg"], 0.0, "accuracy"
        ),
        at_least("3x8: SyncDVW over both FedAvg", hard["SyncDVW"] - fedavg, 0.0, "accuracy"),
        at_least("3x8: FedAsync over both FedAvg", hard["FedAsync"] - fedavg, 0.0, "accuracy"),
        at_most(
            "control: difference of SyncDVW and SyncFedAvg",
            abs(control["SyncDVW"] - control["SyncFedAvg"]),
            0.04,
            "accuracy",
        ),
        at_most("control: FedAsync over the last of the others", control["FedAsync"] - last, 0.0, "accuracy"),
    ]


def _leads(runs: Sequence[StrategyTrial]) -> list[BenchmarkResult]:
    """Return whether the lead of adaptive AsyncDVW grows with heterogeneity, as the paper claims, seed by seed."""
    rows = []
    for other in ("AsyncFedAvg", "FedAsync", "AsyncDVW(na)"):
        for environment in _settings():
            lead = paired_difference(runs, environment, "AsyncDVW(a)", other)
            rows.append(
                BenchmarkResult(
                    f"AsyncDVW(a) over {other}, {environment}",
                    lead.mean,
                    f"accuracy ± {lead.half_width:.3f}",
                )
            )
    return rows


def _byzantine() -> list[BenchmarkResult]:
    """Measure Byzantine learners, the largest one with flipped labels or noise; classes are balanced."""
    base = _base_settings()
    settings = replace(
        base,
        environment=replace(base.environment, classes="IID", rows=ROWS // 2),
        training=replace(base.training, shuffle_window=0),
    )
    results = []
    for row in robustness_experiment(settings, SEEDS, report=note):
        label = f"{row['attack']}, {row['strategy']} weighted by {row['weighting']}"
        clean = row["clean"]["mean"]
        results.append(BenchmarkResult(f"accuracy lost, {label}", row["loss"]["mean"], f"of {clean:.3f}"))
        if row["weighting"] == "examples":
            continue
        results.append(at_most(f"weight fraction, {label}", row["weight_fraction"], row["limit"], ""))
        ratio = row["relative_to_fedavg"]
        if ratio is not None:
            results.append(at_most(f"loss relative to FedAvg's, {label}", ratio, round(1 / 3, 4), "x"))
    return results
