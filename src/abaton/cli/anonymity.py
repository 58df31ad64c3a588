"""``abaton records anonymity``: how well each person hides in a table, and a table in which they do."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, table
from abaton.cli.privacy_inputs import completed, facts_of, read_inputs, write_report
from abaton.cli.runs import JsonOption
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.records.anonymity.outcome import Outcome
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
