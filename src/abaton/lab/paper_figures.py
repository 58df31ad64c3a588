"""The Metis paper's tables and figures, each made again at a size that fits, and saying what was reduced.

What one community model costs, with the cache and without, by the number of learners (Fig. 2 of the Metis paper).

With the cache, a commit exchanges one learner's share. Without, all learners' models are summed again: here by one
matrix product over models that already lie side by side in memory, the fastest such pass there is.

The cycles of learners that decide themselves when to send: their validation losses, read back from a run.

The store says which task a learner finished after how many steps, and has the version it started from. A
task's training depends on nothing else, so it can be trained again, epoch by epoch, and must end where it did.
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
from abaton.codecs import parse
from abaton.controller.aggregation import Newest
from abaton.errors import SettingsError, StoreError
from abaton.federation import Making
from abaton.kernels import Layout, Role, Tensor
from abaton.lab.experiment import Setting
from abaton.lab.federation_builder import build, make
from abaton.lab.paper_tables import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    TABLES,
    Choice,
    PaperTable,
    reduced,
    settings_of,
)
from abaton.lab.run_history import history
from abaton.lab.strategy_comparison import Heard, Trial, compare, curves, run, summary
from abaton.learners import Learner
from abaton.report.experiment_figures import (
    accuracy_over_time,
    community_cost,
    exchanges,
    staleness_boxes,
    validation_cycles,
)
from abaton.store import CommitLine, Store
from abaton.training import TrainSettings

MEMORY = 3_000_000_000  # bytes that a point may take; larger ones are left out, and said to be


def resnet_parameters(depth: int, classes: int = 100) -> int:
    """How many parameters the residual network for 32x32 images of this depth (6n + 2) has.

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
    heard: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Milliseconds for one community model, cached and by the full pass; none where memory would not do.

    >>> [row["learners"] for row in community_costs([1, 2], {"tiny": 100})]
    [1, 2]
    """
    rows = []
    for name, size in networks.items():
        for count in learners:
            fits = 4 * size * count <= memory
            cached = 1e3 * _cached(size, count) if fits else None
            full = 1e3 * _full(size, count) if fits else None
            rows.append(
                {"network": name, "parameters": size, "learners": count, "cached": cached, "full": full}
            )
            if heard is not None:
                heard(f"{name}, {count} learners")
    return rows


def _cached(size: int, learners: int) -> float:
    layout = Layout([Tensor("weight", (size,), Role.DENSE)])
    mix = Newest(layout, parse("raw"), layout.zeros())
    models = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
    for k in range(learners):
        mix.replace(f"learner{k}", models[k % 2], 1.0 + k % 7)
    turn = [0]

    def commit() -> None:
        turn[0] += 1
        mix.replace(f"learner{turn[0] % learners}", models[turn[0] % 2], 1.0 + turn[0] % 7)
        mix.publish()

    return best_seconds(commit, repeats=20)


def _full(size: int, learners: int) -> float:
    arena = np.ones((learners, size), np.float32)
    weights, mixed = np.full(learners, 1 / learners, np.float32), np.empty(size, np.float32)
    return best_seconds(lambda: np.matmul(weights, arena, out=mixed), repeats=3 if learners >= 100 else 20)


def cycles(store: Store, run: str, learner: str, count: int = 10) -> list[list[float]]:
    """The validation loss after every epoch, for the first cycles of a learner."""
    row = store.run(run)
    federation = build(row.recipe)
    told = history(store, row.run, federation.rules)
    mine = [commit for commit in told.commits if commit.learner == learner][:count]
    rules = federation.rules
    making = Making(learner, row.run, federation.model, federation.codec, rules.seed, b"")
    one = federation.sites[learner].learner(making)
    digests = {model.version: model.digest for model in store.models(row.run)}
    return [_losses(store, one, commit, digests[commit.version], rules.training) for commit in mine]


def _losses(
    store: Store, learner: Learner, commit: CommitLine, digest: str, training: TrainSettings
) -> list[float]:
    steps = learner.steps(training) // training.epochs
    epochs = commit.steps // steps
    start = store.vectors.get(digest)
    taken = list(islice(learner.train_epochs(commit.task, start, training), epochs))
    if not taken or taken[-1].trained.steps != commit.steps:
        raise StoreError(
            f"task '{commit.task}' does not come out as it did",
            remedy="read it with the version of Abaton and the data that made it",
        )
    return [epoch.validation_loss for epoch in taken]


def median_and_spread(values: Sequence[int]) -> tuple[float, float, float]:
    """Median, mean and standard deviation, as the paper gives for each group in Fig. 4.

    >>> median_and_spread([1, 2, 3])
    (2.0, 2.0, 0.816496580927726)
    """
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    return float(np.median(values)), float(np.mean(values)), float(np.std(values))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A table, its figure, and what was reduced.

    Attributes:
        title: what it shows.
        columns, rows: the table.
        reduced: in what it is smaller than the paper.
        figure: draws it.
        data: everything behind it, as plain values.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    reduced: tuple[str, ...]
    figure: Callable[[], Any]
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Plan:
    make: Callable[[Choice, Heard | None], Evidence]
    scale: float
    what: str


def evidence(name: str, choice: Choice, heard: Heard | None = None) -> Evidence:
    """One of the paper's tables or figures, by name."""
    if name not in PLANS:
        raise SettingsError(f"the paper has no '{name}'", remedy=f"choose one of {', '.join(PLANS)}")
    scale = PLANS[name].scale if choice.scale is None else choice.scale
    if not 0 < scale <= 1:
        raise SettingsError(f"scale is {scale}", where="--scale", remedy="use a number above 0, at most 1")
    if choice.seeds < 1:
        raise SettingsError(f"seeds is {choice.seeds}", where="--seeds", remedy="use at least 1")
    return PLANS[name].make(replace(choice, scale=scale), heard)


