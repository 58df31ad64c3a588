"""``abaton records view`` and ``abaton records conformance``: FHIR records as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from abaton.cli.output import emit, note, table
from abaton.cli.runs import JsonOption


def view(
    definition: Path = typer.Argument(..., metavar="VIEW", help="A ViewDefinition (SQL on FHIR v2) in JSON."),
    inputs: list[str] = typer.Argument(
        ..., metavar="IN...", help="Files, directories, or - for standard input."
    ),
    *,
    out: Path = typer.Option(..., "--out", "-o", help="The table: .parquet, .csv or .ndjson, by its ending."),
    json: bool = JsonOption,
) -> None:
    """Turn records into a table and print how many were read and how many rows they gave.

    The table is written whole or not at all; memory does not grow with the records.
    """
    from abaton.views import load_view, resources_of, write

    made = load_view(definition)
    tally = {"read": 0, "matched": 0}

    def resources() -> Iterator[Mapping[str, Any]]:
        for resource in resources_of(inputs):
            tally["read"] += 1
            tally["matched"] += resource.get("resourceType") == made.resource
            yield resource

    rows = write(made, resources(), out)
    found = {**tally, "rows": rows, "columns": len(made.columns), "out": str(out)}
    if json:
        emit(found)
    else:
        table(f"view {made.name or definition.name}", list(found), [tuple(found.values())])


def conformance(
    folder: Path = typer.Argument(..., help="The folder of the official conformance files."),
    *,
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the report to this file."),
) -> None:
    """Run the official SQL on FHIR tests and print the report of its test runner. Exit code 1: some failed."""
    from abaton.views import report

    found = report(folder)
    results = [test["result"]["passed"] for file in found.values() for test in file["tests"]]
    if out:
        import json

        out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    else:
        emit(found)
    note(f"{sum(results)} of {len(results)} tests passed")
    if not all(results):
        raise typer.Exit(1)
