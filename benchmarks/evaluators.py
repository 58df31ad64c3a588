"""How many evaluators a model needs: models and bytes moved for evaluation, and accuracy, by number and by choice.

CIFAR-10 averaged down to 8x8 where the data folder is beside the checkout, drawn images otherwise; ten learners with
sizes by a power law and three classes for most of them, half ten times slower, equal simulated time. With a shuffle
window over sorted labels local models are erratic, which is where weighting by validation matters.
"""

from __future__ import annotations

import sys
from pathlib import Path

from abaton.benchmark import Measure
from abaton.controller import TrainSettings
from abaton.lab import Preparation, load
from abaton.lab.evaluator_experiment import Setting, compare

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
SEEDS = (1990, 1991, 1992)
TRAINING = TrainSettings(epochs=4, batch_size=50, learning_rate=0.05, momentum=0.75, window=50)
ROUNDS = {"synchronous": 12, "asynchronous": 2}  # as long as so many rounds of the slowest learner


def run() -> list[Measure]:
    """A table for each pacing, printed as it is measured, and its numbers."""
    here = FOLDER.is_dir()
    name = "cifar10_20k" if here else "synthetic"
    data = load(name, folder=FOLDER if here else None, how=Preparation(side=8, flat=True))
    # The largest slow learner holds 2/9 of all rows, and takes 0.3 seconds a batch.
    round_of_slowest = TRAINING.epochs * 0.3 * len(data.train) * 2 / 9 / TRAINING.batch_size
    measures: list[Measure] = []
    for pacing, rounds in ROUNDS.items():
        seconds = rounds * round_of_slowest
        rows = compare(Setting(data, TRAINING, seconds, pacing), seeds=SEEDS)
        _tell(f"{name}, {pacing} DVW, {len(SEEDS)} seeds, {seconds:.0f} simulated seconds", rows)
        for row in rows:
            label = f"{pacing} DVW, {row['evaluators']} evaluators by {row['choice']}"
            measures += [
                Measure(f"{label}: accuracy", row["accuracy"], f"± {row['spread']:.3f}"),
                Measure(f"{label}: models moved", row["models_for_evaluation"], "models"),
                Measure(f"{label}: moved", row["megabytes_for_evaluation"], "MB"),
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
