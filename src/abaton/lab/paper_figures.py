"""The Metis paper's tables and figures, reproduced at a smaller size, with a list of what was reduced.

Fig. 2 is the cost of one community model, with and without the cache, by the number of learners. With the cache, a
commit exchanges one learner's contribution; without, all models are summed again, here by one matrix product over
models that are contiguous in memory.

Fig. 4 shows adaptive cycles: the validation losses of learners that choose their update frequency. The store has
each learner's tasks, steps and starting versions. A task's training depends on nothing else, so it is repeated
epoch by epoch.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from abaton.benchmark import best_seconds
from abaton.codecs import parse_codec
from abaton.controller.aggregation import LatestMeanModel
from abaton.errors import SettingsError, StoreError
from abaton.federation import LearnerContext
from abaton.lab.experiment import ExperimentSettings
from abaton.lab.federation_builder import build_from_recipe, build_from_settings
from abaton.lab.paper_tables import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    TABLES,
    DownscaleChoice,
    PaperTable,
    reduced,
    settings_of,
)
from abaton.lab.run_history import load_history
from abaton.lab.strategy_comparison import Report, StrategyTrial, compare, curves, run, summary
from abaton.layout import Layout, Tensor, TensorRole
from abaton.learners import Learner
from abaton.report.experiment_figures import (
    accuracy_over_time,
    community_cost,
    exchanges,
    staleness_boxes,
    validation_cycles,
)
from abaton.store import CommitRow, Store
from abaton.training import TrainSettings

MEMORY = 3_000_000_000  # bytes of models per measured point; larger points are skipped and listed


def resnet_parameters(depth: int, classes: int = 100) -> int:
    """Return the number of parameters of a ResNet of the paper's Fig. 2, by its depth (6n + 2).

    >>> resnet_parameters(20, classes=10), resnet_parameters(110, classes=10)
    (269722, 1727962)
    """
    total, inputs = 9 * 3 * 16 + 2 * 16, 16
    for width in (16, 32, 64):
        for _ in range((depth - 2) // 6):
            total += 9 * inputs * width + 9 * width * width + 4 * width
            inputs = width
    return total + 64 * classes + classes


NETWORKS: Mapping[str, int] = {f"ResNet-{depth}": resnet_parameters(depth) for depth in (20, 56, 110)}


def community_costs(
    learners: Sequence[int],
    networks: Mapping[str, int] = NETWORKS,
    *,
    memory: int = MEMORY,
    report: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Return milliseconds for one community model (Fig. 2), cached and by the full pass; none without memory.

    >>> [row["learners"] for row in community_costs([1, 2], {"tiny": 100})]
    [1, 2]
    """
    rows = []
    for name, size in networks.items():
        for count in learners:
            fits = 4 * size * count <= memory
            cached = 1e3 * _cached_seconds(size, count) if fits else None
            full = 1e3 * _full_pass_seconds(size, count) if fits else None
            rows.append(
                {"network": name, "parameters": size, "learners": count, "cached": cached, "full": full}
            )
            if report is not None:
                report(f"{name}, {count} learners")
    return rows


def _cached_seconds(size: int, learners: int) -> float:
    layout = Layout([Tensor("weight", (size,), TensorRole.DENSE)])
    community = LatestMeanModel(layout, parse_codec("raw"), layout.zeros())
    models = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
    for k in range(learners):
        community.replace(f"learner{k}", models[k % 2], 1.0 + k % 7)
    turn = [0]

    def commit() -> None:
        turn[0] += 1
        community.replace(f"learner{turn[0] % learners}", models[turn[0] % 2], 1.0 + turn[0] % 7)
        community.publish()

    return best_seconds(commit, repeats=20)


def _full_pass_seconds(size: int, learners: int) -> float:
    arena = np.ones((learners, size), np.float32)
    weights, mean = np.full(learners, 1 / learners, np.float32), np.empty(size, np.float32)
    return best_seconds(lambda: np.matmul(weights, arena, out=mean), repeats=3 if learners >= 100 else 20)


