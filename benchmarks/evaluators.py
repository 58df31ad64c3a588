"""Number of evaluators per model: models and bytes sent for evaluation, and accuracy, by number and selection.

CIFAR-10 averaged down to 8x8 where the data folder is available, synthetic images otherwise; ten learners with
power-law sizes and three classes for most of them, half of them ten times slower, equal simulated time. A shuffle
window over sorted labels makes local models erratic, where weighting by validation matters most.
"""

from __future__ import annotations

import sys
from pathlib import Path

from abaton.benchmark import BenchmarkResult
from abaton.controller import TrainSettings
from abaton.lab import ImagePreprocessing, load
from abaton.lab.evaluator_experiment import EvaluatorExperimentSettings, compare

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
SEEDS = (1990, 1991, 1992)
TRAINING = TrainSettings(epochs=4, batch_size=50, learning_rate=0.05, momentum=0.75, shuffle_window=50)
ROUNDS = {"synchronous": 12, "asynchronous": 2}  # duration in rounds of the slowest learner


def run() -> list[BenchmarkResult]:
    """Measure each scheduler and print its table."""
    here = FOLDER.is_dir()
    name = "cifar10_20k" if here else "synthetic"
    data = load(name, folder=FOLDER if here else None, preparation=ImagePreprocessing(side=8, flat=True))
    # The largest slow learner holds 2/9 of all rows, and takes 0.3 seconds a batch.
    round_of_slowest = TRAINING.epochs * 0.3 * len(data.train) * 2 / 9 / TRAINING.batch_size
    measures: list[BenchmarkResult] = []
    for scheduler, rounds in ROUNDS.items():
        seconds = rounds * round_of_slowest
        rows = compare(EvaluatorExperimentSettings(data, TRAINING, seconds, scheduler), seeds=SEEDS)
        _tell(f"{name}, {scheduler} DVW, {len(SEEDS)} seeds, {seconds:.0f} simulated seconds", rows)
        for row in rows:
            label = f"{scheduler} DVW, {row['evaluators']} evaluators by {row['choice']}"
            measures += [
                BenchmarkResult(f"{label}: accuracy", row["accuracy"], f"± {row['spread']:.3f}"),
                BenchmarkResult(f"{label}: models moved", row["models_for_evaluation"], "models"),
                BenchmarkResult(f"{label}: moved", row["megabytes_for_evaluation"], "MB"),
            ]
    return measures


def _tell(title: str, rows: list[dict[str, float]]) -> None:
    print(title, file=sys.stderr)
    columns = (
        "evaluators", "choice", "updates", "models_for_evaluation", "megabytes_for_evaluation", "accuracy", "spread",
    )  # fmt: skip
    print(" | ".join(columns), file=sys.stderr)
    for row in rows:
        cells = [f"{row[c]:.3f}" if isinstance(row[c], float) else str(row[c]) for c in columns]
        print(" | ".join(cells), file=sys.stderr)
