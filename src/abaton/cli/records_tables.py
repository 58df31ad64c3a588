"""``abaton records anonymity``, ``profile``, ``view`` and ``conformance``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, progress, save, table
from abaton.cli.privacy_inputs import fill_inputs, inputs_of_study, read_inputs, write_report
from abaton.cli.runs import JsonOption
from abaton.errors import RefusedError, SettingsError

if TYPE_CHECKING:
    from abaton.anonymity.api import TableExamination
    from abaton.anonymity.settings import AnonymitySettings
    from abaton.report import PrivacyInputs


def anonymity(
    source: Path = typer.Argument(..., metavar="TABLE", help="Table as CSV, TSV, Parquet or NDJSON"),
    *,
    study: Path = typer.Option(..., "--study", help="Study document (study.toml or an InteropEHRate Bundle)"),
    subject: str | None = typer.Option(
        None,
        "--subject",
        help="Column that identifies the subject of a row; k, l, t and risks count subjects",
    ),
    one_row_per_subject: bool = typer.Option(
        False, "--one-row-per-subject", help="Treat every row as another subject; replaces --subject"
    ),
    enforce: bool = typer.Option(False, "--enforce", help="Write the anonymised table"),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write to this file (default: NAME.anonymous.SUFFIX)"
    ),
    report: Path | None = typer.Option(None, "--report", help="Write the privacy report (.html or .json)"),
    report_inputs_file: Path | None = typer.Option(
        None,
        "--report-inputs",
        help="JSON file with further sections of the report: consents, checks, custody …",
    ),
    fail_if_unsafe: bool = typer.Option(
        False,
        "--fail-if-unsafe",
        help="Exit with code 3 if the table does not satisfy the study's privacy models",
    ),
    separator: str = typer.Option("", "--separator", help="Separator of a CSV file (default: detected)"),
    json: bool = JsonOption,
) -> None:
    """Measure the anonymity of a table and, with --enforce, write an anonymised table.

    The search finds the generalisation with the least information loss; rows in small equivalence classes are
    suppressed, up to the study's limit. Without --enforce nothing is written. Equivalence classes count subjects: use
    --subject or --one-row-per-subject.
    """
    from abaton.anonymity import examine
    from abaton.anonymity.table_files import scan, separator_of, write

    settings, study_inputs = _read_study(study)
    if subject is not None or one_row_per_subject:
        settings = replace(settings, subject=subject, one_row_per_subject=one_row_per_subject)
    inputs = fill_inputs(read_inputs(report, report_inputs_file), study_inputs)
    target = _target(source, out) if enforce else None
    frame = scan(source, separator=separator)
    examination = examine(frame, settings, folder=study.parent)
    row = {"table": str(source), "study": str(study)} | examination.row()
    if examination.refusal is not None:
        note(f"abaton: {examination.refusal}")
    elif target is not None and examination.release is not None:
        delimiter = separator or (separator_of(source) if source.suffix.lower() == ".csv" else ",")
        dropped = write(frame, examination.table, examination.release, settings, target, separator=delimiter)
        row |= {"out": str(target), "columns_dropped": dropped}
        note(f"wrote {target}; columns dropped: {', '.join(dropped) or 'none'}")
    if report is not None:
        write_report(report, replace(inputs, anonymity=examination.row()))
    emit(row) if json else _print_examination(examination)
    if enforce and examination.refusal is not None:
        raise RefusedError("nothing was written", where=str(source), remedy="see the reason above")
    if fail_if_unsafe and not examination.before.is_satisfied:
        raise RefusedError(
            "the table does not satisfy the study's privacy models", where=str(source), remedy="use --enforce"
        )


def _target(source: Path, out: Path | None) -> Path:
    target = out or Path(f"{source.stem}.anonymous{source.suffix}")
    if target.exists() and source.exists() and target.samefile(source):
        raise SettingsError(
            "the output would replace the input table",
            where=str(target),
            remedy="choose another file with --out",
        )
    return target


def _read_study(path: Path) -> tuple[AnonymitySettings, PrivacyInputs]:
    """Return a study's anonymity settings for a table of records, and the report sections of its document.

    A TOML file with only the section ``[privacy.anonymity]`` is accepted, too.
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
            "the study has no anonymity settings", where=str(path), remedy="add [privacy.anonymity]"
        )
    return study.privacy.anonymity, inputs_of_study(study)


