"""``abaton runs``, ``resume`` and ``prune``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, table

if TYPE_CHECKING:
    from abaton.cli.progress_view import ProgressView
    from abaton.store import RunRow, Store

StoreOption = typer.Option(
    None, "--store", envvar="ABATON_STORE", help="Folder of the store (default: in the user's data folder)"
)
JsonOption = typer.Option(False, "--json", help="Print JSON")
AddressOption = typer.Option(
    "",
    "--address",
    envvar="RAY_ADDRESS",
    help="Address of the Ray cluster (default: start one on this machine)",
)
RUN_HELP = "Run: its name, a part of it, its number (3 or '#3'), or latest"
MAIN_METRICS = ("auroc", "accuracy", "r2", "rmse", "loss")  # the first of these that a run has is shown
_MAX_NAME_WIDTH = 27  # characters of a name in the list of runs, which fits into 80
_INTERRUPTED_CODE = 130  # exit code of a program stopped by Ctrl-C


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the shell completions of a run's name for commands on runs."""
    from abaton.store import Store, default_folder

    folder = context.params.get("store") or default_folder()
    if not _is_store(Path(folder)):
        return []
    with Store(Path(folder)) as store:
        names = [*(row.run for row in reversed(store.runs())), "latest"]
    return [name for name in names if name.startswith(incomplete)]


RunArgument = typer.Argument(..., help=RUN_HELP, autocompletion=complete_run, show_default=False)


def runs(*, store: Path | None = StoreOption, json: bool = JsonOption) -> None:
    """List the runs of the store with their numbers, newest last."""
    from abaton.store import default_folder

    if store is None and not _is_store(default_folder()):
        rows = []
    else:
        with opened_store(store) as opened:
            rows = [
                {"number": number, **summary(opened, row), "metrics": metrics_of(opened, row)}
                for number, row in enumerate(opened.runs(), 1)
            ]
    if json:
        emit(rows)
    elif rows:
        cells = [
            [row["number"], shortened(row["run"]), row["created"][:10], row["status"], main_metric(row)]
            for row in rows
        ]
        table(
            f"{len(rows)} run{'s' if len(rows) > 1 else ''}",
            ("#", "run", "created", "status", "result"),
            cells,
        )
    else:
        note("no runs yet: start one with 'abaton run' or 'abaton demo'")


def shortened(name: str) -> str:
    """Return a run's name for a narrow column of `abaton runs`, without its middle; names differ at their ends.

    >>> shortened("heart-failure-six-hospitals-20261116-105743-0b4a")
    'heart-failure-…105743-0b4a'
    """
    return name if len(name) <= _MAX_NAME_WIDTH else f"{name[:14]}…{name[-11:]}"


def metrics_of(store: Store, row: RunRow) -> dict[str, float]:
    """Return the metrics of a run's last community model for `abaton runs`, if it was evaluated."""
    from abaton.federation import Run

    return Run(store, row.run).metrics


def main_metric(data: dict[str, Any]) -> str | None:
    """Return the main metric of a run as text for the list of `abaton runs`."""
    metrics = data["metrics"]
    name = next((name for name in (*MAIN_METRICS, *metrics) if name in metrics), None)
    return None if name is None else f"{name} {metrics[name]:.3f}"


