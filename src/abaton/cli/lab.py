"""``abaton lab data``, ``partition`` and ``privacy``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli import lab_experiments
from abaton.cli.lab_experiments import FigureOption, FolderOption
from abaton.cli.output import emit, note, save, table
from abaton.cli.runs import JsonOption

if TYPE_CHECKING:
    from abaton.lab.partition import Partition

app = typer.Typer(help="Run experiments: data sets, partitions, strategies.", no_args_is_help=True)
for command in lab_experiments.COMMANDS:
    app.command()(command)


@app.command()
def data(
    *,
    folder: Path | None = FolderOption,
    json: bool = JsonOption,
) -> None:
    """List the named data sets and whether they are available."""
    from abaton.lab.datasets import DATA_SETS, missing_files

    rows = [
        {
            "name": name,
            "available": not missing_files(name, folder),
            "description": dataset.description,
            "groups": dataset.groups or None,
            "missing": missing_files(name, folder),
        }
        for name, dataset in DATA_SETS.items()
    ]
    if json:
        emit(rows)
        return
    columns = ("name", "available", "description", "groups")
    table("data sets", columns, [[row[column] for column in columns] for row in rows])
    if folder is None:
        note("set the folder of the data sets with --folder or ABATON_DATA")
    note("other data: --data FILE.npz (x_train, y_train, x_test, y_test), --data FILE.csv, or a folder")


@app.command()
def partition(
    *,
    data: str = typer.Option("synthetic", help="Name of a data set, or path of an .npz or .csv file"),
    learners: int | None = typer.Option(
        None, help="Number of learners (default: 10; with --natural all groups)"
    ),
    sizes: str = typer.Option(
        "uniform", help="Distribution of sizes: uniform, skewed, power-law or power-law-true"
    ),
    classes: str = typer.Option(
        "IID",
        help="Distribution of classes: IID, Non-IID(3), Non-IID(8x1,4x1,3x8), Non-IID(3x8) or Dirichlet(0.5)",
    ),
    natural: bool = typer.Option(False, "--natural", help="Make each writer, hospital or role a learner"),
    minimum: int = typer.Option(1, min=1, help="With --natural, drop groups with fewer examples"),
    rows: int | None = typer.Option(None, min=1, help="Maximum number of rows"),
    slow: int | None = typer.Option(None, min=0, help="Number of slow learners (default: half)"),
    seed: int = typer.Option(1990, min=0, help="Seed of the partition"),
    label: str = typer.Option("label", help="Label column of a table"),
    group: str | None = typer.Option(None, help="Group column of a table, such as the hospital"),
    folder: Path | None = FolderOption,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write the partition with its rows to this JSON file"
    ),
    figure: Path | None = FigureOption,
    json: bool = JsonOption,
) -> None:
    """Partition a data set among learners as in the Metis paper and show the result.

    Learners are sorted by size, alternately fast and slow. The same seed gives the same partition.
    """
    import numpy as np

    from abaton.errors import SettingsError
    from abaton.lab.datasets import DataSetColumns, load
    from abaton.lab.machine_profiles import heterogeneous
    from abaton.lab.partition import by_group
    from abaton.lab.partition import partition_data as split_data

    if natural and (sizes, classes, rows) != ("uniform", "IID", None):
        raise SettingsError(
            "--natural is combined with --sizes, --classes or --rows",
            where="--natural",
            remedy="remove --sizes, --classes and --rows, or remove --natural",
        )
    dataset = load(data, folder=folder, preparation=None, columns=DataSetColumns(label, group))
    rng = np.random.default_rng(seed)
    if natural:
        partitioned = by_group(
            dataset.labels, _groups(dataset.groups, data), minimum=minimum, learners=learners, rng=rng
        )
    else:
        partitioned = split_data(
            dataset.labels,
            learners=10 if learners is None else learners,
            rng=rng,
            sizes_as=sizes,
            classes_as=classes,
            rows=rows,
        )
    groups = dict(heterogeneous(partitioned.by_size(), slow=slow).groups)
    learner_rows = [
        {**row, "group": groups[row["learner"]]} for row in _with_class_names(partitioned, dataset.classes)
    ]
    title = f"{dataset.name}: {partitioned.form}"
    if out is not None:
        save(out, _text(partitioned.to_json()))
    if figure is not None:
        from abaton.report import partition_figure, render_figures

        plot = partition_figure(
            learner_rows, _class_names(partitioned, dataset.classes), title=title, groups=groups
        )
        save(figure, render_figures(title, [plot]))
    if json:
        emit(
            {
                "data": dataset.name,
                "form": partitioned.form,
                "seed": seed,
                "rows": len(dataset.labels),
                "used": int(partitioned.sizes.sum()),
                "digest": partitioned.digest,
                "learners": learner_rows,
            }
        )
        return
    columns = ("learner", "group", "examples", "classes")
    cells = [[*(row[column] for column in columns), _format_counts(row["counts"])] for row in learner_rows]
    table(title, [*columns, "examples by class"], cells)
    note(
        f"{partitioned.sizes.sum():,} of {len(dataset.labels):,} rows, seed {seed}, partition {partitioned.digest[:12]}"
    )
    for path in (out, figure):
        if path is not None:
            note(f"wrote {path}")


def _groups(groups: Any, data: str) -> Any:
    from abaton.errors import SettingsError

    if groups is None:
        raise SettingsError(
            f"data set '{data}' has no groups",
            where="--natural",
            remedy="choose a data set with groups ('abaton lab data'), or add --group COLUMN",
        )
    return groups


def _class_names(partition: Partition, names: tuple[str, ...]) -> list[str]:
    """Return the names of the class numbers printed by `abaton lab partition`."""
    return [names[int(code)] for code in partition.classes]


def _with_class_names(partition: Partition, names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {**row, "counts": {names[int(code)]: count for code, count in row["counts"].items()}}
        for row in partition.table()
    ]


def _format_counts(counts: dict[str, int]) -> str:
    shown = [f"{name} {count}" for name, count in list(counts.items())[:10]]
    return ", ".join(shown) + (", ..." if len(counts) > 10 else "")


def _text(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


@app.command()
def privacy(
    *,
    noise: float = typer.Option(
        ...,
        help="Noise multiplier: standard deviation of the noise relative to the sensitivity",
    ),
    delta: float = typer.Option(1e-5, help="Delta of (epsilon, delta)-differential privacy"),
    rounds: int = typer.Option(100, min=1, help="Number of rounds"),
    sampling: str = typer.Option(
        "none", help="Sampling of learners: none (all), fixed (sample size) or poisson (independent)"
    ),
    sample_size: int = typer.Option(1, min=1, help="Number of learners sampled per round"),
    population: int = typer.Option(1, min=1, help="Number of learners in total"),
    epsilon: float | None = typer.Option(None, help="Also print the number of rounds within this budget"),
    json: bool = JsonOption,
) -> None:
    """Plan a privacy budget: print epsilon after each round, with the accountant of the runs.

    With 'clip(norm=C) | gaussian_noise(std=S)' the noise multiplier is S / (2 C) against the controller, and
    S sqrt(N) / (2 C) against readers of the community model with N updates per round.
    """
    from abaton.lab.privacy_planner import plan_budget

    budget_plan = plan_budget(noise, delta, rounds, sampling, (sample_size, population), epsilon)
    if json:
        emit(budget_plan)
        return
    table(
        "epsilon by round",
        ["round", "epsilon", "zCDP bound without sampling"],
        [(row["round"], row["epsilon"], row["zcdp"]) for row in budget_plan["rounds"]],
    )
    note(budget_plan["neighbours"])
    if epsilon is not None:
        note(f"rounds within epsilon {epsilon:g}: {budget_plan['within']}")