def cycle_losses(store: Store, run: str, learner: str, count: int = 10) -> list[list[float]]:
    """Return the validation loss after every epoch of a learner's first cycles, for the paper's Fig. 3."""
    row = store.run(run)
    federation = build_from_recipe(row.recipe)
    run_history = load_history(store, row.run, federation.strategy)
    learner_commits = [commit for commit in run_history.commits if commit.learner == learner][:count]
    strategy = federation.strategy
    context = LearnerContext(learner, row.run, federation.model, federation.codec, strategy.seed, b"")
    site_learner = federation.sites[learner].learner(context)
    digests = {model.version: model.digest for model in store.models(row.run)}
    return [
        _losses(store, site_learner, commit, digests[commit.version], strategy.training)
        for commit in learner_commits
    ]


def _losses(
    store: Store, learner: Learner, commit: CommitRow, digest: str, training: TrainSettings
) -> list[float]:
    steps = learner.steps(training) // training.epochs
    epochs = commit.steps // steps
    start = store.model_files.get(digest)
    trained_epochs = list(islice(learner.train_epochs(commit.task, start, training), epochs))
    if not trained_epochs or trained_epochs[-1].trained.steps != commit.steps:
        raise StoreError(
            f"repeating task '{commit.task}' gives another number of steps",
            remedy="use the version of Abaton and the data of the run",
        )
    return [epoch.validation_loss for epoch in trained_epochs]


def median_and_spread(values: Sequence[int]) -> tuple[float, float, float]:
    """Return median, mean and standard deviation of staleness, as in the paper's Fig. 4.

    >>> median_and_spread([1, 2, 3])
    (2.0, 2.0, 0.816496580927726)
    """
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    return float(np.median(values)), float(np.mean(values)), float(np.std(values))


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """Table and figure of the paper, with a list of what was reduced.

    Attributes:
        title: what it shows.
        columns, rows: the table.
        reduced: what is smaller than in the paper.
        figure: function that plots it.
        data: all values, as JSON values.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    reduced: tuple[str, ...]
    figure: Callable[[], Any]
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _FigurePlan:
    make: Callable[[DownscaleChoice, Report | None], PaperFigure]
    scale: float
    what: str


def paper_figure(name: str, choice: DownscaleChoice, report: Report | None = None) -> PaperFigure:
    """Reproduce one of the paper's figures or tables, by name."""
    if name not in PLANS:
        raise SettingsError(f"the paper has no '{name}'", remedy=f"choose one of {', '.join(PLANS)}")
    scale = PLANS[name].scale if choice.scale is None else choice.scale
    if not 0 < scale <= 1:
        raise SettingsError(f"scale is {scale}", where="--scale", remedy="use a number above 0, at most 1")
    if choice.seeds < 1:
        raise SettingsError(f"seeds is {choice.seeds}", where="--seeds", remedy="use at least 1")
    return PLANS[name].make(replace(choice, scale=scale), report)


def _accuracies(
    table: PaperTable, choice: DownscaleChoice, report: Report | None, parts: Sequence[str]
) -> PaperFigure:
    """Return the paper's figure of accuracies by strategy and environment: Tables I to III, Fig. 5 to 8."""
    runs: list[StrategyTrial] = []
    published: dict[tuple[str, str], float] = {}
    seeds = range(1, choice.seeds + 1)
    for part in parts:
        for row in table.rows:
            figures = row.homogeneous if part == "all fast" else row.heterogeneous
            for label, setting in settings_of(table, choice, [row]).items():
                slow = 0 if part == "all fast" else None
                named = {
                    f"{label}, {part}": replace(setting, environment=replace(setting.environment, slow=slow))
                }
                strategies = [name for name in (*SYNCHRONOUS, *ASYNCHRONOUS) if name in figures]
                runs += compare(named, strategies, seeds, folder=choice.store, report=report)
                published |= {(next(iter(named)), strategy): figures[strategy] for strategy in strategies}
    summary_rows = [
        {**summary_row, "paper": published[summary_row["environment"], summary_row["strategy"]]}
        for summary_row in summary(runs)
    ]
    accuracy_curves = curves(runs)
    return PaperFigure(
        table.title,
        *pivot(summary_rows),
        (*reduced(table, choice), "in brackets: the paper's accuracy; only the order can be compared"),
        lambda: accuracy_over_time(accuracy_curves, title=table.title),
        {"lines": summary_rows, "curves": accuracy_curves},
    )


