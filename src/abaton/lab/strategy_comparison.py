"""Comparison of strategies with the same data, network, settings and simulated time, over several seeds."""

from __future__ import annotations

import math
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from abaton.errors import SettingsError
from abaton.lab.experiment import ExperimentSettings
from abaton.lab.federation_builder import build_from_settings, data_set_for, test_accuracy
from abaton.lab.run_history import RunHistory, load_history
from abaton.store import Store

POINTS = 25  # times at which the community model is evaluated
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StrategyTrial:
    """One strategy with one seed in one environment.

    Attributes:
        environment: name of the setting.
        strategy, seed: the strategy and the seed of the run.
        curve: simulated seconds, and the accuracy of the newest community model then.
        seconds: simulated time of the run.
        versions: number of published versions.
        history: history of the run.
        run: its name in the store.
    """

    environment: str
    strategy: str
    seed: int
    curve: tuple[tuple[float, float], ...]
    seconds: float
    versions: int
    history: RunHistory
    run: str

    @property
    def accuracy(self) -> float:
        """Return the accuracy of the last community model of a strategy's trial."""
        return self.curve[-1][1]


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """Mean over seeds and half width of its 95 % confidence interval; no half width with one seed."""

    mean: float
    half_width: float | None
    seeds: int


def confidence_interval(values: Sequence[float]) -> ConfidenceInterval:
    """Return the mean over trials of a strategy and its 95 % confidence interval by Student's distribution.

    >>> estimate = confidence_interval([0.30, 0.32, 0.34])
    >>> round(estimate.mean, 3), round(estimate.half_width, 4)
    (0.32, 0.0497)
    """
    if not values:
        raise SettingsError("there are no seeds", where="compare", remedy="give at least one seed")
    if len(values) < 2:
        return ConfidenceInterval(fmean(values), None, len(values))
    from scipy.stats import t

    half_width = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return ConfidenceInterval(fmean(values), half_width, len(values))


def compare(
    settings: Mapping[str, ExperimentSettings],
    strategies: Sequence[str],
    seeds: Sequence[int],
    *,
    folder: Path | None = None,
    report: Report | None = None,
) -> list[StrategyTrial]:
    """Compare strategies: run every strategy with every seed in every setting.

    Args:
        settings: the environments by name.
        strategies: names of strategies.
        seeds: each decides initial weights, shuffles, validation sets and, unless the setting fixes it, the partition.
        folder: folder of a store that keeps the runs; temporary if not given.
        report: called with a line of text after each run.
    """
    for setting in settings.values():  # invalid settings are refused before the first run
        for strategy in strategies:
            build_from_settings(setting, strategy, seeds[0] if seeds else 0)
    trials: list[StrategyTrial] = []
    for name, setting in settings.items():
        for seed in seeds:
            for strategy in strategies:
                with _store(folder) as store:
                    trial = run(store, name, setting, strategy, seed)
                trials.append(trial)
                if report is not None:
                    report(f"{name}, {strategy}, seed {seed}: {trial.accuracy:.3f}")
    return trials


def run(store: Store, name: str, setting: ExperimentSettings, strategy: str, seed: int) -> StrategyTrial:
    """Run one trial of a strategy, and evaluate its community model at times that are the same for all."""
    federation = build_from_settings(setting, strategy, seed)
    finished = federation.run(store=store)
    row, models = finished.row, finished.versions
    seconds = federation.strategy.max_seconds
    assert seconds is not None
    times = [model.timestamp for model in models]
    curve_times = [seconds * k / (POINTS - 1) for k in range(POINTS)]
    latest = [models[bisect_right(times, time) - 1] for time in curve_times]
    digests = [model.digest for model in latest]
    test = data_set_for(setting.task).test
    accuracies = {
        digest: test_accuracy(federation.model, store.model_files.get(digest), test)
        for digest in dict.fromkeys(digests)
    }
    curve = tuple((time, accuracies[digest]) for time, digest in zip(curve_times, digests, strict=True))
    # Stored with the run for its report and for 'abaton compare'.
    progress = [
        {"version": model.version, "timestamp": model.timestamp, "accuracy": accuracies[model.digest]}
        for model in {model.version: model for model in latest}.values()
    ]
    store.finish_run(row.run, row.status, {**(row.result or {}), "progress": progress})
    run_history = load_history(store, row.run, federation.strategy)
    return StrategyTrial(name, strategy, seed, curve, seconds, models[-1].version, run_history, row.run)


def select_trials(runs: Sequence[StrategyTrial], environment: str, strategy: str) -> list[StrategyTrial]:
    """Return the trials of one strategy in one environment, by seed."""
    trials = [trial for trial in runs if (trial.environment, trial.strategy) == (environment, strategy)]
    return sorted(trials, key=lambda trial: trial.seed)


def summary(runs: Sequence[StrategyTrial]) -> list[dict[str, Any]]:
    """Return the comparison by environment and strategy: mean accuracy with its interval, and models sent."""
    keys = dict.fromkeys((trial.environment, trial.strategy) for trial in runs)
    rows = []
    for environment, strategy in keys:
        trials = select_trials(runs, environment, strategy)
        rows.append(
            {
                "environment": environment,
                "strategy": strategy,
                "accuracy": asdict(confidence_interval([trial.accuracy for trial in trials])),
                "values": [trial.accuracy for trial in trials],
                "seeds": [trial.seed for trial in trials],
                "seconds": trials[0].seconds,
                "versions": fmean(trial.versions for trial in trials),
                "requests": fmean(trial.history.requests for trial in trials),
                "exchanged": fmean(trial.history.exchanged for trial in trials),
                "evaluations": fmean(trial.history.evaluations for trial in trials),
            }
        )
    return rows


def paired_difference(
    runs: Sequence[StrategyTrial], environment: str, first_strategy: str, second_strategy: str
) -> ConfidenceInterval:
    """Return the paired difference of two strategies over seeds, with its interval."""
    first, second = (
        select_trials(runs, environment, first_strategy),
        select_trials(runs, environment, second_strategy),
    )
    pairs = zip(first, second, strict=True)
    return confidence_interval([a.accuracy - b.accuracy for a, b in pairs])


def curves(runs: Sequence[StrategyTrial]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the accuracy curves of the compared strategies by environment: simulated seconds, mean over seeds."""
    curves_by_environment: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for environment, strategy in dict.fromkeys((trial.environment, trial.strategy) for trial in runs):
        points = zip(*(trial.curve for trial in select_trials(runs, environment, strategy)), strict=True)
        curves_by_environment.setdefault(environment, {})[strategy] = [
            (point[0][0], fmean(accuracy for _, accuracy in point)) for point in points
        ]
    return curves_by_environment


@contextmanager
def _store(folder: Path | None) -> Iterator[Store]:
    if folder is not None:
        with Store(folder) as store:
            yield store
        return
    with tempfile.TemporaryDirectory(prefix="abaton-") as folder_path, Store(Path(folder_path)) as store:
        yield store
