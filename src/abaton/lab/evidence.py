"""The Metis paper's tables and figures, each made again at a size that fits, and saying what was reduced."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from abaton.errors import SettingsError
from abaton.lab.strategy_comparison import Heard, Trial, compare, curves, run, summary
from abaton.lab.cost import community_costs
from abaton.lab.cycles import cycles, median_and_spread
from abaton.lab.paper import ASYNCHRONOUS, SYNCHRONOUS, TABLES, PaperTable
from abaton.lab.policies import make
from abaton.lab.reduction import Choice, reduced, settings_of
from abaton.lab.experiment import Setting
from abaton.report.policies import (
    accuracy_over_time,
    community_cost,
    exchanges,
    staleness_boxes,
    validation_cycles,
)
from abaton.store import Store


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
