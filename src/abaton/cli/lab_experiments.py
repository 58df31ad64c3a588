"""``abaton lab reproduce``, ``compare`` and ``robustness``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, progress, save, table
from abaton.cli.runs import JsonOption, command_with_store

if TYPE_CHECKING:
    from abaton.lab.experiment import ExperimentSettings

FolderOption = typer.Option(
    None, "--folder", envvar="ABATON_DATA", help="Folder of the named data sets; see 'abaton lab data'"
)
StoreOption = typer.Option(None, "--store", help="Store the runs in this folder; see 'abaton runs'")
FigureOption = typer.Option(None, help="Write the figure to this HTML file")
WindowOption = typer.Option(
    50, min=0, help="Shuffle window in rows, which are sorted by class; 0 shuffles all"
)
NetworkOption = typer.Option(
    "mlp", help="Network: mlp (one hidden layer, images 8x8) or cnn (as in the papers)"
)


def reproduce(
    name: str = typer.Argument(
        "list", help="Table or figure: table1 … table3, fig2 … fig9; 'list' describes them"
    ),
    *,
    scale: float | None = typer.Option(
        None, help="Fraction of the paper's training time, up to 1 (default: some minutes)"
    ),
    seeds: int = typer.Option(3, min=1, help="Number of seeds for the confidence interval"),
    rows: int | None = typer.Option(None, min=1, help="Maximum number of rows (default: 5,000 of CIFAR-10)"),
    data: str | None = typer.Option(None, help="Data set instead of the default one"),
    folder: Path | None = FolderOption,
    window: int = WindowOption,
    network: str = NetworkOption,
    store: Path | None = StoreOption,
    figure: Path | None = FigureOption,
    json: bool = JsonOption,
) -> None:
    """Reproduce a table or figure of the Metis paper at a smaller scale and print what was reduced.

    abaton lab reproduce table1 --folder DATA --figure table1.html

    The full scale, --scale 1 --rows 20000 --network cnn, takes days. Without --folder a synthetic data set is used.
    """
    from abaton.lab.paper_figures import PLANS, paper_figure
    from abaton.lab.paper_tables import DownscaleChoice

    if name == "list":
        plans = [{"name": key, "scale": plan.scale, "description": plan.what} for key, plan in PLANS.items()]
        if json:
            emit(plans)
        else:
            table(
                "tables and figures", ("name", "scale", "description"), [list(row.values()) for row in plans]
            )
        return
    with _show_progress(name, store) as on_progress:
        reproduction = paper_figure(
            name, DownscaleChoice(scale, seeds, rows, data, folder, window, network, store), on_progress
        )
    _draw(figure, reproduction.figure)
    if json:
        emit(
            {
                "name": name,
                "title": reproduction.title,
                "reduced": list(reproduction.reduced),
                **reproduction.data,
            }
        )
        return
    table(reproduction.title, reproduction.columns, reproduction.rows)
    for row in reproduction.reduced:
        typer.echo(f"reduced: {row}")


def compare(
    *,
    data: str = typer.Option("synthetic", help="Name of a data set, or path of an .npz or .csv file"),
    folder: Path | None = FolderOption,
    sizes: str = typer.Option(
        "power-law", help="Distribution of sizes: uniform, skewed, power-law or power-law-true"
    ),
    classes: list[str] = typer.Option(
        ["Non-IID(3x8)"], help="Distribution of classes, see 'abaton lab partition'; repeatable"
    ),
    learners: int | None = typer.Option(
        None, help="Number of learners (default: 10; with --group all groups)"
    ),
    label: str = typer.Option("label", help="Label column of a table"),
    group: str | None = typer.Option(
        None, help="Group column of a table, such as the hospital; each group is a learner"
    ),
    slow: int | None = typer.Option(None, min=0, help="Number of slow learners (default: half)"),
    slowdown: float = typer.Option(10.0, help="Time of a batch at a slow learner relative to a fast one"),
    latency: float = typer.Option(10.0, min=0, help="Latency of a message in batches of a fast learner"),
    strategy: list[str] = typer.Option(
        [],
        help="Strategy; repeatable (default: all that fit the other settings)",
    ),
    metric: str = typer.Option(
        "micro_f1", help="Metric of DVW: micro_f1, macro_f1, accuracy, mcc, geometric_mean"
    ),
    include_own_validation: bool = typer.Option(
        True,
        "--include-own-validation/--exclude-own-validation",
        help="Include or exclude the learner's own validation set in DVW",
    ),
    server: str = typer.Option("sgd", help="Server optimiser: sgd, momentum(beta=0.9), adam(rate=0.01)"),
    robust: str = typer.Option(
        "",
        help="Robust aggregation of synchronous strategies: median, trimmed_mean(fraction=0.2), krum(byzantine=1), "
        "norm_bound",
    ),
    rounds: float = typer.Option(4.0, help="Simulated time in rounds of SyncFedAvg"),
    rows: int | None = typer.Option(None, min=1, help="Maximum number of rows"),
    batch: int = typer.Option(50, help="Batch size"),
    rate: float = typer.Option(0.05, help="Learning rate"),
    momentum: float = typer.Option(0.75, help="Momentum (Metis, Eq. 2)"),
    epochs: int = typer.Option(4, help="Local epochs per update, except with adaptive update frequency"),
    window: int = WindowOption,
    network: str = NetworkOption,
    codec: str = typer.Option("raw", help="Codec of updates, such as 'error_feedback | stc(sparsity=0.01)'"),
    downlink: str | None = typer.Option(None, help="Codec of community models, such as 'stc(sparsity=0.01)'"),
    seeds: int = typer.Option(3, min=1, help="Number of seeds for the confidence interval"),
    partition_seed: int | None = typer.Option(
        None, min=0, help="Use one partition for all seeds (default: a new partition per seed)"
    ),
    store: Path | None = StoreOption,
    figure: Path | None = FigureOption,
    json: bool = JsonOption,
) -> None:
    """Compare strategies by accuracy after equal simulated time.

    All strategies share the other settings. Tables: --data FILE.csv --label COLUMN, and --group COLUMN for hospitals.
    """
    from abaton.errors import SettingsError
    from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
    from abaton.lab.federation_builder import suitable_strategies
    from abaton.lab.paper_figures import pivot
    from abaton.lab.strategy_comparison import compare as run_all
    from abaton.lab.strategy_comparison import curves, summary
    from abaton.training import TrainSettings

    training = TrainSettings(epochs, batch, rate, momentum, shuffle_window=window)
    task = ExperimentTask(data, str(folder) if folder else None, network, label=label, group=group)
    if group is not None and (sizes, classes, learners, rows) != ("power-law", ["Non-IID(3x8)"], None, None):
        raise SettingsError(
            "--group is combined with --learners, --sizes, --classes or --rows",
            where="--group",
            remedy="remove --learners, --sizes, --classes and --rows, or remove --group",
        )
    settings: dict[str, ExperimentSettings] = {}
    for class_distribution in classes:
        environment = ExperimentEnvironment(
            sizes, class_distribution, learners or 10, rows, slow, slowdown, latency, partition_seed
        )
        settings[f"{sizes}, {class_distribution}" if group is None else f"one learner per {group}"] = (
            ExperimentSettings(
                task,
                environment,
                training,
                rounds,
                metric,
                include_own_validation,
                server,
                robust,
                codec=codec,
                downlink=downlink,
            )
        )
    with _show_progress("compare", store) as on_progress:
        strategies = strategy or suitable_strategies(next(iter(settings.values())))
        runs = run_all(settings, strategies, range(1, seeds + 1), folder=store, report=on_progress)
    results, accuracy_curves = summary(runs), curves(runs)
    title = f"{task.data}: accuracy after the simulated time of {rounds:g} rounds"
    if figure is not None:
        from abaton.report.experiment_figures import accuracy_over_time

        _draw(figure, lambda: accuracy_over_time(accuracy_curves, title=title))
    if json:
        emit({"title": title, "rows": results, "curves": accuracy_curves})
        return
    table(title, *pivot(results))
    note(f"{seeds} seeds; ± is the 95 % confidence interval of the mean")


def robustness(
    *,
    data: str = typer.Option("synthetic", help="Name of a data set, or path of an .npz or .csv file"),
    folder: Path | None = FolderOption,
    sizes: str = typer.Option(
        "power-law", help="Distribution of sizes: uniform, skewed, power-law or power-law-true"
    ),
    classes: str = typer.Option("IID", help="Distribution of classes, see 'abaton lab partition'"),
    learners: int = typer.Option(
        10, help="Number of learners; the largest, the third, or both are byzantine"
    ),
    rounds: float = typer.Option(5.0, help="Simulated time in rounds of SyncFedAvg"),
    rows: int | None = typer.Option(None, min=1, help="Maximum number of rows"),
    window: int = typer.Option(0, min=0, help="Shuffle window in rows; 0 shuffles all"),
    rate: float = typer.Option(0.05, help="Learning rate"),
    seeds: int = typer.Option(3, min=1, help="Number of seeds for the confidence interval"),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Measure the robustness of each strategy: loss of accuracy with flipped labels and with noise at one learner.

    DVW uses micro-F1 on all validation sets, as in the paper; micro-F1 on those of the other learners, since a learner
    with flipped labels agrees with itself; and Matthews' correlation, which is 0 for a model without information.
    """
    from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
    from abaton.lab.robustness import robustness_experiment
    from abaton.training import TrainSettings

    training = TrainSettings(4, 50, rate, 0.75, shuffle_window=window)
    task = ExperimentTask(data, str(folder) if folder else None)
    setting = ExperimentSettings(
        task, ExperimentEnvironment(sizes, classes, learners, rows), training, rounds
    )
    with _show_progress("robustness", store) as on_progress:
        results = robustness_experiment(setting, range(1, seeds + 1), folder=store, report=on_progress)
    if json:
        emit(results)
        return
    columns = (
        "attack",
        "strategy",
        "metric",
        "clean",
        "attacked",
        "loss",
        "relative to FedAvg",
        "weight fraction",
    )
    cells = [
        [
            row["attack"],
            row["strategy"],
            row["weighting"],
            *(_mean(row[key]) for key in ("clean", "attacked", "loss")),
            "" if row["relative_to_fedavg"] is None else f"{row['relative_to_fedavg']:.2f}",
            f"{row['weight_fraction']:.4f}",
        ]
        for row in results
    ]
    table(
        f"{data}: byzantine learners of {learners}; half of an equal weight is {0.5 / learners:g}",
        columns,
        cells,
    )
    note(f"{seeds} seeds; ± is the 95 % confidence interval of the mean")


def _mean(estimate: dict[str, Any]) -> str:
    return f"{estimate['mean']:.3f}" + (
        f" ± {estimate['half_width']:.3f}" if estimate["half_width"] is not None else ""
    )


def _draw(path: Path | None, figure: Callable[[], Any]) -> None:
    if path is None:
        return
    from abaton.report import render_figures

    save(path, render_figures("Experiment", [figure()]))
    note(f"wrote {path}")


@contextmanager
def _show_progress(name: str, store: Path | None) -> Iterator[Callable[[str], None]]:
    """Show the progress of lab experiments on stderr: a bar in a terminal, lines otherwise."""
    with progress() as bar:
        task_id = bar.add_task(name, total=None, detail="the first run compiles kernels")
        is_disabled = bar.disable

        def on_progress(text: str) -> None:
            bar.update(task_id, advance=1, detail=text)
            if is_disabled:
                note(text)

        try:
            yield on_progress
        except KeyboardInterrupt:
            hint = (
                f"resume the last run with '{command_with_store('abaton resume latest', store)}'"
                if store
                else "nothing was stored"
            )
            note(f"interrupted; {hint}")
            raise


COMMANDS: Sequence[Callable[..., None]] = (reproduce, compare, robustness)
