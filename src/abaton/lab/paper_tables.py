"""The Metis paper's tables as data: environments, settings, published accuracies and substitutes for its data sets.

Published accuracies are shown beside measured ones: data, networks and time are smaller here, so only the ranking
of the strategies can be compared. The tables become settings that fit on a small machine, with a list of what is
smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from abaton.lab.datasets import missing_files
from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
from abaton.training import TrainSettings

SYNCHRONOUS = ("SyncFedAvg", "SyncDVW")
ASYNCHRONOUS = ("AsyncFedAvg", "FedAsync", "AsyncDVW(na)", "AsyncDVW(a)")


@dataclass(frozen=True, slots=True)
class PaperRow:
    """Data environment with the published accuracy of each strategy.

    Attributes:
        sizes, classes: size skew and label skew, as for `partition_data`.
        heterogeneous: accuracy with five fast and five slow learners, by strategy.
        homogeneous: accuracy after 200 rounds with ten fast learners, by strategy, where published.
        learners: number of learners that the data suffices for; always ten in the paper.
    """

    sizes: str
    classes: str
    heterogeneous: Mapping[str, float]
    homogeneous: Mapping[str, float] = field(default_factory=dict)
    learners: int = 10


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One of the paper's tables.

    Attributes:
        title: subject of the table.
        data: the named data set used instead of the paper's.
        learning_rate, momentum, batch_size: the paper's settings for all strategies.
        reduced: what is smaller here than in the paper; printed with every result.
        rows: the environments.
    """

    title: str
    data: str
    learning_rate: float
    momentum: float
    batch_size: int
    reduced: str
    rows: tuple[PaperRow, ...]


def _row(sizes: str, classes: str, published: str, rounds: str = "", learners: int = 10) -> PaperRow:
    strategies = (*SYNCHRONOUS, *ASYNCHRONOUS)
    accuracies = [float(accuracy) for accuracy in published.split()]
    homogeneous = dict(zip(SYNCHRONOUS, map(float, rounds.split()), strict=True)) if rounds else {}
    return PaperRow(
        sizes,
        classes,
        dict(zip(strategies[-len(accuracies) :], accuracies, strict=True)),
        homogeneous,
        learners,
    )


TABLES: Mapping[str, PaperTable] = {
    "table-1": PaperTable(
        "Table I: CIFAR-10",
        data="cifar10_20k",
        learning_rate=0.05,
        momentum=0.75,
        batch_size=100,
        reduced="20,000 of the 50,000 training images and half of the test images",
        rows=(
            _row("uniform", "IID", "0.8272 0.8207 0.8260 0.8045 0.8220 0.8272", "0.8295 0.8285"),
            _row("uniform", "Non-IID(5)", "0.7933 0.7916 0.8009 0.7646 0.7993 0.8021", "0.8002 0.7994"),
            _row("uniform", "Non-IID(3)", "0.7461 0.7453 0.7551 0.6897 0.7553 0.7559", "0.7576 0.7554"),
            _row("skewed", "IID", "0.7890 0.7907 0.7927 0.7594 0.7974 0.8072", "0.8054 0.8066"),
            _row("skewed", "Non-IID(5)", "0.7062 0.7157 0.7262 0.6428 0.7324 0.7322", "0.7224 0.7372"),
            _row("skewed", "Non-IID(3)", "0.6681 0.6718 0.6824 0.5564 0.6873 0.6943", "0.6868 0.6965"),
            _row("power-law", "IID", "0.5149 0.7221 0.6507 0.7248 0.7537 0.7682", "0.7113 0.7709"),
            _row("power-law", "Non-IID(5x7)", "0.3016 0.6281 0.4245 0.5672 0.6807 0.6948", "0.6407 0.7163"),
            _row("power-law", "Non-IID(3x8)", "0.1202 0.3546 0.1461 0.4205 0.5517 0.5703", "0.4869 0.6191"),
        ),
    ),
    "table-2": PaperTable(
        "Table II: CIFAR-100",
        data="cifar100_10k",
        learning_rate=0.1,
        momentum=0.9,
        batch_size=128,
        reduced="10,000 of the 50,000 training images and a fifth of the test images, not the original split; "
        "power law and IID with 9 learners, because the smallest of 10 would have one example of each class",
        rows=(
            _row("uniform", "IID", "0.5962 0.5745 0.5931 0.5996"),
            _row("uniform", "Non-IID(50)", "0.5189 0.4944 0.5179 0.5580"),
            _row("skewed", "IID", "0.5437 0.5342 0.5656 0.5774"),
            _row("skewed", "Non-IID(50)", "0.3402 0.3525 0.3687 0.4459"),
            _row("power-law", "IID", "0.1653 0.3512 0.4301 0.4444", learners=9),
            _row("power-law", "Non-IID(50x5)", "0.0193 0.1860 0.2324 0.2605"),
        ),
    ),
    "table-3": PaperTable(
        "Table III: handwritten characters of 62 classes",
        data="hand62_scans",
        learning_rate=0.01,
        momentum=0.5,
        batch_size=100,
        reduced="4,960 scanned characters instead of the 697,932 of Extended MNIST By Class, balanced; "
        "power law with 8 learners, because the smallest of 10 would have one example of each class",
        rows=(
            _row("uniform", "IID", "0.8586 0.8600 0.8588 0.8631"),
            _row("uniform", "Non-IID(30)", "0.7911 0.7346 0.8103 0.8285"),
            _row("power-law", "IID", "0.5107 0.6833 0.6723 0.7107", learners=8),
        ),
    ),
}


