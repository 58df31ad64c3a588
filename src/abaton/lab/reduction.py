"""How the paper's tables become settings that fit on a small machine, and in what they are smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from abaton.controller import TrainSettings
from abaton.lab.datasets import missing
from abaton.lab.paper import PaperTable, Row
from abaton.lab.experiment import Setting, Task, World

ROUNDS = 200  # what the paper runs: 200 rounds, or 10,000 to 30,000 seconds, which is about as many
# Batches of a fast learner: a local line. With more, evaluations would eat whole rounds at this size.
_LATENCY = 1.0
# Half a round more than whole ones: a round of SyncDVW takes a little longer, and must not lose a whole one by that.
_HALF = 0.5
_ON_TEN = {"Non-IID(50)": "Non-IID(5)", "Non-IID(30)": "Non-IID(5)", "Non-IID(50x5)": "Non-IID(5x7)"}


@dataclass(frozen=True, slots=True)
class Choice:
    """How much of the paper is run, and on what.

    Attributes:
        scale: the share of the paper's time; of Fig. 2, the share of 30 GB that models may take.
        seeds: how many seeds, from 1 on.
        rows: how many rows are dealt at most.
        data: a data set instead of the one that stands in for the paper's.
        folder: where named data sets lie.
        window: the shuffle window over rows sorted by class; 0 shuffles all.
        network: `mlp` or `cnn`.
        store: a folder that keeps the runs.
    """

    scale: float | None = None
    seeds: int = 3
    rows: int | None = None
    data: str | None = None
    folder: Path | None = None
    window: int = 50
    network: str = "mlp"
    store: Path | None = None


def settings_of(table: PaperTable, choice: Choice, rows: Sequence[Row]) -> dict[str, Setting]:
    """The rows of a table as settings, with fast and slow learners."""
    task = _task(table, choice)
    assert choice.scale is not None
    training = TrainSettings(
        epochs=4,
        batch_size=table.batch_size,
        learning_rate=table.learning_rate,
        momentum=table.momentum,
        window=choice.window,
    )
    made = {}
    for row in rows:
        classes = _ON_TEN.get(row.classes, row.classes) if task.data == "synthetic" else row.classes
        world = World(row.sizes, classes, row.learners, _rows(table, choice, task), latency=_LATENCY)
        made[f"{row.sizes}, {classes}"] = Setting(task, world, training, rounds=ROUNDS * choice.scale + _HALF)
    return made


def _task(table: PaperTable, choice: Choice) -> Task:
    there = not missing(table.data, choice.folder)
    data = choice.data or (table.data if there else "synthetic")
    return Task(data, str(choice.folder) if choice.folder else None, choice.network)


def _rows(table: PaperTable, choice: Choice, task: Task) -> int | None:
    if choice.rows is not None or choice.data is not None:
        return choice.rows
    return 5000 if task.data == "cifar10_20k" else None


def reduced(table: PaperTable, choice: Choice) -> tuple[str, ...]:
    """In what a result is smaller than the paper's, in words."""
    task, scale = _task(table, choice), choice.scale
    assert scale is not None
    rows = _rows(table, choice, task)
    stands_in = table.reduced if task.data == table.data else f"'{task.data}' stands in for the paper's data"
    network = (
        f"one hidden layer of {task.hidden} units, images averaged down to 8x8, for the paper's network"
        if task.network == "mlp"
        else "a convolutional network like the paper's"
    )
    shuffle = (
        f"a shuffle window of {choice.window} over rows sorted by class, which is a hypothesis about the paper"
        if choice.window
        else "all rows shuffled"
    )
    return (
        f"data: {stands_in}" + (f"; {rows:,} rows are dealt" if rows else ""),
        f"network: {network}",
        f"time: {ROUNDS * scale + _HALF:g} rounds of SyncFedAvg instead of about {ROUNDS} (scale {scale:g})",
        f"shuffling: {shuffle}",
        f"seeds: {choice.seeds} (the paper: one); ± is the 95 % confidence interval of the mean",
    )