def _is_fragment(path: Path) -> bool:
    from abaton.strict_toml import StrictTomlError, parse_toml_table

    try:
        document = parse_toml_table(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError, StrictTomlError):
        return False
    return "study" not in document


def _print_examination(examination: TableExamination) -> None:
    before, after = examination.before.row(), examination.after.row() if examination.after else {}
    names = {
        "is_satisfied": "satisfies the study's models",
        "records": "records",
        "suppressed": "suppressed records",
    }
    names |= {"subjects": "subjects", "suppressed_subjects": "suppressed subjects"}
    names |= {"classes": "equivalence classes", "k": "k (subjects in the smallest class)"}
    rows: list[tuple[str, Any, Any]] = [(text, before[key], after.get(key)) for key, text in names.items()]
    for i, old in enumerate(before["sensitive"]):
        new = after["sensitive"][i] if after else {}
        rows += [
            (f"{old['column']}: {text.format(**old)}", old[key], new.get(key))
            for key, text in _MODELS.items()
        ]
    for section in ("risk", "utility"):
        new = after.get(section, {})
        rows += [
            (f"{section}: {key.replace('_', ' ')}", value, new.get(key))
            for key, value in before[section].items()
        ]
    method = examination.release.method if examination.release else "not releasable"
    table(f"anonymity ({method})", ["metric", "before", "after"], rows)
    levels = [tuple(quasi.values()) for quasi in examination.row()["quasi_identifiers"]]
    table("quasi-identifiers", ["column", "level", "highest level", "values"], levels)


_MODELS = {
    "distinct": "distinct l",
    "entropy": "entropy l",
    "recursive_c": "recursive c (l = {l})",
    "equal": "t, equal distance",
    "ordered": "t, ordered distance",
    "max_confidence": "highest attribute confidence",
}


_DEFAULT_LIMIT, _MISSING = 20, "–"


def profile(
    source: Path = typer.Argument(
        ..., metavar="SOURCE", help="File or folder of FHIR records, or a site.toml"
    ),
    *,
    study: Path | None = typer.Option(
        None, "--study", help="Show which inputs of this study the records provide"
    ),
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the full profile as HTML to this file"),
    limit: int = typer.Option(
        _DEFAULT_LIMIT,
        "--limit",
        min=1,
        help="Show at most this many codes per resource type; --json and --out include all",
    ),
    json: bool = JsonOption,
) -> None:
    """Count codes, units, coded values and years in records, without values.

    abaton records profile records/ --study study.toml -o profile.html

    Counts of fewer than five subjects (or the study's min_cell_count) are suppressed. Exit code 1: the records provide
    no value for at least one input of the study.
    """
    from abaton.report import render_profile
    from abaton.site import profile_source
    from abaton.study import load_study

    document = load_study(study) if study is not None else None
    data_request = document.data_request(datetime.now(UTC).date()) if document else None
    min_cell_count = document.privacy.min_cell_count if document else 5
    with progress() as bar:
        task_id = bar.add_task("reading", total=None, detail="")
        source_profile = profile_source(
            source,
            document,
            data_request,
            min_cell_count=min_cell_count,
            on_progress=lambda count: bar.update(task_id, completed=count),
        )
    profile_row = source_profile.to_row()
    if out is not None:
        save(out, render_profile(profile_row, source.name))
    if json:
        emit(profile_row)
    else:
        _print_profile(profile_row, limit)
        if out is not None:
            note(f"full profile: {out}")
    if any(entry["state"] == "empty" for entry in profile_row.get("inputs", ())):
        raise typer.Exit(1)