def pivot(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the cells of a reproduced figure: a row for each environment and a column for each strategy."""
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        mean, half_width = row["accuracy"]["mean"], row["accuracy"]["half_width"]
        text = f"{mean:.3f}" + (f" ± {half_width:.3f}" if half_width is not None else "")
        text += f" ({row['paper']:.3f})" if row.get("paper") is not None else ""
        cells.setdefault(row["environment"], {})[row["strategy"]] = text
    return ("environment", *strategies), [
        [environment, *(cells_of_row.get(strategy, "") for strategy in strategies)]
        for environment, cells_of_row in cells.items()
    ]


def _costs(choice: DownscaleChoice, report: Report | None) -> PaperFigure:
    assert choice.scale is not None
    memory = int(30e9 * choice.scale)
    rows = community_costs((1, 10, 100, 1000), memory=memory, report=report)
    skipped = [f"{row['network']} with {row['learners']:,} learners" for row in rows if row["full"] is None]
    title = "Fig. 2: milliseconds for one community model, with the cache and without"
    columns = ("network", "parameters", "learners", "cached", "full")
    return PaperFigure(
        title,
        columns,
        [[row[column] for column in columns] for row in rows],
        (
            "networks: residual networks for 32x32 images of depth 20, 56 and 110",
            f"memory: {memory / 1e9:g} GB of models (scale {choice.scale:g})",
            f"skipped: {', '.join(skipped) or 'nothing'}",
        ),
        lambda: community_cost(rows, title=title),
        {"rows": rows},
    )


def _adaptive_run(choice: DownscaleChoice) -> tuple[ExperimentSettings, str]:
    (setting,) = settings_of(TABLES["table-1"], choice, TABLES["table-1"].rows[:1]).values()
    return setting, "AsyncDVW(a)"


def _cycles(choice: DownscaleChoice, report: Report | None) -> PaperFigure:
    setting, strategy = _adaptive_run(choice)
    with _store_folder(choice) as store_dir, Store(Path(store_dir)) as store:
        trial = run(store, "uniform, IID", setting, strategy, seed=1)
        groups = _groups(setting, strategy)
        learner_of_group = {
            group: next(n for n, g in groups.items() if g == group) for group in ("fast", "slow")
        }
        cycles_by_learner = {
            f"{name} ({group})": cycle_losses(store, trial.run, name)
            for group, name in learner_of_group.items()
        }
    rows = [
        [learner, number + 1, len(losses), losses[0], losses[-1]]
        for learner, learner_cycles in cycles_by_learner.items()
        for number, losses in enumerate(learner_cycles)
    ]
    title = "Fig. 3: validation cycles of a fast and a slow learner"
    return PaperFigure(
        title,
        ("learner", "cycle", "epochs", "first loss", "last loss"),
        rows,
        (
            *reduced(TABLES["table-1"], choice)[:-1],
            "thresholds as in the paper; the first ten cycles, seed 1",
        ),
        lambda: validation_cycles(cycles_by_learner, title=title),
        {"cycles": cycles_by_learner},
    )


def _staleness(choice: DownscaleChoice, report: Report | None) -> PaperFigure:
    setting, strategy = _adaptive_run(choice)
    (trial,) = compare({"uniform, IID": setting}, [strategy], [1], folder=choice.store, report=report)
    groups = _groups(setting, strategy)
    rows: list[dict[str, Any]] = [
        {"learner": name, "group": groups[name], "staleness": list(values)}
        for name, values in sorted(
            trial.history.staleness.items(), key=lambda item: (groups[item[0]], item[0])
        )
    ]
    histories = [
        [row["learner"], row["group"], len(row["staleness"]), *median_and_spread(row["staleness"])]
        for row in rows
    ]
    for group in sorted({row["group"] for row in rows}):
        group_values = [value for row in rows if row["group"] == group for value in row["staleness"]]
        histories.append([f"all {group}", group, len(group_values), *median_and_spread(group_values)])
    title = "Fig. 4: effective staleness of the first 20 cycles"
    return PaperFigure(
        title,
        ("learner", "group", "cycles", "median", "mean", "spread"),
        histories,
        (*reduced(TABLES["table-1"], choice)[:-1], "seed 1"),
        lambda: staleness_boxes(rows, title=title),
        {"rows": rows},
    )


def _exchanges(choice: DownscaleChoice, report: Report | None) -> PaperFigure:
    summary_rows: list[dict[str, Any]] = []
    for table in TABLES.values():
        selected = {row.sizes: row for row in reversed(table.rows)}
        selected |= {row.sizes: row for row in reversed(table.rows) if row.classes != "IID"}
        for row in sorted(selected.values(), key=table.rows.index):
            settings = settings_of(table, choice, [row])
            strategies = [name for name in (*SYNCHRONOUS, *ASYNCHRONOUS) if name in row.heterogeneous]
            runs = compare(
                settings, strategies, range(1, choice.seeds + 1), folder=choice.store, report=report
            )
            summary_rows += [
                {
                    **summary_row,
                    "environment": f"{table.title.partition(': ')[2]}, {summary_row['environment']}",
                }
                for summary_row in summary(runs)
            ]
    columns = ("environment", "strategy", "requests", "exchanged", "evaluations")
    title = "Fig. 9: update requests, models exchanged, and models exchanged for evaluation"
    return PaperFigure(
        title,
        columns,
        [[summary_row[column] for column in columns] for summary_row in summary_rows],
        reduced(TABLES["table-1"], choice)[1:],
        lambda: exchanges(summary_rows, title=title),
        {"lines": summary_rows},
    )


def _groups(setting: ExperimentSettings, strategy: str) -> dict[str, str]:
    sites = build_from_settings(setting, strategy, 1).sites
    return {name: site.profile.group for name, site in sites.items()}


def _store_folder(choice: DownscaleChoice) -> Any:
    if choice.store is not None:
        return contextlib.nullcontext(str(choice.store))
    return tempfile.TemporaryDirectory(prefix="abaton-")


def _table_figure(table: str, *parts: str) -> Callable[[DownscaleChoice, Report | None], PaperFigure]:
    return lambda choice, report: _accuracies(TABLES[table], choice, report, parts)


_FAST, _MIXED = "all fast", "fast and slow"

PLANS: Mapping[str, _FigurePlan] = {
    "table1": _FigurePlan(
        _table_figure("table-1", _FAST, _MIXED), 0.02, "accuracy on CIFAR-10, nine environments"
    ),
    "table2": _FigurePlan(_table_figure("table-2", _MIXED), 0.02, "accuracy on CIFAR-100, six environments"),
    "table3": _FigurePlan(
        _table_figure("table-3", _MIXED), 0.02, "accuracy on characters, three environments"
    ),
    "fig2": _FigurePlan(_costs, 0.1, "cost of a community model for 1 to 1000 learners"),
    "fig3": _FigurePlan(_cycles, 0.05, "validation cycles of a fast and a slow learner"),
    "fig4": _FigurePlan(_staleness, 0.25, "staleness of fast and slow learners"),
    "fig5": _FigurePlan(_table_figure("table-1", _FAST), 0.02, "accuracy over time on CIFAR-10, all fast"),
    "fig6": _FigurePlan(
        _table_figure("table-1", _MIXED), 0.02, "accuracy over time on CIFAR-10, fast and slow"
    ),
    "fig7": _FigurePlan(
        _table_figure("table-2", _MIXED), 0.02, "accuracy over time on CIFAR-100, fast and slow"
    ),
    "fig8": _FigurePlan(
        _table_figure("table-3", _MIXED), 0.02, "accuracy over time on characters, fast and slow"
    ),
    "fig9": _FigurePlan(_exchanges, 0.02, "update requests and models exchanged"),
}
