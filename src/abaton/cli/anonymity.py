"""``abaton records anonymity``: how well each person hides in a table, and a table in which they do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, table
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.records.anonymity.outcome import Outcome
    from abaton.report import PrivacyInputs, StudyFacts


def anonymity(
    source: Path = typer.Argument(..., metavar="TABLE", help="CSV, TSV, Parquet or NDJSON."),
    *,
    study: Path = typer.Option(..., "--study", help="The study document (TOML)."),
    enforce: bool = typer.Option(False, "--enforce", help="Write the anonymous table."),
    out: Path | None = typer.Option(None, "--out", help="Where to (default: NAME.anonymous.SUFFIX here)."),
    report: Path | None = typer.Option(None, "--report", help="Write the privacy report (.html or .json)."),
    supplied: Path | None = typer.Option(
        None, "--report-inputs", help="JSON with what other parts know: study, consents, checks, custody ..."
    ),
    gate: bool = typer.Option(False, "--gate", help="Fail with code 3 if the table as it is falls short."),
    separator: str = typer.Option("", "--separator", help="Of a CSV (default: found in its header)."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Measure how anonymous a table is and, with --enforce, make it as anonymous as the study asks.

    The search finds the coarsening that loses least; rows that stay rare are left out, up to the study's
    limit. Without --enforce nothing is written: the table's measures and the best coarsening are shown.
    """
    from abaton.records.anonymity import examine, read_settings
    from abaton.records.anonymity.files import scan, separator_of, write

    settings = read_settings(study)
    inputs = _inputs(report, supplied)
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
        _report(report, replace(inputs, anonymity=outcome.row(), study=_pinned(inputs.study, study)))
    emit(row) if json else _print(outcome)
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


def _inputs(report: Path | None, supplied: Path | None) -> PrivacyInputs:
    """What other parts supplied, checked before anything is written."""
    import json

    from abaton.report import PrivacyInputs, inputs_from

    if report is not None and report.suffix.lower() not in (".html", ".json"):
        raise SettingsError("a report is .html or .json", where=str(report), remedy="change its ending")
    if supplied is None:
        return PrivacyInputs()
    try:
        parts = json.loads(supplied.read_text("utf-8"))
    except (OSError, ValueError):
        raise SettingsError("the report's inputs are not readable JSON", where=str(supplied)) from None
    if not isinstance(parts, dict):
        raise SettingsError("the report's inputs must be one JSON object", where=str(supplied))
    return inputs_from(parts, where=str(supplied))


def _pinned(facts: StudyFacts | None, study: Path) -> StudyFacts:
    """The study's facts with the hash of the very document that was used."""
    import hashlib

    from abaton.report import StudyFacts

    return replace(facts or StudyFacts(), document_sha256=hashlib.sha256(study.read_bytes()).hexdigest())


def _report(path: Path, inputs: PrivacyInputs) -> None:
    import json
    from datetime import UTC, datetime

    from abaton import __version__
    from abaton.records.anonymity.files import replacing
    from abaton.report import privacy_page, privacy_report

    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    made = privacy_report(inputs, software=f"abaton {__version__}", made_at=made_at)
    text = (
        privacy_page(made)
        if path.suffix.lower() == ".html"
        else json.dumps(made, indent=2, ensure_ascii=False)
    )
    with replacing(path) as partial:
        partial.write_text(text, "utf-8")
    note(f"wrote {path}")


def _print(outcome: Outcome) -> None:
    before, after = outcome.before.row(), outcome.after.row() if outcome.after else {}
    names = {"holds": "satisfies the study", "records": "records", "suppressed": "left out"}
    names |= {"classes": "classes", "k": "k (smallest class)"}
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
