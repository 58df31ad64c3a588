"""``abaton runs``, ``resume`` and ``prune``: look at runs, finish them, free their space."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, table
from abaton.cli.progress_view import watching

if TYPE_CHECKING:
    from abaton.cli.progress_view import View
    from abaton.store import RunRow, Store

StoreOption = typer.Option(
    None, "--store", envvar="ABATON_STORE", help="Folder of the store; by default in the user's data folder."
)
JsonOption = typer.Option(False, "--json", help="Print as JSON.")
AddressOption = typer.Option(
    "", "--address", envvar="RAY_ADDRESS", help="Where the Ray cluster is; without one it is started here."
)
RUN_HELP = "The run: its name or a part of it, its number (3 or '#3'), or latest."
MAIN = ("auroc", "accuracy", "r2", "rmse", "loss")  # what a line says of a run, if it was measured
_NAME = 27  # columns of a name in the list of runs, which fits into 80
_STOPPED = 130  # what a shell expects of a program that was stopped by Ctrl-C


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """The names that a shell offers for a run."""
    from abaton.store import Store, default_folder

    folder = context.params.get("store") or default_folder()
    if not _is_store(Path(folder)):
        return []
    with Store(Path(folder)) as store:
        names = [*(row.run for row in reversed(store.runs())), "latest"]
    return [name for name in names if name.startswith(incomplete)]


RunArgument = typer.Argument(..., help=RUN_HELP, autocompletion=complete_run, show_default=False)


def runs(*, store: Path | None = StoreOption, json: bool = JsonOption) -> None:
    """List the runs in the store, the newest last, each with its number."""
    from abaton.store import default_folder

    if store is None and not _is_store(default_folder()):
        rows = []
    else:
        with opened_store(store) as opened:
            rows = [
                {"number": number, **summary(opened, row), "measures": measures_of(opened, row)}
                for number, row in enumerate(opened.runs(), 1)
            ]
    if json:
        emit(rows)
    elif rows:
        cells = [
            [row["number"], shortened(row["run"]), row["created"][:10], row["status"], main_measure(row)]
            for row in rows
        ]
        table(
            f"{len(rows)} run{'s' if len(rows) > 1 else ''}", ("#", "run", "begun", "status", "result"), cells
        )
    else:
        note("no runs yet: start one with 'abaton run' or 'abaton demo'")


def shortened(name: str) -> str:
    """A run's name for a narrow column: its middle is left out, since names differ at their ends.

    >>> shortened("heart-failure-four-hospitals-20261116-105743-0b4a")
    'heart-failure-…105743-0b4a'
    """
    return name if len(name) <= _NAME else f"{name[:14]}…{name[-11:]}"


def measures_of(store: Store, row: RunRow) -> dict[str, float]:
    """How good the last community model of a run is, if anybody has judged it."""
    from abaton.federation import Run

    return Run(store, row.run).metrics


def main_measure(data: dict[str, Any]) -> str | None:
    """The one measure that says most of a run."""
    measures = data["measures"]
    name = next((name for name in (*MAIN, *measures) if name in measures), None)
    return None if name is None else f"{name} {measures[name]:.3f}"


def resume(
    run: str = RunArgument,
    *,
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Bring a run that was cut off to its end; it ends with the same bits as one that never was.

    abaton resume latest
    """
    with opened_store(store) as opened:
        row = opened.run(run)
        if row.status == "running":
            with stoppable(opened, store, row.run), watching(rounds_of(row)) as view:
                row = _bring_to_end(opened, row, view)
        else:
            note(f"run '{row.run}' is {row.status} already")
        data = summary(opened, row)
    emit(data) if json else tell_outcome(data, store)


def rounds_of(row: RunRow) -> int | None:
    """How many rounds a run has, if its recipe says so."""
    method = row.recipe.get("method") or row.recipe["settings"]
    rounds = method.get("rounds")
    return rounds if isinstance(rounds, int) else None


def _bring_to_end(store: Store, row: RunRow, view: View) -> RunRow:
    """Go on with a run as it was begun: from its study, or from its recipe."""
    from abaton.errors import SettingsError

    kind = row.recipe["name"]
    if kind == "study":
        from abaton.federation import resume_study

        return resume_study(store, row, watch=view.hear, step=view.step).row
    from abaton.lab.federation_builder import RECIPES, build

    if kind not in RECIPES:
        raise SettingsError(
            f"run '{row.run}' was made by a program of its own",
            where="resume",
            remedy=f"start that program again: Federation(...).run('{row.run}') goes on with it",
        )
    return build(row.recipe).run(row.run, store=store, engine=row.engine, watch=view.hear).row


