"""The root of the command line: groups, version, and errors as one line with an exit code."""

from __future__ import annotations

import sys

import typer

from abaton import __version__
from abaton.cli import (
    audit,
    bench,
    codec,
    compare,
    dashboard,
    federation,
    keys,
    lab,
    records,
    retention,
    runs,
    sealing,
    serve,
    site,
    study,
    vault,
)
from abaton.cli.output import complain, emit
from abaton.errors import AbatonError

app = typer.Typer(
    name="abaton",
    help="A health study from consent to community model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(federation.demo)
app.command()(federation.run)
app.command()(federation.report)
app.command()(compare.compare)
for command in (runs.runs, runs.show, runs.resume, runs.prune, bench.bench):
    app.command()(command)
app.command()(serve.serve)
app.command()(sealing.seal)
app.command("open")(sealing.open_sealed)
app.command()(retention.retention)
app.command()(retention.withdrawals)
app.add_typer(audit.app, name="audit")
app.add_typer(codec.app, name="codec")
app.add_typer(dashboard.app, name="dashboard")
app.add_typer(keys.app, name="keys")
app.add_typer(lab.app, name="lab")
app.add_typer(records.app, name="records")
app.add_typer(site.app, name="site")
app.add_typer(study.app, name="study")
app.add_typer(vault.app, name="vault")


@app.command()
def version(*, json: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
    """Print which Abaton this is."""
    emit({"abaton": __version__}) if json else typer.echo(f"abaton {__version__}")


def main() -> None:
    """Run the command line; every expected error becomes one line and an exit code."""
    try:
        app()
    except AbatonError as error:
        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