ROUNDS = 200  # of the paper; its runs of 10,000 to 30,000 seconds have about as many
# Message latency in batches of a fast learner: a local network. A longer latency would dominate rounds of this size.
_LATENCY_BATCHES = 1.0
# Additional rounds: a round of SyncDVW takes slightly longer than one of SyncFedAvg, and the last must not be cut off.
_EXTRA_ROUNDS = 0.5
_WITH_TEN_CLASSES = {
    "Non-IID(50)": "Non-IID(5)",
    "Non-IID(30)": "Non-IID(5)",
    "Non-IID(50x5)": "Non-IID(5x7)",
}


@dataclass(frozen=True, slots=True)
class DownscaleChoice:
    """Part of the paper that is run.

    Attributes:
        scale: fraction of the paper's time; for Fig. 2, fraction of 30 GB of models.
        seeds: number of seeds, starting with 1.
        rows: maximum number of rows.
        data: a data set instead of the default substitute.
        folder: folder of named data sets.
        window: shuffle window over rows sorted by class; 0 shuffles all.
        network: `mlp` or `cnn`.
        store: folder of the run store.
    """

    scale: float | None = None
    seeds: int = 3
    rows: int | None = None
    data: str | None = None
    folder: Path | None = None
    window: int = 50
    network: str = "mlp"
    store: Path | None = None


def settings_of(
    table: PaperTable, choice: DownscaleChoice, rows: Sequence[PaperRow]
) -> dict[str, ExperimentSettings]:
    """Return the rows of a table of the paper as experiment settings, with fast and slow learners."""
    task = _task(table, choice)
    assert choice.scale is not None
    training = TrainSettings(
        epochs=4,
        batch_size=table.batch_size,
        learning_rate=table.learning_rate,
        momentum=table.momentum,
        shuffle_window=choice.window,
    )
    settings = {}
    for row in rows:
        classes = _WITH_TEN_CLASSES.get(row.classes, row.classes) if task.data == "synthetic" else row.classes
        environment = ExperimentEnvironment(
            row.sizes, classes, row.learners, _rows(table, choice, task), latency=_LATENCY_BATCHES
        )
        settings[f"{row.sizes}, {classes}"] = ExperimentSettings(
            task, environment, training, rounds=ROUNDS * choice.scale + _EXTRA_ROUNDS
        )
    return settings


def _task(table: PaperTable, choice: DownscaleChoice) -> ExperimentTask:
    is_available = not missing_files(table.data, choice.folder)
    data = choice.data or (table.data if is_available else "synthetic")
    return ExperimentTask(data, str(choice.folder) if choice.folder else None, choice.network)


def _rows(table: PaperTable, choice: DownscaleChoice, task: ExperimentTask) -> int | None:
    if choice.rows is not None or choice.data is not None:
        return choice.rows
    return 5000 if task.data == "cifar10_20k" else None


def reduced(table: PaperTable, choice: DownscaleChoice) -> tuple[str, ...]:
    """Return what is smaller than in the paper's table, as text."""
    task, scale = _task(table, choice), choice.scale
    assert scale is not None
    rows = _rows(table, choice, task)
    data_text = table.reduced if task.data == table.data else f"'{task.data}' stands in for the paper's data"
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
        f"data: {data_text}" + (f"; {rows:,} rows are partitioned" if rows else ""),
        f"network: {network}",
        f"time: {ROUNDS * scale + _EXTRA_ROUNDS:g} rounds of SyncFedAvg instead of about {ROUNDS} (scale {scale:g})",
        f"shuffling: {shuffle}",
        f"seeds: {choice.seeds} (the paper: one); ± is the 95 % confidence interval of the mean",
    )
