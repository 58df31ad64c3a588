"""``abaton study``: check, show, start and convert study documents."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, save, told_place, write_first
from abaton.cli.runs import JsonOption
from abaton.cli.key_access import DATABASE
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.study import Study

app = typer.Typer(help="Check, show, start and convert study documents.", no_args_is_help=True)

_FILE = typer.Argument(..., help="A study.toml, or an InteropEHRate Bundle in FHIR JSON.", show_default=False)


@app.command()
def check(file: Path = _FILE, *, json: bool = JsonOption) -> None:
    """List everything that is wrong with a study document, with its place and remedy, and what is derived from it.

    Exit code 0: it can be used; 2: it cannot.
    """
    from dataclasses import asdict

    from abaton.study import StudyError, notes_on, read_study

    problems: list[dict[str, Any]] = []
    notes: list[str] = []
    derived: list[dict[str, Any]] = []
    study = None
    try:
        reading = read_study(file, load=True)
        study, derived = reading.study, [asdict(each) for each in reading.derived]
        notes = notes_on(study, _today())
        notes += [f"{path}: a study document does not carry this" for path in reading.passed_over]
    except StudyError as error:
        problems = [asdict(problem) for problem in error.problems]
        if not json:
            typer.echo("\n".join(str(problem) for problem in error.problems))
    if json:
        found = {"file": str(file), "ok": study is not None, "hash": study.hash if study else None}
        emit({**found, "problems": problems, "notes": notes, "derived": derived})
    elif study:
        typer.echo(f"{file}: ok, hash {study.hash}")
        for each in derived:
            typer.echo(f"{file}:{each['line']}: {each['key']}: {each['words']}")
        for remark in notes:
            typer.echo(f"{file}: note: {remark}")
    if problems:
        note(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}")
        raise typer.Exit(SettingsError.exit_code)


@app.command()
def show(file: Path = _FILE, *, json: bool = JsonOption) -> None:
    """Print what a study asks, of whom, and how people are protected."""
    from abaton.study import describe, load_study

    study = load_study(file)
    if json:
        emit({"hash": study.hash, **study.content()})
    else:
        typer.echo(describe(study))


@app.command()
def new(
    file: Path = typer.Argument(Path("study.toml"), help="Where to write it; must not exist yet."),
    *,
    identifier: str = typer.Option("my-study", "--id", help="The study's id."),
    begin: str | None = typer.Option(
        None, "--from", metavar="example", help="Ask nothing and write the example, as without a terminal."
    ),
    json: bool = JsonOption,
) -> None:
    """Ask a few questions and write a first study document in the short form, ready to be changed.

    Common measurements, diagnoses and medicines are found by name, others by code. Without a terminal nothing is
    asked and the example is written.
    """
    import sys

    from abaton.cli.study_wizard import asked_study, example
    from abaton.study import starter, study_from_toml

    if file.exists():  # told before anything is asked
        write_first(file, "")
    asking = begin is None and sys.stdin.isatty() and sys.stderr.isatty()
    answers = asked_study() if asking else example(begin or "example")
    text = starter(file.name, _today(), answers, identifier=identifier)
    study_from_toml(text, str(file))
    write_first(file, text)
    told_place(file, json=json)
    if asking:
        note(f"see what is derived from each line: abaton study check {file}")


@app.command()
def expand(
    file: Path = _FILE,
    *,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="A study.toml to write; without it, the text is printed."
    ),
) -> None:
    """Write a study in the long form: all that is derived from its short lines, as it is hashed and consented to.

    abaton study expand study.toml -o long.toml
    """
    from abaton.study import load_study, write_toml

    study = load_study(file)
    if out is None:
        typer.echo(write_toml(study), nl=False)
        return
    _not_itself(file, out)
    save(out, write_toml(study))
    note(f"{out}: hash {study.hash}")


@app.command()
def export(
    file: Path = _FILE,
    *,
    out: Path = typer.Option(..., "--out", "-o", help="study.toml or study.json, by its ending."),
) -> None:
    """Convert a study document: TOML to FHIR Bundle, or back. The hash stays the same."""
    from abaton.study import load_study

    if out.suffix not in (".toml", ".json"):
        raise SettingsError("the form is not clear", where=str(out), remedy="end the name in .toml or .json")
    _not_itself(file, out)
    study = load_study(file)
    save(out, _written(study, out.suffix))
    note(f"{out}: hash {study.hash}")


@app.command()
def publish(file: Path = _FILE, *, url: str | None = DATABASE) -> None:
    """Publish a study at the centre, for sites to read; a new version needs new consents.

    When it ends, and how long records are kept, follow from its period and retention.
    """
    from abaton.cli.key_access import database
    from abaton.governance import Registry
    from abaton.site import publish as publish_in
    from abaton.study import load_study

    study = load_study(file)
    with database(url, make=True) as opened:
        publish_in(Registry(opened), study, datetime.now(UTC))
    note(f"{study.study.id} is published, document {study.hash}")


@app.command()
def permit(
    file: Path = _FILE,
    document: Path = typer.Argument(
        ..., metavar="PERMIT", help="A TOML file with the keys of consent.permit in site.toml."
    ),
    *,
    url: str | None = DATABASE,
) -> None:
    """Note a data permit at the centre: on it sites may send records without single consents, if it allows that."""
    from abaton.cli.key_access import database
    from abaton.governance import Registry, note_permit
    from abaton.site import publish as publish_in
    from abaton.site import read_permit
    from abaton.study import load_study

    study, given = load_study(file), read_permit(document)
    reason = given.reason(study.hash, study.study.purpose.value, datetime.now(UTC))
    if not reason.allows:
        raise Refused(
            f"the permit does not hold for this study: {reason.value}",
            where=str(document),
            remedy="compare its document, purposes and dates with the study's",
        )
    with database(url, make=True) as opened:
        registry, now = Registry(opened), datetime.now(UTC)
        publish_in(registry, study, now)
        note_permit(registry, study.study.id, study.study.purpose.value, given, now)
    note(f"permit {given.number} is noted for {study.study.id}")


@app.command()
def codes(
    file: Path = _FILE,
    number: int = typer.Argument(
        ..., metavar="NUMBER", min=1, max=100_000, help="How many.", show_default=False
    ),
    *,
    days: int = typer.Option(90, "--days", min=1, max=3650, help="How long they can be used."),
    url: str | None = DATABASE,
    json: bool = JsonOption,
) -> None:
    """Make one-time codes with which people may take part themselves; print them, one in a line.

    The study says who may take part under 'persons'. The centre keeps the codes' fingerprints only: print them now.
    """
    import secrets

    from abaton.cli.key_access import database
    from abaton.governance.citizen_enrolment import make_codes
    from abaton.study import load_study

    study = load_study(file)
    if study.persons is None or study.persons.admission != "code":
        raise Refused(
            "the study asks nobody for a code",
            where=str(file),
            remedy="write [persons] with admission = 'code'",
        )
    with database(url) as opened:
        made = make_codes(opened, study.study.id, number, secrets.token_bytes, datetime.now(UTC), days)
    if json:
        emit({"study": study.study.id, "days": days, "codes": made})
        return
    for code in made:
        typer.echo(code)
    note(f"{len(made)} codes for {study.study.id}, good for {days} days")


def _not_itself(file: Path, out: Path) -> None:
    if out.exists() and file.exists() and out.samefile(file):
        raise SettingsError(
            "a study cannot be written onto itself", where=str(out), remedy="choose another name"
        )


def _written(study: Study, suffix: str) -> str:
    import json

    from abaton.study import write_bundle, write_toml

    if suffix == ".toml":
        return write_toml(study)
    return json.dumps(write_bundle(study), indent=2, ensure_ascii=False) + "\n"


def _today() -> Any:
    return datetime.now(UTC).date()
