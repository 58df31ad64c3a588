"""``abaton lab paper``, ``compare`` and ``poisoned``: experiments with a table, a figure and JSON each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, progress, save, table
from abaton.cli.runs import JsonOption, again

if TYPE_CHECKING:
    from abaton.lab.experiment import Setting

FolderOption = typer.Option(
    None, "--folder", envvar="ABATON_DATA", help="Where the named data sets lie; see 'abaton lab data'."
)
StoreOption = typer.Option(
    None, "--store", help="Keep the runs in this store; look at them with 'abaton runs'."
)
FigureOption = typer.Option(None, help="Draw it into this HTML file.")
WindowOption = typer.Option(
    50, min=0, help="Shuffle rows, sorted by class, through a window of so many; 0 shuffles all."
)
NetworkOption = typer.Option("mlp", help="mlp (one hidden layer, images 8x8) or cnn (the papers' networks).")


def paper(
    name: str = typer.Argument(
        "list", help="table1, table2, table3, fig2 ... fig9; 'list' says what each is."
    ),
    *,
    scale: float | None = typer.Option(
        None, help="How much of the paper's time is run, up to 1; each has a default that takes minutes."
    ),
    seeds: int = typer.Option(3, min=1, help="How many seeds; the interval is over them."),
    rows: int | None = typer.Option(
        None, min=1, help="Deal so many rows at most; 5,000 of CIFAR-10 by default."
    ),
    data: str | None = typer.Option(
        None, help="A data set instead of the one that stands in for the paper's."
    ),
    folder: Path | None = FolderOption,
    window: int = WindowOption,
    network: str = NetworkOption,
    store: Path | None = StoreOption,
    figure: Path | None = FigureOption,
    json: bool = JsonOption,
) -> None:
    """Make a table or figure of the Metis paper again, smaller, and say what was reduced.

    table1: abaton lab paper table1 --folder DATA --figure table1.html

    As large as the data allows: --scale 1 --rows 20000 --network cnn, which takes days. Without --folder a drawn data
    set stands in.
    """
    from abaton.lab.paper_figures import PLANS, evidence
    from abaton.lab.paper_tables import Choice

    if name == "list":
        lines = [{"name": key, "scale": plan.scale, "what": plan.what} for key, plan in PLANS.items()]
        if json:
            emit(lines)
        else:
            table("the paper's evidence", ("name", "scale", "what"), [list(line.values()) for line in lines])
        return
    with _hearing(name, store) as heard:
        made = evidence(name, Choice(scale, seeds, rows, data, folder, window, network, store), heard)
    _draw(figure, made.figure)
    if json:
        emit({"name": name, "title": made.title, "reduced": list(made.reduced), **made.data})
        return
    table(made.title, made.columns, made.rows)
    for line in made.reduced:
        typer.echo(f"reduced: {line}")


def compare(
    *,
    data: str = typer.Option("synthetic", help="A data set by name, or the path of an .npz or .csv file."),
    folder: Path | None = FolderOption,
    sizes: str = typer.Option("power-law", help="uniform, skewed, power-law or power-law-true."),
    classes: list[str] = typer.Option(
        ["Non-IID(3x8)"], help="As 'abaton lab partition' takes them; given again, another environment."
    ),
    learners: int | None = typer.Option(None, help="How many learners: 10, or with --group all groups."),
    label: str = typer.Option("label", help="The label column of a table."),
    group: str | None = typer.Option(
        None, help="The column of a table that names the hospital or person: each is a learner."
    ),
    slow: int | None = typer.Option(None, min=0, help="How many of them are slow; half by default."),
    slowdown: float = typer.Option(10.0, help="How many times as long a batch takes a slow learner."),
    latency: float = typer.Option(
        10.0, min=0, help="How long a message takes, in batches of a fast learner."
    ),
    policy: list[str] = typer.Option(
        [],
        help="A policy of the paper; given again, another; by default all that go with the other settings.",
    ),
    measure: str = typer.Option(
        "micro_f1", help="By what DVW judges: micro_f1, macro_f1, accuracy, mcc, geometric_mean."
    ),
    own: bool = typer.Option(
        True, "--own/--no-own", help="Whether a learner's own validation set counts in that."
    ),
    server: str = typer.Option("plain", help="Server optimiser: plain, momentum(beta=0.9), adam(rate=0.01)."),
    robust: str = typer.Option(
        "", help="Robust mixing: median, trimmed(share=0.2), krum(liars=1), norm_bound; synchronous policies."
    ),
    rounds: float = typer.Option(4.0, help="Simulated time for all, in rounds of SyncFedAvg."),
    rows: int | None = typer.Option(None, min=1, help="Deal so many rows at most."),
    batch: int = typer.Option(50, help="Examples in a batch."),
    rate: float = typer.Option(0.05, help="Learning rate."),
    momentum: float = typer.Option(0.75, help="Momentum (Metis, Eq. 2)."),
    epochs: int = typer.Option(4, help="Local epochs before an update, unless the learner decides itself."),
    window: int = WindowOption,
    network: str = NetworkOption,
    codec: str = typer.Option(
        "raw", help="How updates travel, such as 'error_feedback | stc(sparsity=0.01)'."
    ),
    downlink: str | None = typer.Option(
        None, help="How versions of the community model travel, such as 'stc(sparsity=0.01)'."
    ),
    seeds: int = typer.Option(3, min=1, help="How many seeds; the interval is over them."),
    partition_seed: int | None = typer.Option(
        None, min=0, help="Deal the data the same way for every seed; by default each seed deals anew."
    ),
    store: Path | None = StoreOption,
    figure: Path | None = FigureOption,
    json: bool = JsonOption,
) -> None:
    """Compare the paper's policies on your own setting: accuracy after equal simulated time.

    All policies share every setting; what is different is only what the paper says of each. A table of your own: --data
    FILE.csv --label COLUMN, and --group COLUMN for its hospitals or people.
    """
    from abaton.errors import SettingsError
    from abaton.lab.experiment import Setting, Task, World
    from abaton.lab.federation_builder import fitting
    from abaton.lab.paper_figures import pivot
    from abaton.lab.strategy_comparison import compare as run_all
    from abaton.lab.strategy_comparison import curves, summary
    from abaton.training import TrainSettings

    training = TrainSettings(epochs, batch, rate, momentum, window=window)
    task = Task(data, str(folder) if folder else None, network, label=label, group=group)
    if group is not None and (sizes, classes, learners, rows) != ("power-law", ["Non-IID(3x8)"], None, None):
        raise SettingsError(
            "groups have their own number, sizes and classes",
            where="--group",
            remedy="leave out --learners, --sizes, --classes and --rows, or leave out --group",
        )
    settings: dict[str, Setting] = {}
    for form in classes:
        world = World(sizes, form, learners or 10, rows, slow, slowdown, latency, partition_seed)
        settings[f"{sizes}, {form}" if group is None else f"each {group} a learner"] = Setting(
            task, world, training, rounds, measure, own, server, robust, codec=codec, downlink=downlink
        )
    with _hearing("compare", store) as heard:
        chosen = policy or fitting(next(iter(settings.values())))
        runs = run_all(settings, chosen, range(1, seeds + 1), folder=store, heard=heard)
    lines, drawn = summary(runs), curves(runs)
    title = f"{task.data}: accuracy after {rounds:g} rounds' worth of simulated time"
    if figure is not None:
        from abaton.report.experiment_figures import accuracy_over_time

        _draw(figure, lambda: accuracy_over_time(drawn, title=title))
    if json:
        emit({"title": title, "lines": lines, "curves": drawn})
        return
    table(title, *pivot(lines))
    note(f"{seeds} seeds; ± is the 95 % confidence interval of the mean")


def poisoned(
    *,
    data: str = typer.Option("synthetic", help="A data set by name, or the path of an .npz or .csv file."),
    folder: Path | None = FolderOption,
    sizes: str = typer.Option("power-law", help="uniform, skewed, power-law or power-law-true."),
    classes: str = typer.Option("IID", help="As 'abaton lab partition' takes them."),
    learners: int = typer.Option(10, help="How many learners; the largest goes bad, or the third, or both."),
    rounds: float = typer.Option(5.0, help="Simulated time for all, in rounds of SyncFedAvg."),
    rows: int | None = typer.Option(None, min=1, help="Deal so many rows at most."),
    window: int = typer.Option(0, min=0, help="Shuffle rows through a window of so many; 0 shuffles all."),
    rate: float = typer.Option(0.05, help="Learning rate."),
    seeds: int = typer.Option(3, min=1, help="How many seeds; the interval is over them."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Let one learner have wrong labels, and one send noise: what each policy loses, and how much they still count.

    DVW judges by micro-F1 over all validation sets, as in the paper; by micro-F1 over those of the others only, since
    a learner with wrong labels agrees with itself; and by Matthews' correlation, 0 for a model that knows nothing.
    """
    from abaton.lab.experiment import Setting, Task, World
    from abaton.lab.robustness import harm
    from abaton.training import TrainSettings

    training = TrainSettings(4, 50, rate, 0.75, window=window)
    task = Task(data, str(folder) if folder else None)
    setting = Setting(task, World(sizes, classes, learners, rows), training, rounds)
    with _hearing("poisoned", store) as heard:
        lines = harm(setting, range(1, seeds + 1), folder=store, heard=heard)
    if json:
        emit(lines)
        return
    columns = (
        "attack",
        "policy",
        "judged by",
        "clean",
        "poisoned",
        "loss",
        "of FedAvg's loss",
        "weight share",
    )
    cells = [
        [
            line["attack"],
            line["policy"],
            line["judged_by"],
            *(_mean(line[key]) for key in ("clean", "poisoned", "loss")),
            "" if line["against_fedavg"] is None else f"{line['against_fedavg']:.2f}",
            f"{line['share']:.4f}",
        ]
        for line in lines
    ]
    table(
        f"{data}: bad learners among {learners}; half of an equal share is {0.5 / learners:g}", columns, cells
    )
    note(f"{seeds} seeds; ± is the 95 % confidence interval of the mean")


def _mean(made: dict[str, Any]) -> str:
    return f"{made['mean']:.3f}" + (f" ± {made['reach']:.3f}" if made["reach"] is not None else "")


def _draw(path: Path | None, figure: Callable[[], Any]) -> None:
    if path is None:
        return
    from abaton.report import figures_page

    save(path, figures_page("Experiment", [figure()]))
    note(f"written: {path}")


@contextmanager
def _hearing(name: str, store: Path | None) -> Iterator[Callable[[str], None]]:
    """Say on stderr how far it has come: a line that moves in a terminal, lines in a file."""
    with progress() as bar:
        shown = bar.add_task(name, total=None, detail="the first run compiles for some seconds")
        quiet = bar.disable

        def heard(text: str) -> None:
            bar.update(shown, advance=1, detail=text)
            if quiet:
                note(text)

        try:
            yield heard
        except KeyboardInterrupt:
            kept = (
                f"the last run goes on with '{again('abaton resume latest', store)}'"
                if store
                else "nothing was kept"
            )
            note(f"stopped; {kept}")
            raise


COMMANDS: Sequence[Callable[..., None]] = (paper, compare, poisoned)
