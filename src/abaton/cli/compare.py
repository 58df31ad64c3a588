"""``abaton compare``: runs side by side, first what was set differently, then the results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, save, table
from abaton.cli.runs import JsonOption, StoreOption, complete_run, opened_store

if TYPE_CHECKING:
    from abaton.store import RunRow, Store


def compare(
    runs: list[str] = typer.Argument(
        ...,
        metavar="RUN RUN...",
        help="The runs: names or parts of them, numbers, or latest; 'heart-*' is all that fit.",
        autocompletion=complete_run,
        show_default=False,
    ),
    *,
    measure: str | None = typer.Option(None, help="Compare by this measure; by default the main one."),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write one HTML page with the curves over each other."
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Compare runs that learn the same: settings that differ first, then results, then who was as good how soon.

    Runs of different studies, outcomes, experiments or data sets are refused: their numbers do not mean the same.
    """
    from abaton.report import comparison, comparison_page
    from abaton.report.run_comparison import difference_rows, reached_rows, result_rows, run_rows

    with opened_store(store) as opened:
        chosen = [row for name in runs for row in _named(opened, name)]
        made = comparison([told_of(opened, row) for row in chosen], measure)
    if out is not None:
        save(out, comparison_page(made))
        note(f"written: {out}")
    if json:
        emit(made)
        return
    table("runs", *run_rows(made))
    heads, rows = difference_rows(made)
    if rows:
        table("settings in which they differ", heads, rows)
    else:
        note("the runs have the same settings, data and versions")
    table(f"the last community model, by {made['measure']}", *result_rows(made))
    table(f"first at {made['measure']} {made['target']:.4g}", *reached_rows(made))
    for remark in made["remarks"]:
        note(remark)


def _named(store: Store, name: str) -> list[RunRow]:
    """The run of a name, or with a star in it all that fit."""
    if "*" not in name:
        return [store.run(name)]
    from fnmatch import fnmatchcase

    return [row for row in store.runs() if fnmatchcase(row.run, name)]


def told_of(store: Store, row: RunRow) -> dict[str, Any]:
    """The report of a run in the store."""
    from abaton.report import report_of
    from abaton.store import Journal, activity

    rows = Journal(store, row.run).rows()
    return report_of(row, store.models(row.run), rows, activity(store, row.run, first=True))
