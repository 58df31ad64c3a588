"""``abaton study``: check, show, start and convert study documents."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, save, write_first
from abaton.cli.secrets import DATABASE
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.study import Study

app = typer.Typer(help="Check, show, start and convert study documents.", no_args_is_help=True)

_FILE = typer.Argument(..., help="A study.toml, or an InteropEHRate Bundle in FHIR JSON.", show_default=False)
_JSON = typer.Option(False, "--json", help="Print as JSON.")


@app.command()
def check(file: Path = _FILE, *, json: bool = _JSON) -> None:
    """List everything that is wrong with a study document, with its place and remedy.

    Exit code 0: it can be used; 2: it cannot.
    """
    from dataclasses import asdict

    from abaton.study import StudyError, notes_on, read_study

    problems: list[dict[str, Any]] = []
    notes: list[str] = []
    study = None
    try:
        reading = read_study(file)
        study = reading.study
        notes = notes_on(study, _today())
        notes += [f"{path}: a study document does not carry this" for path in reading.passed_over]
    except StudyError as error:
        problems = [asdict(problem) for problem in error.problems]
        if not json:
            typer.echo("\n".join(str(problem) for problem in error.problems))
    if json:
        found = {"file": str(file), "ok": study is not None, "hash": study.hash if study else None}
        emit({**found, "problems": problems, "notes": notes})
    elif study:
        typer.echo(f"{file}: ok, hash {study.hash}")
        for remark in notes:
            typer.echo(f"{file}: note: {remark}")
    if problems:
        note(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}")
        raise typer.Exit(SettingsError.exit_code)


@app.command()
def show(file: Path = _FILE, *, json: bool = _JSON) -> None:
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
) -> None:
    """Write a first study document with comments, ready to be changed."""
    from abaton.study import starter, study_from_toml

    text = starter(file.name, _today(), identifier=identifier)
    study_from_toml(text, str(file))
    write_first(file, text)
    typer.echo(str(file))


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
    if out.exists() and file.exists() and out.samefile(file):
        raise SettingsError(
            "a study cannot be exported onto itself", where=str(out), remedy="choose another name"
        )
    study = load_study(file)
    save(out, _written(study, out.suffix))
    note(f"{out}: hash {study.hash}")


@app.command()
def publish(file: Path = _FILE, *, url: str | None = DATABASE) -> None:
    """Publish a study at the centre, for sites to read; a new version needs new consents.

    When it ends, and how long records are kept, follow from its period and retention.
    """
    from abaton.cli.secrets import database
    from abaton.governance import Registry
    from abaton.site import publish as publish_in
    from abaton.study import load_study

    study = load_study(file)
    with database(url) as opened:
        publish_in(Registry(opened), study, datetime.now(UTC))
    note(f"{study.study.id} is published, document {study.hash}")


def _written(study: Study, suffix: str) -> str:
    import json

    from abaton.study import write_bundle, write_toml

    if suffix == ".toml":
        return write_toml(study)
    return json.dumps(write_bundle(study), indent=2, ensure_ascii=False) + "\n"


def _today() -> Any:
    return datetime.now(UTC).date()
