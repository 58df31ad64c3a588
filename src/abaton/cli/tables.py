"""``abaton site map``: a first mapping of tables, guessed."""

from __future__ import annotations

from pathlib import Path

import typer

from abaton.cli.output import emit, note, table, write_first
from abaton.cli.runs import JsonOption


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
    from abaton.site.sources.tabular.mapping_suggestion import propose as guess
    from abaton.site.sources.tabular.data_dictionary import asked_by, things_of
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
