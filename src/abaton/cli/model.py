"""``abaton model``: use what a run has learned."""

from __future__ import annotations

from json import dumps
from pathlib import Path

import typer

from abaton.cli.output import emit, note, save
from abaton.cli.runs import JsonOption, RunArgument, StoreOption, opened_store
from abaton.cli.key_access import PASSPHRASE_ENV, PASSPHRASE_FILE, ring
from abaton.errors import SettingsError

CARD = "model-card"
"""The kind of a signed statement that is a model card."""

app = typer.Typer(help="Use what a run has learned.", no_args_is_help=True)


@app.command()
def export(
    run: str = RunArgument,
    *,
    out: Path = typer.Option(
        ..., "--out", "-o", help="The file: .onnx, .safetensors or .skops (scikit-learn), by its ending."
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Write the community model to a file that other programs use.

    Filling of missing values and scaling are inside: the file takes the study's columns as they are, in order, with
    NaN where a value is missing, and predicts what the run predicts.
    """
    from abaton.federation import Run
    from abaton.deployment import export as write

    with opened_store(store) as opened:
        made = write(Run(opened, run), out)
    told = {"out": str(out), "columns": list(made.columns), "classes": list(made.classes), **made.about}
    if json:
        emit(told)
    else:
        note(f"{out}: version {told['version']} of run {told['run']}, reads {', '.join(made.columns)}")


@app.command()
def predict(
    run: str = RunArgument,
    source: Path = typer.Argument(
        help="The people's records: a FHIR Bundle, an NDJSON file, a folder of them, or a site.toml that says where "
        "they are."
    ),
    *,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="A CSV file for the predictions; without it, a table."
    ),
    site: str = typer.Option(
        "", "--site-name", help="Ask this site's own model instead of the community model."
    ),
    way: str = typer.Option(
        "interpolate", "--way", help="How the site made it: recalibrate, fine-tune, interpolate."
    ),
    anyway: bool = typer.Option(
        False, "--anyway", help="Ask the model in spite of what does not fit; the remarks say what."
    ),
    ground: str = typer.Option("", "--ground", help="Why these records may be read, for the audit chain."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Ask the model about new people, whose records go the study's own way.

    They are held against the study's eligibility, de-identified, viewed and made into columns as the study says;
    nothing of them is kept. Wrong units, missing columns and people unlike those whom the model learned from are told,
    one line each, and refused if they are grave. 'calibrated' is corrected by how the model did on the run's test
    subjects.
    """
    from datetime import UTC, datetime
    from secrets import token_bytes

    from abaton.cli.output import complain, table
    from abaton.federation import Run
    from abaton.deployment import Unfit
    from abaton.deployment import predict as ask
    from abaton.deployment.new_patients import GROUND

    with opened_store(store) as opened:
        try:
            made = ask(
                Run(opened, run),
                source,
                datetime.now(UTC),
                token_bytes(32),
                site=site,
                way=way,
                anyway=anyway,
                ground=ground or GROUND,
            )
        except Unfit as unfit:
            for each in unfit.misfits:
                complain(f"{each} ({source})")
            complain(f"nothing was foretold; {unfit.remedy}")
            raise typer.Exit(1) from None
    for each in made.misfits:
        note(f"remark: {each}")
    if out is not None:
        save(out, made.csv())
        note(f"{out}: {len(made.people)} people, {made.about['model']} model of run {made.about['run']}")
    if json:
        emit(made.row())
    elif out is None:
        shown = made.names[1:] if len(made.names) == 2 else made.names
        places = [made.names.index(name) for name in shown]
        heads = [f"{kind} {name}" for name in shown for kind in ("said", "calibrated")]
        rows = [
            (
                each.id,
                *(told[i] for i in places for told in (each.said, each.calibrated)),
                ", ".join(each.filled) or "–",
                ", ".join(each.unusual) or "–",
            )
            for each in made.people
        ]
        title = f"{made.about['model']} model of run {made.about['run']}, version {made.about['version']}"
        table(title, ("person", *heads, "filled", "unusual"), rows)


@app.command()
def card(
    run: str = RunArgument,
    *,
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        help="The file: .md, .html or .json, by its ending; without it, Markdown is printed.",
    ),
    keys: Path | None = typer.Option(
        None,
        "--keys",
        help="Your private key file: the card is signed, as JSON, so that changes are noticed.",
    ),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Write what the model is for, whom it was learned from, how good it is and what it does not promise."""
    from abaton.federation import Run
    from abaton.report import card_markdown, card_page
    from abaton.deployment import card_of

    as_json = json or keys is not None or (out is not None and out.suffix == ".json")
    if out is not None and out.suffix not in (".md", ".html", ".json"):
        raise SettingsError(
            f"there is no form '{out.suffix}' of a card",
            where=str(out),
            remedy="end it in .md, .html or .json",
        )
    write = card_page if out is not None and out.suffix == ".html" else card_markdown
    with opened_store(store) as opened:
        made = card_of(Run(opened, run))
    if keys is not None:
        from abaton.governance.signed_statements import state

        made = state(ring(keys, passphrase_file, passphrase_env).signing, CARD, made)
    text = dumps(made, indent=2, ensure_ascii=False) + "\n" if as_json else write(made)
    if out is None:
        typer.echo(text, nl=False)
    else:
        save(out, text)
        note(f"{out}: the card of run {run}")
