"""``abaton citizen``: the page on which people take part themselves, as static files."""

from __future__ import annotations

from pathlib import Path

import typer

from abaton.cli.output import emit, note
from abaton.cli.runs import JsonOption
from abaton.errors import Refused

app = typer.Typer(help="The page on which people take part with their own records.", no_args_is_help=True)


@app.command()
def build(
    files: list[Path] = typer.Argument(..., metavar="STUDY...", help="The study documents that it is for."),
    *,
    out: Path = typer.Option(..., "--out", "-o", help="A new folder."),
    json: bool = JsonOption,
) -> None:
    """Write the citizen's page as static files, for a web server that passes /v1 on to the centre's intake.

    The intake serves the same page itself (abaton serve intake --citizen). Prints the fingerprint of the build,
    which is the same for everybody who builds this version.
    """
    from abaton.citizen.pages import Page, write_page
    from abaton.study import load_study

    studies = []
    for file in files:
        study = load_study(file)
        if study.persons is None:
            raise Refused(
                "people cannot take part in this study themselves",
                where=str(file),
                remedy="write [persons] in it",
            )
        studies.append(study.study.id)
    page = Page.read()
    written = write_page(page, studies, out)
    if json:
        emit({"build": page.build, "files": written, "out": str(out)})
    else:
        typer.echo(page.build)
        note(f"{len(written)} files in {out}; the page of a study is at /take-part/STUDY")