def _print_profile(profile: dict[str, Any], limit: int) -> None:
    from abaton.report.profile_page import code_cells, input_cells

    table("records", ["type", "records"], list(profile["records"].items()))
    for resource_type in dict.fromkeys(code["type"] for code in profile["codes"]):
        codes = [code for code in profile["codes"] if code["type"] == resource_type]
        column_names = ["code", "likely input", "records", "years", "units", "coded values", "other values"]
        _print_filled_columns(resource_type, column_names, [code_cells(code) for code in codes[:limit]])
        if len(codes) > limit:
            note(f"{len(codes) - limit:,} more codes of {resource_type} are not shown: use --json or --out")
    if "study" in profile:
        column_names = [
            "input",
            "state",
            "required codes",
            "records",
            "units and coded values",
            "missing",
            "closest codes present",
        ]
        _print_filled_columns(
            f"inputs of study {profile['study']}",
            column_names,
            [input_cells(entry) for entry in profile["inputs"]],
        )
    if profile["skipped"]:
        table("skipped", ["reason", "count"], list(profile["skipped"].items()))
    if profile["suppressed_codes"]:
        note(f"{profile['suppressed_codes']:,} rare codes outside public terminologies are suppressed")
    if profile["uncounted_records"]:
        note(
            f"{profile['uncounted_records']:,} records have codes beyond the limit of separately counted codes"
        )
    note(f"<{profile['min_cell_count']}: fewer than {profile['min_cell_count']} subjects have such records")


def _print_filled_columns(title: str, column_names: list[str], rows: list[tuple[str, ...]]) -> None:
    """Print a table of `abaton records profile` without its empty columns."""
    filled = [i for i in range(len(column_names)) if any(row[i] != _MISSING for row in rows)]
    table(title, [column_names[i] for i in filled], [[row[i] for i in filled] for row in rows])


def view(
    definition: Path = typer.Argument(..., metavar="VIEW", help="ViewDefinition (SQL on FHIR v2) as JSON"),
    inputs: list[str] = typer.Argument(
        ..., metavar="IN...", help="Files, directories, or - for standard input"
    ),
    *,
    out: Path = typer.Option(
        ..., "--out", "-o", help="Write the table to this file: .parquet, .csv or .ndjson"
    ),
    json: bool = JsonOption,
) -> None:
    """Convert records to a table by a view and print the number of records and rows.

    The table is written completely or not at all, in bounded memory.
    """
    from abaton.views import load_view, resources_of, write_table

    view_definition = load_view(definition)
    read_counts = {"read": 0, "matched": 0}

    def resources() -> Iterator[Mapping[str, Any]]:
        for resource in resources_of(inputs):
            read_counts["read"] += 1
            read_counts["matched"] += resource.get("resourceType") == view_definition.resource
            yield resource

    rows = write_table(view_definition, resources(), out)
    counts = {**read_counts, "rows": rows, "columns": len(view_definition.columns), "out": str(out)}
    if json:
        emit(counts)
    else:
        table(f"view {view_definition.name or definition.name}", list(counts), [tuple(counts.values())])


def conformance(
    folder: Path = typer.Argument(..., help="Folder of the official conformance files"),
    *,
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the report to this file"),
) -> None:
    """Run the official SQL on FHIR tests and print a report in the format of the test runner.

    Exit code 1: a test failed.
    """
    from abaton.views import conformance_report

    test_report = conformance_report(folder)
    results = [test["result"]["passed"] for file in test_report.values() for test in file["tests"]]
    if out:
        import json

        out.write_text(json.dumps(test_report, indent=2) + "\n", "utf-8")
    else:
        emit(test_report)
    note(f"{sum(results)} of {len(results)} tests passed")
    if not all(results):
        raise typer.Exit(1)
