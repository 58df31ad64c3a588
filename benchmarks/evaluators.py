"""Number of evaluators per model: models and bytes sent for evaluation, and accuracy, by number and selection.

CIFAR-10 averaged down to 8x8 where the data folder is available, synthetic images otherwise; ten learners with
power-law sizes and three classes for most of them, half of them ten times slower, equal simulated time. A shuffle
window over sorted labels makes local models erratic, where weighting by validation matters most.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from abaton.benchmark import BenchmarkResult
from abaton.controller import TrainSettings
from abaton.lab import ImagePreprocessing, load
from abaton.lab.evaluator_experiment import EvaluatorExperimentSettings, compare

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
SEEDS = (1990, 1991, 1992)
TRAINING = TrainSettings(epochs=4, batch_size=50, learning_rate=0.05, momentum=0.75, shuffle_window=50)
ROUNDS: dict[Literal["synchronous", "asynchronous"], int] = {
    "synchronous": 12,
    "asynchronous": 2,
}
"""Duration of a run, in rounds of the slowest learner."""


def run() -> list[BenchmarkResult]:
    """Measure each scheduler and print its table."""
    has_images = FOLDER.is_dir()
    name = "cifar10_20k" if has_images else "synthetic"
    data = load(
        name, folder=FOLDER if has_images else None, preparation=ImagePreprocessing(side=8, flat=True)
    )
    # The largest slow learner holds 2/9 of all rows, and takes 0.3 seconds a batch.
    round_of_slowest = TRAINING.epochs * 0.3 * len(data.train) * 2 / 9 / TRAINING.batch_size
    results: list[BenchmarkResult] = []
    for scheduler, rounds in ROUNDS.items():
        seconds = rounds * round_of_slowest
        rows = compare(EvaluatorExperimentSettings(data, TRAINING, seconds, scheduler), seeds=SEEDS)
        _print_rows(f"{name}, {scheduler} DVW, {len(SEEDS)} seeds, {seconds:.0f} simulated seconds", rows)
        for row in rows:
            label = f"{scheduler} DVW, {row['evaluators']} evaluators by {row['evaluator_selection']}"
            results += [
                BenchmarkResult(f"{label}: accuracy", row["accuracy"], f"± {row['spread']:.3f}"),
                BenchmarkResult(f"{label}: models sent", row["models_for_evaluation"], "models"),
                BenchmarkResult(f"{label}: sent", row["megabytes_for_evaluation"], "MB"),
            ]
    return results


def _print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    print(title, file=sys.stderr)
    columns = (
        "evaluators", "evaluator_selection", "updates", "models_for_evaluation", "megabytes_for_evaluation",
        "accuracy", "spread",
    )  # fmt: skip
    print(" | ".join(columns), file=sys.stderr)
    for row in rows:
        cells = [f"{row[c]:.3f}" if isinstance(row[c], float) else str(row[c]) for c in columns]
        print(" | ".join(cells), file=sys.stderr)