def resume(
    run: str = RunArgument,
    *,
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Resume an interrupted run; its model is identical to that of an uninterrupted run.

    abaton resume latest
    """
    from abaton.cli.progress_view import show_progress

    with opened_store(store) as opened:
        row = opened.run(run)
        if row.status == "running":
            with stoppable(opened, store, row.run), show_progress(rounds_of(row)) as view:
                row = _finish_run(opened, row, view)
        else:
            note(f"run '{row.run}' is {row.status} already")
        data = summary(opened, row)
    emit(data) if json else print_outcome(data, store)


def rounds_of(row: RunRow) -> int | None:
    """Return the number of rounds of a run to resume, if its recipe has one."""
    method = row.recipe.get("method") or row.recipe["settings"]
    rounds = method.get("rounds")
    return rounds if isinstance(rounds, int) else None


def _finish_run(store: Store, row: RunRow, view: ProgressView) -> RunRow:
    """Resume an interrupted run from its study or its recipe until it is finished (`abaton resume`)."""
    from abaton.errors import SettingsError

    source = row.recipe["name"]
    if source == "study":
        from abaton.study_run import resume_study

        return resume_study(store, row, watch=view.on_event, on_progress=view.on_step).row
    from abaton.lab.federation_builder import RECIPES, build_from_recipe

    if source not in RECIPES:
        raise SettingsError(
            f"run '{row.run}' was started by a Python program",
            where="resume",
            remedy=f"start that program again: Federation(...).run('{row.run}') resumes the run",
        )
    return build_from_recipe(row.recipe).run(row.run, store=store, engine=row.engine, watch=view.on_event).row


def prune(
    run: str | None = typer.Argument(
        None, help=f"{RUN_HELP} (default: all runs)", autocompletion=complete_run
    ),
    *,
    last: int = typer.Option(5, min=1, help="Number of newest community model versions to keep"),
    every: int = typer.Option(0, min=0, help="Also keep every n-th version; 0 for none"),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would be deleted; delete nothing"),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Delete old versions of community models, and the updates of finished runs.

    The journal, the digests and metrics of all versions, and the final model are kept. Interrupted runs keep their
    updates and can be resumed; running ones are skipped.
    """
    with opened_store(store) as opened:
        from abaton.store import RetentionRule
        from abaton.store import plan_pruning as plan_pruning
        from abaton.store import prune as remove

        selected = [opened.run(run)] if run else opened.runs()
        locked = [row.run for row in selected if opened.is_locked(row.run)]
        plans = [
            plan_pruning(opened, row, RetentionRule(last, every)) for row in selected if row.run not in locked
        ]
        if not dry_run:
            for pruning_plan in plans:
                remove(opened, pruning_plan)
    rows: list[dict[str, Any]] = [
        {"run": p.run, "versions": len(p.models), "updates": p.payloads is not None, "bytes": p.bytes}
        for p in plans
    ]
    if json:
        emit({"dry_run": dry_run, "runs": rows, "skipped": locked})
        return
    columns = ("run", "versions", "updates", "bytes")
    title = "would be deleted" if dry_run else "deleted"
    cells = [[shortened(row["run"]), *(row[column] for column in columns[1:])] for row in rows]
    table(title, columns, cells)
    for name in locked:
        note(f"run {name} is running and was skipped")


@contextmanager
def opened_store(folder: Path | None, *, create: bool = False) -> Iterator[Store]:
    """Open the store of runs in the folder given to a command, or the user's store.

    Args:
        folder: Folder of the store.
        create: Whether to create a missing store; commands that only read do not.
    """
    from abaton.errors import SettingsError
    from abaton.store import Store, default_folder

    path = folder or default_folder()
    if not create and not _is_store(path):
        raise SettingsError(
            "the store does not exist",
            where=str(path),
            remedy="check --store and ABATON_STORE, or create one with 'abaton run' or 'abaton demo'",
        )
    with Store(path) as store:
        yield store


def _is_store(folder: Path) -> bool:
    return (folder / "abaton.db").exists()


def command_with_store(command: str, folder: Path | None) -> str:
    """Return a command on runs with the given store, so that it can be copied."""
    is_default = folder is None or os.environ.get("ABATON_STORE") == str(folder)
    return command if is_default else f"{command} --store {shlex.quote(str(folder))}"


@contextmanager
def stoppable(store: Store, folder: Path | None, run: str = "") -> Iterator[None]:
    """On Ctrl-C in a command, print how to resume the run, or the run that the command started, and exit."""
    known_runs = {row.run for row in store.runs()}
    try:
        yield
    except KeyboardInterrupt:
        started = [row.run for row in store.runs() if row.run not in known_runs and row.status == "running"]
        name = run or (started[-1] if started else "")
        if name:
            command = command_with_store(f"abaton resume {name}", folder)
            note(f"interrupted; resume with '{command}'")
        else:
            note("interrupted before training started; nothing was stored: start the command again")
        raise typer.Exit(_INTERRUPTED_CODE) from None


def summary(store: Store, row: RunRow) -> dict[str, Any]:
    """Return the main facts of a run, as listed by `abaton runs`."""
    status = row.status
    if status == "running" and not store.is_locked(row.run):
        status = "interrupted"
    result = row.result or {}
    return {
        "run": row.run,
        "created": row.created[:19],
        "engine": row.engine,
        "source": row.recipe["name"],
        "status": status,
        "reason": result.get("reason"),
        "versions": result.get("version"),
        "seconds": result.get("seconds"),
        "updates": result.get("updates"),
        "bytes_up": result.get("bytes_up"),
        "bytes_down": result.get("bytes_down"),
        "digest": result.get("digest"),
    }


def print_outcome(data: dict[str, Any], folder: Path | None = None) -> None:
    """Print the outcome of a run that a command ran or resumed on stderr."""
    if data["status"] == "interrupted":
        note(f"run {data['run']} was interrupted: resume it with {_resume_hint(data, folder)}")
    elif data["versions"] is not None:
        reason = "" if data["status"] == "finished" else f" ({data['reason']})"
        clock = "simulated seconds" if data["engine"] == "virtual" else "seconds"
        note(
            f"run {data['run']} is {data['status']}{reason}: {data['versions']} versions, "
            f"{data['updates']} updates, {data['bytes_up']:,} bytes up, {data['bytes_down']:,} down, "
            f"{data['seconds']:,.1f} {clock}, "
            f"model {data['digest'][:12]}"
        )


def _resume_hint(row: dict[str, Any], folder: Path | None) -> str:
    """Return how an interrupted run is resumed (`abaton resume`), which depends on what started it."""
    if row["source"] == "python":
        return f"run('{row['run']}') in its program"
    if row["engine"] == "flower":
        return f"'{command_with_store('abaton serve study STUDY', folder)}', with the same study"
    command = command_with_store(f"abaton resume {row['run']}", folder)
    return f"'{command}'"
