"""``abaton runs``, ``show``, ``resume`` and ``prune``: look at runs, finish them, free their space."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.live import watching
from abaton.cli.output import emit, note, save, table

if TYPE_CHECKING:
    from abaton.cli.screen import View
    from abaton.store import RunRow, Store

StoreOption = typer.Option(
    None, "--store", envvar="ABATON_STORE", help="Folder of the store; by default in the user's data folder."
)
JsonOption = typer.Option(False, "--json", help="Print as JSON.")
AddressOption = typer.Option(
    "", "--address", envvar="RAY_ADDRESS", help="Where the Ray cluster is; without one it is started here."
)


def runs(*, store: Path | None = StoreOption, json: bool = JsonOption) -> None:
    """List the runs in the store."""
    with opened_store(store) as opened:
        rows = [summary(opened, row) for row in opened.runs()]
    if json:
        emit(rows)
    elif rows:
        columns = ("run", "created", "status", "versions", "updates", "bytes_up")
        table(f"{len(rows)} runs", columns, [[row[column] for column in columns] for row in rows])
    else:
        note("no runs yet: start one with 'abaton run' or 'abaton demo'")


def show(
    run: str = typer.Argument(help="The run's name, or the beginning of it."),
    *,
    store: Path | None = StoreOption,
    figure: Path | None = typer.Option(None, help="Draw who held what into this HTML file."),
    json: bool = JsonOption,
) -> None:
    """Show a run: how it was made, who held what, how it went, and every version of its community model."""
    with opened_store(store) as opened:
        row = opened.run(run)
        data = summary(opened, row)
        data["recipe"] = dict(row.recipe)
        if epsilons := [m.metrics["epsilon"] for m in opened.models(row.run) if "epsilon" in m.metrics]:
            data["epsilon"] = epsilons[-1]
        data["models"] = [
            {"version": m.version, "at": m.at, "digest": m.digest, **m.metrics}
            for m in opened.models(row.run)
        ]
    if figure is not None:
        _draw_partition(row, figure)
    if json:
        emit(data)
        return
    if partition := row.recipe.get("partition"):
        columns = ("learner", "group", "examples", "classes")
        cells = [[line[column] for column in columns] for line in partition["learners"]]
        table(f"{partition['form']}, partition {partition['digest'][:12]}", columns, cells)
    metrics = (
        [name for name in data["models"][0] if name not in ("version", "at", "digest")]
        if data["models"]
        else []
    )
    rows = [[m["version"], m["at"], m["digest"][:12], *(m[name] for name in metrics)] for m in data["models"]]
    table(f"versions of the community model, run {row.run}", ["version", "seconds", "digest", *metrics], rows)
    if "epsilon" in data:
        note(f"privacy: epsilon {data['epsilon']:.4g} spent by the learner, or release, that spent most")
    tell_outcome(data)


def resume(
    run: str = typer.Argument(help="The run's name, or the beginning of it."),
    *,
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Bring a run that was cut off to its end; it ends with the same bits as if nothing had happened."""
    with opened_store(store) as opened:
        row = opened.run(run)
        if row.status == "running":
            with watching(rounds_of(row)) as view:
                row = _bring_to_end(opened, row, view)
        else:
            note(f"run '{row.run}' is {row.status} already")
        data = summary(opened, row)
    emit(data) if json else tell_outcome(data)


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
    from abaton.lab.recipes import RECIPES, build

    if kind not in RECIPES:
        raise SettingsError(
            f"run '{row.run}' was made by a program of its own",
            where="resume",
            remedy=f"start that program again: Federation(...).run('{row.run}') goes on with it",
        )
    return build(row.recipe).run(row.run, store=store, engine=row.engine, watch=view.hear).row


def prune(
    run: str | None = typer.Argument(
        None, help="The run's name, or the beginning of it; every run if not given."
    ),
    *,
    last: int = typer.Option(5, min=1, help="Keep so many of the newest versions of the community model."),
    every: int = typer.Option(0, min=0, help="Also keep every so manieth version; 0 for none."),
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
    rows = [
        {"run": p.run, "versions": len(p.models), "updates": p.payloads is not None, "bytes": p.bytes}
        for p in plans
    ]
    if json:
        emit({"dry_run": dry_run, "runs": rows, "left_alone": held})
        return
    columns = ("run", "versions", "updates", "bytes")
    title = "would be removed" if dry_run else "removed"
    table(title, columns, [[row[column] for column in columns] for row in rows])
    for name in held:
        note(f"run {name} is being worked on, and was left alone")


def _draw_partition(row: RunRow, path: Path) -> None:
    from abaton.errors import SettingsError
    from abaton.report.partition import partition_figure

    partition = row.recipe.get("partition")
    if partition is None:
        raise SettingsError(
            f"run '{row.run}' keeps no partition", where="--figure", remedy="choose a run of 'abaton lab'"
        )
    groups = {line["learner"]: line["group"] for line in partition["learners"]}
    drawn = partition_figure(
        partition["learners"], partition["classes"], title=partition["form"], groups=groups
    )
    save(path, drawn.to_html(include_plotlyjs=True))
    note(f"written: {path}")


@contextmanager
def opened_store(folder: Path | None) -> Iterator[Store]:
    """The store in a folder, or the user's."""
    from abaton.store import Store, default_folder

    with Store(folder or default_folder()) as store:
        yield store


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
        "digest": result.get("digest"),
    }


def tell_outcome(data: dict[str, Any]) -> None:
    """Say how a run ended, on stderr."""
    if data["status"] == "interrupted":
        again = (
            f"run('{data['run']}') in its program"
            if data["made_by"] == "python"
            else f"abaton resume {data['run']}"
        )
        note(f"run {data['run']} was cut off: bring it to its end with '{again}'")
    elif data["versions"] is not None:
        why = "" if data["status"] == "finished" else f" ({data['reason']})"
        clock = "simulated seconds" if data["engine"] == "virtual" else "seconds"
        note(
            f"run {data['run']} is {data['status']}{why}: {data['versions']} versions, "
            f"{data['updates']} updates, {data['bytes_up']:,} bytes up, {data['seconds']:,.1f} {clock}, "
            f"model {data['digest'][:12]}"
        )
