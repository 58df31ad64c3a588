"""``abaton study``: study documents."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.key_access import DATABASE
from abaton.cli.output import emit, note, print_path, save, write_first
from abaton.cli.runs import JsonOption
from abaton.errors import RefusedError, SettingsError

if TYPE_CHECKING:
    from abaton.study import Study

app = typer.Typer(help="Write, check, convert and publish study documents.", no_args_is_help=True)

_FILE = typer.Argument(..., help="study.toml, or InteropEHRate Bundle as FHIR JSON", show_default=False)


@app.command()
def check(file: Path = _FILE, *, json: bool = JsonOption) -> None:
    """List all problems of a study document with line and remedy, or the sections derived from it.

    Exit code 2: the document has problems.
    """
    from dataclasses import asdict

    from abaton.study import StudyError, lint_study, read_study

    problems: list[dict[str, Any]] = []
    remarks: list[str] = []
    derived: list[dict[str, Any]] = []
    study = None
    try:
        reading = read_study(file, load=True)
        study, derived = reading.study, [asdict(entry) for entry in reading.derived]
        remarks = lint_study(study, _today())
        remarks += [f"{path}: ignored; not a key of study documents" for path in reading.ignored_keys]
    except StudyError as error:
        problems = [asdict(problem) for problem in error.problems]
        if not json:
            typer.echo("\n".join(str(problem) for problem in error.problems))
    if json:
        summary = {"file": str(file), "ok": study is not None, "hash": study.hash if study else None}
        emit({**summary, "problems": problems, "notes": remarks, "derived": derived})
    elif study:
        typer.echo(f"{file}: ok, hash {study.hash}")
        for entry in derived:
            typer.echo(f"{file}:{entry['line']}: {entry['key']}: {entry['description']}")
        for remark in remarks:
            typer.echo(f"{file}: note: {remark}")
    if problems:
        note(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}")
        raise typer.Exit(SettingsError.exit_code)


@app.command()
def show(file: Path = _FILE, *, json: bool = JsonOption) -> None:
    """Print a study as text: question, eligibility, data, protection, training."""
    from abaton.study import describe, load_study

    study = load_study(file)
    if json:
        emit({"hash": study.hash, **study.content()})
    else:
        typer.echo(describe(study))


@app.command()
def new(
    file: Path = typer.Argument(Path("study.toml"), help="Path of the new file"),
    *,
    identifier: str = typer.Option("my-study", "--id", help="Id of the study"),
    example: bool = typer.Option(False, "--example", help="Write the example without prompting"),
    json: bool = JsonOption,
) -> None:
    """Prompt for the main settings and write a study document in shorthand as a template.

    Common measurements, diagnoses and medicines are found by name, others by code. Without a terminal the example is
    written.
    """
    import sys

    from abaton.cli.study_wizard import prompt_study
    from abaton.study import study_from_toml, study_template
    from abaton.study.template import TemplateAnswers

    if file.exists():  # report it before prompting
        write_first(file, "")
    is_interactive = not example and sys.stdin.isatty() and sys.stderr.isatty()
    answers = prompt_study() if is_interactive else TemplateAnswers()
    text = study_template(file.name, _today(), answers, identifier=identifier)
    study_from_toml(text, str(file))
    write_first(file, text)
    print_path(file, json=json)
    if is_interactive:
        note(f"to see what is derived from each line: abaton study check {file}")


@app.command()
def expand(
    file: Path = _FILE,
    *,
    out: Path | None = typer.Option(None, "--out", "-o", help="Write to this file (default: print)"),
) -> None:
    """Write a study in the full form, with everything that is derived from its shorthand; the hash stays the same.

    abaton study expand study.toml -o full.toml
    """
    from abaton.study import load_study, write_toml

    study = load_study(file)
    if out is None:
        typer.echo(write_toml(study), nl=False)
        return
    _check_other_file(file, out)
    save(out, write_toml(study))
    note(f"{out}: hash {study.hash}")


@app.command()
def export(
    file: Path = _FILE,
    *,
    out: Path = typer.Option(
        ..., "--out", "-o", help="Write to this file: .toml, or .json for a FHIR Bundle"
    ),
) -> None:
    """Convert a study document from TOML to a FHIR Bundle or back; the hash stays the same."""
    from abaton.study import load_study

    if out.suffix not in (".toml", ".json"):
        raise SettingsError(
            f"'{out.suffix}' is not a suffix of a study", where=str(out), remedy="use .toml or .json"
        )
    _check_other_file(file, out)
    study = load_study(file)
    save(out, _to_text(study, out.suffix))
    note(f"{out}: hash {study.hash}")


@app.command()
def publish(file: Path = _FILE, *, url: str | None = DATABASE) -> None:
    """Publish a study at the centre for sites to read; a changed document requires new consents.

    Its end and the retention of records follow from study.period and study.retention.
    """
    from abaton.cli.key_access import database
    from abaton.governance import ConsentRegistry
    from abaton.site import publish as publish_in
    from abaton.study import load_study

    study = load_study(file)
    with database(url, create=True) as opened:
        publish_in(ConsentRegistry(opened), study, datetime.now(UTC))
    note(f"published {study.study.id}, document {study.hash}")


@app.command()
def permit(
    file: Path = _FILE,
    document: Path = typer.Argument(
        ..., metavar="PERMIT", help="TOML file with the keys of consent.permit in site.toml"
    ),
    *,
    url: str | None = DATABASE,
) -> None:
    """Record a data permit at the centre; if it allows, sites may send records without individual consents."""
    from abaton.cli.key_access import database
    from abaton.governance import ConsentRegistry, record_permit
    from abaton.site import publish as publish_in
    from abaton.site import read_permit
    from abaton.study import load_study

    study, data_permit = load_study(file), read_permit(document)
    reason = data_permit.reason(study.hash, study.study.purpose.value, datetime.now(UTC))
    if not reason.permits:
        raise RefusedError(
            f"the permit does not apply to this study: {reason.value}",
            where=str(document),
            remedy="compare its document, purposes and dates with those of the study",
        )
    with database(url, create=True) as opened:
        registry, now = ConsentRegistry(opened), datetime.now(UTC)
        publish_in(registry, study, now)
        record_permit(registry, study.study.id, study.study.purpose.value, data_permit, now)
    note(f"recorded permit {data_permit.number} for {study.study.id}")


@app.command("enrolment-codes")
def enrolment_codes(
    file: Path = _FILE,
    count: int = typer.Argument(
        ..., metavar="COUNT", min=1, max=100_000, help="Number of codes", show_default=False
    ),
    *,
    days: int = typer.Option(90, "--days", min=1, max=3650, help="Days until the codes expire"),
    url: str | None = DATABASE,
    json: bool = JsonOption,
) -> None:
    """Create one-time codes for citizens who enrol themselves, and print one per line.

    The centre stores digests only; the codes cannot be printed again.
    """
    import secrets

    from abaton.cli.key_access import database
    from abaton.governance.citizen_enrolment import issue_codes
    from abaton.study import load_study

    study = load_study(file)
    if study.citizens is None or study.citizens.admission != "code":
        raise RefusedError(
            "the study does not admit citizens by code",
            where=str(file),
            remedy="add [citizens] with admission = 'code'",
        )
    with database(url) as opened:
        codes = issue_codes(opened, study.study.id, count, secrets.token_bytes, datetime.now(UTC), days)
    if json:
        emit({"study": study.study.id, "days": days, "codes": codes})
        return
    for code in codes:
        typer.echo(code)
    note(f"{len(codes)} codes for {study.study.id}, valid for {days} days")


def _check_other_file(file: Path, out: Path) -> None:
    if out.exists() and file.exists() and out.samefile(file):
        raise SettingsError("the output is the input file", where=str(out), remedy="choose another path")


def _to_text(study: Study, suffix: str) -> str:
    import json

    from abaton.study import write_bundle, write_toml

    if suffix == ".toml":
        return write_toml(study)
    return json.dumps(write_bundle(study), indent=2, ensure_ascii=False) + "\n"


def _today() -> Any:
    return datetime.now(UTC).date()
