"""``abaton records anonymity``: how well each person hides in a table, and a table in which they do.

``abaton records inventory``: what stands in records, and what a study would find in them.

``abaton records view`` and ``abaton records conformance``: FHIR records as tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, progress, save, table
from abaton.cli.privacy_inputs import completed, facts_of, read_inputs, write_report
from abaton.cli.runs import JsonOption
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.anonymity.api import Outcome
    from abaton.anonymity.settings import AnonymitySettings
    from abaton.report import PrivacyInputs


def anonymity(
    source: Path = typer.Argument(..., metavar="TABLE", help="CSV, TSV, Parquet or NDJSON."),
    *,
    study: Path = typer.Option(
        ..., "--study", help="The study document (study.toml or an InteropEHRate Bundle)."
    ),
    subject: str | None = typer.Option(
        None, "--subject", help="The column that says whose row it is; k, l, t and risks count people."
    ),
    rows_are_people: bool = typer.Option(
        False, "--rows-are-people", help="Said instead of --subject: no two rows are of one person."
    ),
    enforce: bool = typer.Option(False, "--enforce", help="Write the anonymous table."),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Where to (default: NAME.anonymous.SUFFIX here)."
    ),
    report: Path | None = typer.Option(None, "--report", help="Write the privacy report (.html or .json)."),
    supplied: Path | None = typer.Option(
        None, "--report-inputs", help="JSON with what other parts know: study, consents, checks, custody ..."
    ),
    gate: bool = typer.Option(False, "--gate", help="Fail with code 3 if the table as it is falls short."),
    separator: str = typer.Option("", "--separator", help="Of a CSV (default: found in its header)."),
    json: bool = JsonOption,
) -> None:
    """Measure how anonymous a table is and, with --enforce, make it as anonymous as the study asks.

    The search finds the coarsening that loses least; rows that stay rare are left out, up to the study's
    limit. Without --enforce nothing is written: the table's measures and the best coarsening are shown. A class
    is as large as it has people: name their column with --subject, or say --rows-are-people.
    """
    from abaton.anonymity import examine
    from abaton.anonymity.table_files import scan, separator_of, write

    settings, known = _study(study)
    if subject is not None or rows_are_people:
        settings = replace(settings, subject=subject, rows_are_people=rows_are_people)
    inputs = completed(read_inputs(report, supplied), known)
    target = _target(source, out) if enforce else None
    frame = scan(source, separator=separator)
    outcome = examine(frame, settings, folder=study.parent)
    row = {"table": str(source), "study": str(study)} | outcome.row()
    if outcome.refusal is not None:
        note(f"abaton: {outcome.refusal}")
    elif target is not None and outcome.shown is not None:
        sign = separator or (separator_of(source) if source.suffix.lower() == ".csv" else ",")
        dropped = write(frame, outcome.table, outcome.shown, settings, target, separator=sign)
        row |= {"out": str(target), "columns_left_out": dropped}
        note(f"wrote {target}; columns left out: {', '.join(dropped) or 'none'}")
    if report is not None:
        write_report(report, replace(inputs, anonymity=outcome.row()))
    emit(row) if json else _print_outcome(outcome)
    if enforce and outcome.refusal is not None:
        raise Refused("nothing was written", where=str(source), remedy="see the reason above")
    if gate and not outcome.before.holds:
        raise Refused(
            "the table falls short of the study's anonymity", where=str(source), remedy="--enforce it"
        )


def _target(source: Path, out: Path | None) -> Path:
    target = out or Path(f"{source.stem}.anonymous{source.suffix}")
    if target.exists() and source.exists() and target.samefile(source):
        raise SettingsError(
            "the table would be replaced by its release", where=str(target), remedy="give --out"
        )
    return target


def _study(path: Path) -> tuple[AnonymitySettings, PrivacyInputs]:
    """What the study asks, and what its document says for the report.

    A TOML file with nothing but the table ``[privacy.anonymity]`` will do where only a table is measured.
    """
    import hashlib

    from abaton.anonymity import read_settings
    from abaton.report import PrivacyInputs, StudyFacts
    from abaton.study import load_study

    if _is_fragment(path):
        settings = read_settings(path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        return settings, PrivacyInputs(study=StudyFacts(document_sha256=sha256))
    study = load_study(path)
    if study.privacy.anonymity is None:
        raise SettingsError(
            "the study asks for no anonymity", where=str(path), remedy="add [privacy.anonymity]"
        )
    return study.privacy.anonymity, facts_of(study)


def _is_fragment(path: Path) -> bool:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return "study" not in document


def _print_outcome(outcome: Outcome) -> None:
    before, after = outcome.before.row(), outcome.after.row() if outcome.after else {}
    names = {"holds": "satisfies the study", "records": "records", "suppressed": "left out"}
    names |= {"people": "people", "people_left_out": "people left out"}
    names |= {"classes": "classes", "k": "k (people in the smallest class)"}
    rows: list[tuple[str, Any, Any]] = [(text, before[key], after.get(key)) for key, text in names.items()]
    for i, old in enumerate(before["sensitive"]):
        new = after["sensitive"][i] if after else {}
        rows += [
            (f"{old['column']}: {text.format(**old)}", old[key], new.get(key))
            for key, text in _MODELS.items()
        ]
    for part in ("risk", "utility"):
        new = after.get(part, {})
        rows += [
            (f"{part}: {key.replace('_', ' ')}", value, new.get(key)) for key, value in before[part].items()
        ]
    method = outcome.shown.method if outcome.shown else "nothing may be shown"
    table(f"anonymity ({method})", ["what", "before", "after"], rows)
    levels = [tuple(quasi.values()) for quasi in outcome.row()["quasi_identifiers"]]
    table("quasi-identifiers", ["column", "level", "highest", "names shown"], levels)


_MODELS = {
    "distinct": "distinct l",
    "entropy": "entropy l",
    "recursive_c": "recursive c (l = {l})",
    "equal": "t, equal distance",
    "ordered": "t, ordered distance",
    "certain": "most certain guess",
}


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