def prune(
    run: str | None = typer.Argument(
        None, help=f"{RUN_HELP} Every run if not given.", autocompletion=complete_run
    ),
    *,
    last: int = typer.Option(5, min=1, help="Keep so many of the newest versions of the community model."),
    every: int = typer.Option(0, min=0, help="Also keep one version in so many; 0 for none."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be removed."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Free space: remove old versions of community models, and the updates of runs that have ended.

    The journal, the versions' digests and metrics, and the final model always stay. A run that was cut off keeps its
    updates and can still be resumed; one that is being worked on is left alone.
    """
    with opened_store(store) as opened:
        from abaton.store import Keep
        from abaton.store import plan as plan_pruning
        from abaton.store import prune as remove

        chosen = [opened.run(run)] if run else opened.runs()
        held = [row.run for row in chosen if opened.is_held(row.run)]
        plans = [plan_pruning(opened, row, Keep(last, every)) for row in chosen if row.run not in held]
        if not dry_run:
            for made in plans:
                remove(opened, made)
    rows: list[dict[str, Any]] = [
        {"run": p.run, "versions": len(p.models), "updates": p.payloads is not None, "bytes": p.bytes}
        for p in plans
    ]
    if json:
        emit({"dry_run": dry_run, "runs": rows, "left_alone": held})
        return
    columns = ("run", "versions", "updates", "bytes")
    title = "would be removed" if dry_run else "removed"
    cells = [[shortened(row["run"]), *(row[column] for column in columns[1:])] for row in rows]
    table(title, columns, cells)
    for name in held:
        note(f"run {name} is being worked on, and was left alone")


@contextmanager
def opened_store(folder: Path | None, *, make: bool = False) -> Iterator[Store]:
    """The store in a folder, or the user's.

    Args:
        folder: Where it is.
        make: Whether to make one where none is; whoever only reads a store never makes one by a wrong name.
    """
    from abaton.errors import SettingsError
    from abaton.store import Store, default_folder

    place = folder or default_folder()
    if not make and not _is_store(place):
        raise SettingsError(
            "there is no store here",
            where=str(place),
            remedy="check --store and ABATON_STORE; 'abaton run' and 'abaton demo' make a store",
        )
    with Store(place) as store:
        yield store


def _is_store(folder: Path) -> bool:
    return (folder / "abaton.db").exists()


def again(command: str, folder: Path | None) -> str:
    """A command that can be typed as it is shown, with the store that was given."""
    known = folder is None or os.environ.get("ABATON_STORE") == str(folder)
    return command if known else f"{command} --store {shlex.quote(str(folder))}"


@contextmanager
def stoppable(store: Store, folder: Path | None, run: str = "") -> Iterator[None]:
    """Let Ctrl-C end a command with a line that says how to go on with its run, or with the run it has begun."""
    before = {row.run for row in store.runs()}
    try:
        yield
    except KeyboardInterrupt:
        begun = [row.run for row in store.runs() if row.run not in before and row.status == "running"]
        name = run or (begun[-1] if begun else "")
        if name:
            go_on = again(f"abaton resume {name}", folder)
            note(f"stopped; what is done is kept: go on with '{go_on}'")
        else:
            note("stopped before training began; nothing was kept: start the command again")
        raise typer.Exit(_STOPPED) from None


def summary(store: Store, row: RunRow) -> dict[str, Any]:
    """A run in a few words and numbers."""
    status = row.status
    if status == "running" and not store.is_held(row.run):
        status = "interrupted"
    result = row.result or {}
    return {
        "run": row.run,
        "created": row.created[:19],
        "engine": row.engine,
        "made_by": row.recipe["name"],
        "status": status,
        "reason": result.get("reason"),
        "versions": result.get("version"),
        "seconds": result.get("seconds"),
        "updates": result.get("updates"),
        "bytes_up": result.get("bytes_up"),
        "bytes_down": result.get("bytes_down"),
        "digest": result.get("digest"),
    }


def tell_outcome(data: dict[str, Any], folder: Path | None = None) -> None:
    """Say how a run ended, on stderr."""
    if data["status"] == "interrupted":
        note(f"run {data['run']} was cut off: bring it to its end with {_way_on(data, folder)}")
    elif data["versions"] is not None:
        why = "" if data["status"] == "finished" else f" ({data['reason']})"
        clock = "simulated seconds" if data["engine"] == "virtual" else "seconds"
        note(
            f"run {data['run']} is {data['status']}{why}: {data['versions']} versions, "
            f"{data['updates']} updates, {data['bytes_up']:,} bytes up, {data['bytes_down']:,} down, "
            f"{data['seconds']:,.1f} {clock}, "
            f"model {data['digest'][:12]}"
        )


def _way_on(data: dict[str, Any], folder: Path | None) -> str:
    """What brings a run that was cut off to its end: what made it decides."""
    if data["made_by"] == "python":
        return f"run('{data['run']}') in its program"
    if data["engine"] == "flower":
        return f"'{again('abaton serve study STUDY', folder)}', with the same study"
    command = again(f"abaton resume {data['run']}", folder)
    return f"'{command}'"
