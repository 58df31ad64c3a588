"""``abaton site``: a hospital's side of a study.

``abaton site map``: a first mapping of tables, guessed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli import membership, site_intake
from abaton.cli.output import emit, note, table, told_place, write_first
from abaton.cli.runs import JsonOption
from abaton.errors import AbatonError, SettingsError

if TYPE_CHECKING:
    from abaton.site import Check


def propose(
    files: list[Path] = typer.Argument(
        ..., metavar="FILE...", help="The tables, or folders of them.", show_default=False
    ),
    *,
    study: Path | None = typer.Option(
        None, "--study", help="Also know columns by the names and codes of this study's inputs."
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write the mapping here; must not exist yet. Otherwise it is printed."
    ),
    json: bool = JsonOption,
) -> None:
    """Propose what the columns of tables mean, and say what was guessed and what was left out.

    Names of columns, forms of dates, codes and the size of numbers are looked at, in the first 5,000 rows. Words of a
    column stand in the mapping only if they are few and each is seen at least 5 times. Read every line of it.
    """
    from abaton.site.sources.tabular.data_dictionary import asked_by, things_of
    from abaton.site.sources.tabular.mapping_suggestion import propose as guess
    from abaton.study import load_study

    document = load_study(study) if study is not None else None
    made = guess(files, things_of(document), asked_by(document)) if document is not None else guess(files)
    if out is not None:
        write_first(out, made.text)
    if json:
        told = [{"file": g.file, "column": g.column, "means": g.means, "why": g.why} for g in made.guesses]
        emit({"mapping": made.text, "guesses": told, "file": str(out) if out else None})
        return
    if out is None:
        typer.echo(made.text)
        for g in made.guesses:
            note(f"{g.file}, {g.column or 'whole'}: {g.means} ({g.why})")
        return
    rows = [(g.file, g.column, g.means, g.why) for g in made.guesses]
    table(f"guessed, and written to {out}", ["file", "column", "means", "because"], rows)


app = typer.Typer(
    help="A site's document, what it has for a study, and its dealings with the centre.", no_args_is_help=True
)
for command in (
    site_intake.enrol,
    site_intake.consents,
    site_intake.send,
    site_intake.withdraw,
    site_intake.status,
    membership.join,
):
    app.command()(command)
app.command("map")(propose)


_APPLIES = ("rows of an update", "scores", "privacy budget", "small sites")


@app.command()
def check(
    study: Path = typer.Argument(..., metavar="STUDY", help="The study document.", show_default=False),
    *,
    site: Path = typer.Option(Path("site.toml"), "--site", help="The site's document."),
    json: bool = JsonOption,
) -> None:
    """Count who is read, eligible, consented and kept for a study, and why others are not; never a value.

    Numbers of people below the smallest count are masked. Exit code 1: nobody comes through.
    """
    from abaton.site import SiteError, check_site, load_site, open_site
    from abaton.study import load_study
    from abaton.study_run.policy_text import explained

    document = load_study(study)
    try:
        file = load_site(site)
        found = check_site(open_site(file, document, datetime.now(UTC), step=note))
    except SiteError as error:
        if json:
            emit({"ok": False, "problems": [str(problem) for problem in error.problems]})
        for problem in error.problems:
            note(str(problem))
        raise typer.Exit(SettingsError.exit_code) from None
    if json:
        emit(
            {
                "site": file.document.site.id,
                "study": document.study.id,
                "hash": document.hash,
                **found.row(),
                "policy": {rule.about: rule.holds for rule in explained(file, document)},
            }
        )
    else:
        _print(found, f"{file.document.site.name} in {document.study.title}")
        applies = [
            f"{rule.about} {rule.holds}" for rule in explained(file, document) if rule.about in _APPLIES
        ]
        note(f"policy: {'; '.join(applies)}; 'abaton site policy STUDY --explain' says what that means")
    if not found.usable:
        raise typer.Exit(1)


@app.command()
def policy(
    study: Path | None = typer.Argument(
        None,
        metavar="[STUDY]",
        help="A study document: what is derived from it is shown, too.",
        show_default=False,
    ),
    *,
    site: Path = typer.Option(Path("site.toml"), "--site", help="The site's document."),
    explain: bool = typer.Option(
        False, "--explain", help="In plain words, for somebody who reads no settings."
    ),
    json: bool = JsonOption,
) -> None:
    """Show what a centre may ask of the site, what may leave it, and what is refused.

    The rules hold whichever engine carries a study, and whatever the centre says.

    The key that the site signs its models with is made if there is none yet.
    """
    from dataclasses import asdict

    from abaton.site import load_site
    from abaton.study import load_study
    from abaton.study_run.model_signatures import signing_key
    from abaton.study_run.policy_text import explained, in_words

    file = load_site(site)
    try:
        signs = signing_key(file).id
    except AbatonError as error:  # whoever may not read keys may read the rules
        note(f"the site's own signature is not shown: {error}")
        signs = ""
    rules = explained(file, None if study is None else load_study(study), signs)
    if json:
        emit([asdict(rule) for rule in rules])
    elif explain:
        typer.echo("\n\n".join(in_words(rules)))
    else:
        table(
            f"the policy of {file.document.site.name}", ["rule", "holds"], [(r.about, r.holds) for r in rules]
        )


@app.command()
def new(
    file: Path = typer.Argument(Path("site.toml"), help="Where to write it; must not exist yet."),
    *,
    identifier: str = typer.Option("my-site", "--id", help="The site's id."),
    kind: str = typer.Option("ndjson", help="Where records are: ndjson, directory, csv, omop, fhir or bulk."),
    records: str = typer.Option(
        "", help="The folder, file, server or database of the records; an example stands there otherwise."
    ),
    json: bool = JsonOption,
) -> None:
    """Write a first site document with comments, ready to be changed."""
    from abaton.site import site_from_toml, starter

    text = starter(file.name, identifier=identifier, kind=kind, place=records)
    site_from_toml(text, str(file))
    write_first(file, text)
    told_place(file, json=json)


def _print(found: Check, title: str) -> None:
    rows: list[tuple[str, str, str]] = []
    for step in found.steps:
        rows += [("", why, cell.text) for why, cell in step.reasons.items()]
        rows.append((step.stage.value, "", step.reached.text))
    table(title, ["stage", "left out because", "subjects"], rows)
    table("records read", ["type", "records"], list(found.read.items()))
    if found.left_out:
        table("records kept back", ["what", "records"], list(found.left_out.items()))
    if found.set_aside:
        aside = [(why, count, ", ".join(places)) for why, (count, places) in found.set_aside.items()]
        table("set aside", ["reason", "count", "where"], aside)
    for remark in found.remarks:
        note(remark)
    note(f"numbers of people below {found.floor} are not told; neither is what would give them away")