def _accuracies(table: PaperTable, choice: Choice, heard: Heard | None, parts: Sequence[str]) -> Evidence:
    """Accuracy of each policy in each environment: Tables I to III, Fig. 5 to 8."""
    runs: list[Trial] = []
    published: dict[tuple[str, str], float] = {}
    seeds = range(1, choice.seeds + 1)
    for part in parts:
        for row in table.rows:
            figures = row.homogeneous if part == "all fast" else row.heterogeneous
            for label, setting in settings_of(table, choice, [row]).items():
                slow = 0 if part == "all fast" else None
                named = {f"{label}, {part}": replace(setting, world=replace(setting.world, slow=slow))}
                policies = [name for name in (*SYNCHRONOUS, *ASYNCHRONOUS) if name in figures]
                runs += compare(named, policies, seeds, folder=choice.store, heard=heard)
                published |= {(next(iter(named)), policy): figures[policy] for policy in policies}
    lines = [{**line, "paper": published[line["environment"], line["policy"]]} for line in summary(runs)]
    drawn = curves(runs)
    return Evidence(
        table.title,
        *pivot(lines),
        (*reduced(table, choice), "in brackets: the paper's accuracy; only the order can be compared"),
        lambda: accuracy_over_time(drawn, title=table.title),
        {"lines": lines, "curves": drawn},
    )


