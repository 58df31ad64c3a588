"""``abaton lab``: data environments and experiments for those who study federated learning."""

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

app = typer.Typer(
    help="Study federated learning: data sets, partitions, and the papers' experiments.", no_args_is_help=True
)
for command in lab_experiments.COMMANDS:
    app.command()(command)


@app.command()
def data(
    *,
    folder: Path | None = FolderOption,
    json: bool = JsonOption,
) -> None:
    """List the data sets that the lab knows by name, and which of them are there."""
    from abaton.lab.datasets import KNOWN, missing

    rows = [
        {
            "set": name,
            "available": not missing(name, folder),
            "what": known.what,
            "groups": known.groups or None,
            "missing": missing(name, folder),
        }
        for name, known in KNOWN.items()
    ]
    if json:
        emit(rows)
        return
    columns = ("set", "available", "what", "groups")
    table("data sets", columns, [[row[column] for column in columns] for row in rows])
    if folder is None:
        note("name the folder of the data sets with --folder or ABATON_DATA")
    note(
        "your own data: --data FILE.npz (x_train, y_train, x_test, y_test), --data FILE.csv, or a folder of it"
    )


@app.command()
def partition(
    *,
    data: str = typer.Option("synthetic", help="A data set by name, or the path of an .npz or .csv file."),
    learners: int | None = typer.Option(None, help="How many learners: 10, or with --natural all groups."),
    sizes: str = typer.Option("uniform", help="uniform, skewed, power-law or power-law-true."),
    classes: str = typer.Option(
        "IID", help="IID, Non-IID(3), Non-IID(8x1,4x1,3x8), its short form Non-IID(3x8), or Dirichlet(0.5)."
    ),
    natural: bool = typer.Option(False, "--natural", help="Each writer, hospital or role is a learner."),
    minimum: int = typer.Option(1, min=1, help="With --natural: leave out groups with fewer examples."),
    rows: int | None = typer.Option(None, min=1, help="Use so many rows at most."),
    slow: int | None = typer.Option(None, min=0, help="How many learners are slow; half of them by default."),
    seed: int = typer.Option(1990, min=0, help="Decides which rows go where."),
    label: str = typer.Option("label", help="The label column of a table."),
    group: str | None = typer.Option(None, help="The column of a table that names the hospital or person."),
    folder: Path | None = FolderOption,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write the partition with all its rows to this JSON file."
    ),
    figure: Path | None = FigureOption,
    json: bool = JsonOption,
) -> None:
    """Deal a data set to learners as the Metis paper does, and show who holds what.

    The largest learner comes first. Learners are fast and slow in turn. The same seed gives the same rows.
    """
    import numpy as np

    from abaton.errors import SettingsError
    from abaton.lab.datasets import Columns, load
    from abaton.lab.machine_profiles import heterogeneous
    from abaton.lab.partition import by_group
    from abaton.lab.partition import partition as deal

    if natural and (sizes, classes, rows) != ("uniform", "IID", None):
        raise SettingsError(
            "natural groups have their own sizes and classes",
            where="--natural",
            remedy="leave out --sizes, --classes and --rows, or leave out --natural",
        )
    found = load(data, folder=folder, how=None, columns=Columns(label, group))
    rng = np.random.default_rng(seed)
    if natural:
        made = by_group(
            found.labels, _groups(found.groups, data), minimum=minimum, learners=learners, rng=rng
        )
    else:
        made = deal(
            found.labels,
            learners=10 if learners is None else learners,
            rng=rng,
            sizes_as=sizes,
            classes_as=classes,
            rows=rows,
        )
    groups = dict(heterogeneous(made.by_size(), slow=slow).groups)
    lines = [{**line, "group": groups[line["learner"]]} for line in _named(made, found.classes)]
    title = f"{found.name}: {made.form}"
    if out is not None:
        save(out, _text(made.to_json()))
    if figure is not None:
        from abaton.report import figures_page, partition_figure

        drawn = partition_figure(lines, _class_names(made, found.classes), title=title, groups=groups)
        save(figure, figures_page(title, [drawn]))
    if json:
        emit(
            {
                "data": found.name,
                "form": made.form,
                "seed": seed,
                "rows": len(found.labels),
                "used": int(made.sizes.sum()),
                "digest": made.digest,
                "learners": lines,
            }
        )
        return
    columns = ("learner", "group", "examples", "classes")
    cells = [[*(line[column] for column in columns), _short(line["counts"])] for line in lines]
    table(title, [*columns, "examples of each class"], cells)
    note(f"{made.sizes.sum():,} of {len(found.labels):,} rows, seed {seed}, partition {made.digest[:12]}")
    for path in (out, figure):
        if path is not None:
            note(f"written: {path}")


def _groups(groups: Any, data: str) -> Any:
    from abaton.errors import SettingsError

    if groups is None:
        raise SettingsError(
            f"the data set '{data}' does not say who its rows come from",
            where="--natural",
            remedy="choose one with groups ('abaton lab data'), or name a table's column with --group",
        )
    return groups


def _class_names(made: Partition, names: tuple[str, ...]) -> list[str]:
    """The partition knows classes by number; people know them by name."""
    return [names[int(code)] for code in made.classes]


def _named(made: Partition, names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {**line, "counts": {names[int(code)]: count for code, count in line["counts"].items()}}
        for line in made.table()
    ]


def _short(counts: dict[str, int]) -> str:
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
        help="Noise multiplier: standard deviation of the noise over the most that one learner can change.",
    ),
    delta: float = typer.Option(1e-5, help="The chance that the promise may fail."),
    rounds: int = typer.Option(100, min=1, help="How many rounds are planned."),
    lots: str = typer.Option(
        "none", help="none: all take part; fixed: so many are drawn; poisson: each is drawn by its own coin."
    ),
    drawn: int = typer.Option(1, min=1, help="How many learners are drawn in a round."),
    among: int = typer.Option(1, min=1, help="Among how many learners."),
    epsilon: float | None = typer.Option(None, help="Also say how many rounds stay within this budget."),
    json: bool = JsonOption,
) -> None:
    """Plan a privacy budget: epsilon after each round, by the accountant that also watches the runs.

    With 'clip(norm=C) | gaussian_noise(std=S)' and a budget against the controller the noise multiplier is S / (2 C);
    against readers of the community model, with N updates a round, it is S sqrt(N) / (2 C).
    """
    from abaton.lab.privacy_planner import plan

    made = plan(noise, delta, rounds, lots, (drawn, among), epsilon)
    if json:
        emit(made)
        return
    table(
        "epsilon after so many rounds",
        ["round", "epsilon", "zCDP bound without lots"],
        [(row["round"], row["epsilon"], row["zcdp"]) for row in made["rounds"]],
    )
    note(made["neighbours"])
    if epsilon is not None:
        note(f"rounds within epsilon {epsilon:g}: {made['within']}")
