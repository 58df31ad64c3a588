"""``abaton records inventory``: what stands in records, and what a study would find in them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from abaton.cli.output import emit, note, progress, save, table
from abaton.cli.runs import JsonOption

_SHOWN, _NOTHING = 20, "–"


def inventory(
    source: Path = typer.Argument(
        ..., metavar="SOURCE", help="A file or folder of FHIR records, or a site.toml with any source."
    ),
    *,
    study: Path | None = typer.Option(
        None, "--study", help="Tell what this study would find: which inputs are filled, what is missing."
    ),
    out: Path | None = typer.Option(None, "--out", "-o", help="Write one HTML page with everything here."),
    most: int = typer.Option(
        _SHOWN,
        "--most",
        min=1,
        help="How many codes of each type the table shows; --json and the page have all.",
    ),
    json: bool = JsonOption,
) -> None:
    """Count which codes, units, answers and years are in records, and how often; never a value.

    abaton records inventory records/ --study study.toml -o inventory.html

    Records of fewer than five people (or the study's count_floor) are told as such. Exit code 1: the study would find
    nothing for at least one of its parts.
    """
    from abaton.report import inventory_page
    from abaton.site import take_inventory
    from abaton.study import load_study

    document = load_study(study) if study is not None else None
    need = document.need(datetime.now(UTC).date()) if document else None
    floor = document.deidentification.count_floor if document else 5
    with progress() as bar:
        task = bar.add_task("reading", total=None, detail="")
        made = take_inventory(
            source, document, need, floor=floor, step=lambda count: bar.update(task, completed=count)
        )
    found = made.row()
    if out is not None:
        save(out, inventory_page(found, source.name))
    if json:
        emit(found)
    else:
        _print_profile(found, most)
        if out is not None:
            note(f"the whole inventory: {out}")
    if any(each["state"] == "empty" for each in found.get("inputs", ())):
        raise typer.Exit(1)


def _print_profile(found: dict[str, Any], most: int) -> None:
    from abaton.report.profile_page import code_cells, input_cells

    table("records", ["type", "records"], list(found["records"].items()))
    for kind in dict.fromkeys(line["type"] for line in found["codes"]):
        lines = [line for line in found["codes"] if line["type"] == kind]
        heads = ["code", "what it may be", "records", "years", "units", "answers", "other values"]
        _table(kind, heads, [code_cells(line) for line in lines[:most]])
        if len(lines) > most:
            note(f"and {len(lines) - most:,} more codes of {kind}: --json or -o tells all")
    if "study" in found:
        heads = [
            "part",
            "would be",
            "looks for",
            "found",
            "units and answers",
            "missing",
            "nearest codes found",
        ]
        _table(
            f"what the study would find: {found['study']}",
            heads,
            [input_cells(each) for each in found["inputs"]],
        )
    if found["set_aside"]:
        table("set aside", ["reason", "count"], list(found["set_aside"].items()))
    if found["hidden"]:
        note(f"{found['hidden']:,} codes that few people have, of no public terminology, are left out")
    if found["beyond"]:
        note(f"{found['beyond']:,} records had further codes than are counted one by one")
    note(f"<{found['floor']}: fewer than {found['floor']} people have such records")


def _table(title: str, heads: list[str], rows: list[tuple[str, ...]]) -> None:
    """A table without the columns in which nothing stands: a terminal is narrow."""
    kept = [i for i in range(len(heads)) if any(row[i] != _NOTHING for row in rows)]
    table(title, [heads[i] for i in kept], [[row[i] for i in kept] for row in rows])
