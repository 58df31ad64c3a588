"""Effect of Byzantine learners on the community model: accuracy with and without them, and their weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from abaton.lab.experiment import ExperimentSettings
from abaton.lab.federation_builder import build_from_settings
from abaton.lab.strategy_comparison import Report, StrategyTrial, compare, confidence_interval


@dataclass(frozen=True, slots=True)
class RobustnessStrategy:
    """Strategy with its validation metric, and whether the author's own validation set is included."""

    strategy: str
    metric: str = "micro_f1"
    include_own_validation: bool = True

    @property
    def label(self) -> str:
        """Weighting of a compared strategy as text, for the table of robustness."""
        if "DVW" not in self.strategy:
            return "examples"
        return self.metric if self.include_own_validation else f"{self.metric}, others only"


# The paper's weighting and two stricter ones, each with FedAvg and the same scheduler.
STRATEGIES: Sequence[RobustnessStrategy] = tuple(
    candidate
    for fedavg, dvw in (("SyncFedAvg", "SyncDVW"), ("AsyncFedAvg", "AsyncDVW(na)"))
    for candidate in (
        RobustnessStrategy(fedavg),
        RobustnessStrategy(dvw),
        RobustnessStrategy(dvw, include_own_validation=False),
        RobustnessStrategy(dvw, "mcc", include_own_validation=False),
    )
)
ATTACKS: Mapping[str, Mapping[int, str]] = {
    "flipped labels": {0: "flipped"},
    "noise": {0: "noise"},
    "flipped labels and noise": {0: "flipped", 2: "noise"},
}


def robustness_experiment(
    setting: ExperimentSettings,
    seeds: Sequence[int],
    *,
    strategies: Sequence[RobustnessStrategy] = STRATEGIES,
    attacks: Mapping[str, Mapping[int, str]] = ATTACKS,
    folder: Path | None = None,
    report: Report | None = None,
) -> list[dict[str, Any]]:
    """Return for each attack and strategy the accuracy without and with Byzantine learners, loss and weight.

    `weight_fraction` is the largest weight fraction of a Byzantine learner among all latest models, mean over seeds;
    `limit` is 1/(2N). `relative_to_fedavg` is the loss relative to that of FedAvg with the same scheduler.
    """
    rows: list[dict[str, Any]] = []
    for candidate in strategies:
        strategy = candidate.strategy
        trial_settings = replace(
            setting,
            metric=candidate.metric,
            include_own_validation=candidate.include_own_validation,
            byzantine={},
        )
        clean = compare({"clean": trial_settings}, [strategy], seeds, folder=folder, report=report)
        for attack, byzantine in attacks.items():
            attacked = compare(
                {attack: replace(trial_settings, byzantine=byzantine)},
                [strategy],
                seeds,
                folder=folder,
                report=report,
            )
            losses = [a.accuracy - b.accuracy for a, b in zip(clean, attacked, strict=True)]
            rows.append(
                {
                    "attack": attack,
                    "strategy": strategy,
                    "weighting": candidate.label,
                    "clean": asdict(confidence_interval([trial.accuracy for trial in clean])),
                    "attacked": asdict(confidence_interval([trial.accuracy for trial in attacked])),
                    "loss": asdict(confidence_interval(losses)),
                    "weight_fraction": fmean(
                        _weight_fraction(trial, setting, byzantine) for trial in attacked
                    ),
                    "limit": 1 / (2 * setting.environment.learners),
                }
            )
    return [
        {**line, "relative_to_fedavg": _relative_to_fedavg(line, rows)} for line in _by_attack(rows, attacks)
    ]


def _by_attack(rows: Sequence[dict[str, Any]], attacks: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for attack in attacks for row in rows if row["attack"] == attack]


def _relative_to_fedavg(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
    scheduler = "Sync" if row["strategy"].startswith("Sync") else "Async"
    for other in rows:
        if other["attack"] == row["attack"] and other["strategy"] == f"{scheduler}FedAvg":
            lost = other["loss"]["mean"]
            return row["loss"]["mean"] / lost if lost > 0 and other is not row else None
    return None


def _weight_fraction(
    trial: StrategyTrial, setting: ExperimentSettings, byzantine: Mapping[int, str]
) -> float:
    """Return the largest weight fraction of a Byzantine learner in the last aggregation."""
    partition = build_from_settings(setting, trial.strategy, trial.seed).metadata.study_facts["partition"]
    by_size = sorted(partition["learners"], key=lambda row: -int(row["examples"]))
    names = [by_size[index]["learner"] for index in byzantine]
    fractions = trial.history.weight_fractions()
    return max(fractions.get(name, 0.0) for name in names)
