"""``abaton model``: export, predictions and model card."""

from __future__ import annotations

from json import dumps
from pathlib import Path

import typer

from abaton.cli.key_access import PASSPHRASE_ENV, PASSPHRASE_FILE, open_key_set
from abaton.cli.output import emit, note, save
from abaton.cli.runs import JsonOption, RunArgument, StoreOption, opened_store
from abaton.errors import SettingsError

CARD = "model-card"
"""Kind of the signed statement of a model card."""

app = typer.Typer(help="Export a model, predict, write the model card.", no_args_is_help=True)


@app.command()
def export(
    run: str = RunArgument,
    *,
    out: Path = typer.Option(
        ..., "--out", "-o", help="Write to this file: .onnx, .safetensors or .skops (scikit-learn)"
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Export the community model as ONNX, safetensors or a scikit-learn pipeline.

    Imputation and scaling are included: the inputs are the study's columns in order, with NaN for missing values.
    """
    from abaton.deployment import export_model as write
    from abaton.federation import Run

    with opened_store(store) as opened:
        model = write(Run(opened, run), out)
    summary = {
        "out": str(out),
        "columns": list(model.columns),
        "classes": list(model.classes),
        **model.metadata,
    }
    if json:
        emit(summary)
    else:
        note(
            f"{out}: version {summary['version']} of run {summary['run']}, inputs {', '.join(model.columns)}"
        )


@app.command()
def predict(
    run: str = RunArgument,
    source: Path = typer.Argument(
        help="Records: a FHIR Bundle, an NDJSON file, a folder of them, or a site.toml"
    ),
    *,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write the predictions as CSV to this file (default: print a table)"
    ),
    site: str = typer.Option("", "--site-name", help="Use the personal model of this site"),
    personalisation: str = typer.Option(
        "interpolate",
        "--personalisation",
        help="Method of the personal model: recalibrate, fine-tune, interpolate",
    ),
    force: bool = typer.Option(False, "--force", help="Predict in spite of blocking applicability issues"),
    legal_basis: str = typer.Option("", "--legal-basis", help="Legal basis of the access, for the audit log"),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Predict for new patients, whose records pass the study's pipeline; no record is stored.

    Applicability issues (units, missing inputs, shifted distributions) are printed; serious ones block the prediction
    (exit code 1). Calibrated predictions are corrected on the run's test subjects.
    """
    from datetime import UTC, datetime
    from secrets import token_bytes

    from abaton.cli.output import print_error, table
    from abaton.deployment import NotApplicableError
    from abaton.deployment import predict as predict_patients
    from abaton.deployment.new_patients import DEFAULT_LEGAL_BASIS
    from abaton.federation import Run

    with opened_store(store) as opened:
        try:
            predictions = predict_patients(
                Run(opened, run),
                source,
                datetime.now(UTC),
                token_bytes(32),
                site=site,
                personalisation=personalisation,
                force=force,
                legal_basis=legal_basis or DEFAULT_LEGAL_BASIS,
            )
        except NotApplicableError as error:
            for issue in error.issues:
                print_error(f"{issue} ({source})")
            print_error(f"no predictions were made; {error.remedy}")
            raise typer.Exit(1) from None
    metadata = predictions.metadata
    for issue in predictions.issues:
        note(f"warning: {issue}")
    if metadata["recalibration"] not in (None, "fitted"):
        note(f"predictions are not recalibrated: {metadata['recalibration']}")
    if out is not None:
        save(out, predictions.csv())
        note(
            f"{out}: {len(predictions.patients)} patients, {metadata['model']} model of run {metadata['run']}"
        )
    if json:
        emit(predictions.row())
    elif out is None:
        shown = predictions.names[1:] if len(predictions.names) == 2 else predictions.names
        indices = [predictions.names.index(name) for name in shown]
        column_names = [f"{prefix} {name}" for name in shown for prefix in ("predicted", "calibrated")]
        rows = [
            (
                patient.id,
                *(values[i] for i in indices for values in (patient.predicted, patient.calibrated)),
                ", ".join(patient.imputed) or "–",
                ", ".join(patient.unusual) or "–",
            )
            for patient in predictions.patients
        ]
        title = f"{metadata['model']} model of run {metadata['run']}, version {metadata['version']}"
        table(title, ("patient", *column_names, "imputed", "unusual"), rows)


@app.command()
def card(
    run: str = RunArgument,
    *,
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        help="Write to this file: .md, .html or .json (default: print Markdown)",
    ),
    keys: Path | None = typer.Option(
        None,
        "--keys",
        help="Private key file; sign the card, as JSON",
    ),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Write the model card: intended use, training subjects, performance, limitations, provenance."""
    from abaton.deployment import make_model_card
    from abaton.federation import Run
    from abaton.report import render_card_html, render_card_markdown

    as_json = json or keys is not None or (out is not None and out.suffix == ".json")
    if out is not None and out.suffix not in (".md", ".html", ".json"):
        raise SettingsError(
            f"'{out.suffix}' is not a suffix of a model card",
            where=str(out),
            remedy="use .md, .html or .json",
        )
    write = render_card_html if out is not None and out.suffix == ".html" else render_card_markdown
    with opened_store(store) as opened:
        card_data = make_model_card(Run(opened, run))
    if keys is not None:
        from abaton.governance.signed_statements import sign_statement

        card_data = sign_statement(
            open_key_set(keys, passphrase_file, passphrase_env).signing_key, CARD, card_data
        )
    text = dumps(card_data, indent=2, ensure_ascii=False) + "\n" if as_json else write(card_data)
    if out is None:
        typer.echo(text, nl=False)
    else:
        save(out, text)
        note(f"{out}: model card of run {run}")