def pivot(lines: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    """A line for each environment and a column for each policy."""
    policies = list(dict.fromkeys(line["policy"] for line in lines))
    cells: dict[str, dict[str, str]] = {}
    for line in lines:
        mean, reach = line["accuracy"]["mean"], line["accuracy"]["reach"]
        text = f"{mean:.3f}" + (f" ± {reach:.3f}" if reach is not None else "")
        text += f" ({line['paper']:.3f})" if line.get("paper") is not None else ""
        cells.setdefault(line["environment"], {})[line["policy"]] = text
    return ("environment", *policies), [
        [environment, *(mine.get(policy, "") for policy in policies)] for environment, mine in cells.items()
    ]


def _costs(choice: Choice, heard: Heard | None) -> Evidence:
    assert choice.scale is not None
    memory = int(30e9 * choice.scale)
    rows = community_costs((1, 10, 100, 1000), memory=memory, heard=heard)
    left = [f"{row['network']} with {row['learners']:,} learners" for row in rows if row["full"] is None]
    title = "Fig. 2: milliseconds for one community model, with the cache and without"
    columns = ("network", "parameters", "learners", "cached", "full")
    return Evidence(
        title,
        columns,
        [[row[column] for column in columns] for row in rows],
        (
            "networks: residual networks for 32x32 images of depth 20, 56 and 110",
            f"memory: {memory / 1e9:g} GB of models (scale {choice.scale:g})",
            f"left out: {', '.join(left) or 'nothing'}",
        ),
        lambda: community_cost(rows, title=title),
        {"rows": rows},
    )


def _adaptive_run(choice: Choice) -> tuple[Setting, str]:
    (setting,) = settings_of(TABLES["table-1"], choice, TABLES["table-1"].rows[:1]).values()
    return setting, "AsyncDVW(a)"


def _cycles(choice: Choice, heard: Heard | None) -> Evidence:
    setting, policy = _adaptive_run(choice)
    with _place(choice) as place, Store(Path(place)) as store:
        made = run(store, "uniform, IID", setting, policy, seed=1)
        groups = _groups(setting, policy)
        chosen = {group: next(n for n, g in groups.items() if g == group) for group in ("fast", "slow")}
        found = {f"{name} ({group})": cycles(store, made.run, name) for group, name in chosen.items()}
    rows = [
        [learner, number + 1, len(losses), losses[0], losses[-1]]
        for learner, mine in found.items()
        for number, losses in enumerate(mine)
    ]
    title = "Fig. 3: validation cycles of a fast and a slow learner"
    return Evidence(
        title,
        ("learner", "cycle", "epochs", "first loss", "last loss"),
        rows,
        (
            *reduced(TABLES["table-1"], choice)[:-1],
            "thresholds as in the paper; the first ten cycles, seed 1",
        ),
        lambda: validation_cycles(found, title=title),
        {"cycles": found},
    )


def _staleness(choice: Choice, heard: Heard | None) -> Evidence:
    setting, policy = _adaptive_run(choice)
    (made,) = compare({"uniform, IID": setting}, [policy], [1], folder=choice.store, heard=heard)
    groups = _groups(setting, policy)
    rows: list[dict[str, Any]] = [
        {"learner": name, "group": groups[name], "staleness": list(values)}
        for name, values in sorted(made.told.staleness.items(), key=lambda item: (groups[item[0]], item[0]))
    ]
    told = [
        [row["learner"], row["group"], len(row["staleness"]), *median_and_spread(row["staleness"])]
        for row in rows
    ]
    for group in sorted({row["group"] for row in rows}):
        every = [value for row in rows if row["group"] == group for value in row["staleness"]]
        told.append([f"all {group}", group, len(every), *median_and_spread(every)])
    title = "Fig. 4: effective staleness of the first 20 cycles"
    return Evidence(
        title,
        ("learner", "group", "cycles", "median", "mean", "spread"),
        told,
        (*reduced(TABLES["table-1"], choice)[:-1], "seed 1"),
        lambda: staleness_boxes(rows, title=title),
        {"rows": rows},
    )


def _exchanges(choice: Choice, heard: Heard | None) -> Evidence:
    lines: list[dict[str, Any]] = []
    for table in TABLES.values():
        picked = {row.sizes: row for row in reversed(table.rows)}
        picked |= {row.sizes: row for row in reversed(table.rows) if row.classes != "IID"}
        for row in sorted(picked.values(), key=table.rows.index):
            settings = settings_of(table, choice, [row])
            policies = [name for name in (*SYNCHRONOUS, *ASYNCHRONOUS) if name in row.heterogeneous]
            runs = compare(settings, policies, range(1, choice.seeds + 1), folder=choice.store, heard=heard)
            lines += [
                {**line, "environment": f"{table.title.partition(': ')[2]}, {line['environment']}"}
                for line in summary(runs)
            ]
    columns = ("environment", "policy", "requests", "exchanged", "evaluations")
    title = "Fig. 9: update requests, models exchanged, and models exchanged for evaluation"
    return Evidence(
        title,
        columns,
        [[line[column] for column in columns] for line in lines],
        reduced(TABLES["table-1"], choice)[1:],
        lambda: exchanges(lines, title=title),
        {"lines": lines},
    )


def _groups(setting: Setting, policy: str) -> dict[str, str]:
    sites = make(setting, policy, 1).sites
    return {name: site.profile.group for name, site in sites.items()}


def _place(choice: Choice) -> Any:
    if choice.store is not None:
        return contextlib.nullcontext(str(choice.store))
    return tempfile.TemporaryDirectory(prefix="abaton-")


def _of(table: str, *parts: str) -> Callable[[Choice, Heard | None], Evidence]:
    return lambda choice, heard: _accuracies(TABLES[table], choice, heard, parts)


_FAST, _MIXED = "all fast", "fast and slow"

PLANS: Mapping[str, _Plan] = {
    "table1": _Plan(_of("table-1", _FAST, _MIXED), 0.02, "accuracy on CIFAR-10, nine environments"),
    "table2": _Plan(_of("table-2", _MIXED), 0.02, "accuracy on CIFAR-100, six environments"),
    "table3": _Plan(_of("table-3", _MIXED), 0.02, "accuracy on characters, three environments"),
    "fig2": _Plan(_costs, 0.1, "cost of a community model for 1 to 1000 learners"),
    "fig3": _Plan(_cycles, 0.05, "validation cycles of a fast and a slow learner"),
    "fig4": _Plan(_staleness, 0.25, "staleness of fast and slow learners"),
    "fig5": _Plan(_of("table-1", _FAST), 0.02, "accuracy over time on CIFAR-10, all fast"),
    "fig6": _Plan(_of("table-1", _MIXED), 0.02, "accuracy over time on CIFAR-10, fast and slow"),
    "fig7": _Plan(_of("table-2", _MIXED), 0.02, "accuracy over time on CIFAR-100, fast and slow"),
    "fig8": _Plan(_of("table-3", _MIXED), 0.02, "accuracy over time on characters, fast and slow"),
    "fig9": _Plan(_exchanges, 0.02, "update requests and models exchanged"),
}
