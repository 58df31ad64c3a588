"""Root of the command line: command groups, version, errors as one line with an exit code."""

from __future__ import annotations

import re
import shlex
import sys
from difflib import get_close_matches

import click
import typer
import typer.core

from abaton import __version__
from abaton.cli import (
    bench,
    citizen,
    codec,
    dashboard,
    governance,
    keys,
    lab,
    model,
    records,
    runs,
    serve,
    show,
    site,
    study,
    study_run,
    vault,
)
from abaton.cli import keys as sealing
from abaton.cli.output import print_error
from abaton.errors import AbatonError, SettingsError

# The first page of help: commands by panel, in the order shown, each with a short text.
PANELS: dict[str, dict[str, tuple[object, str]]] = {
    "Study": {
        "demo": (study_run.demo, "Run a complete study with six synthetic hospitals."),
        "study": (study.app, "Write, check and publish study documents."),
        "run": (study_run.run, "Run a study at its sites, on this machine."),
        "serve": (serve.app, "Run the research centre: receive records, or train."),
    },
    "Site": {
        "site": (site.app, "Operate a site: check, enrol, send, join, withdraw."),
        "citizen": (citizen.app, "Build, sign and check the citizen page."),
    },
    "Runs": {
        "runs": (runs.runs, "List runs with their numbers."),
        "show": (show.show, "Show a run and its result."),
        "resume": (runs.resume, "Resume an interrupted run."),
        "report": (study_run.report, "Write the report of a run."),
        "compare": (show.compare, "Compare runs."),
        "model": (model.app, "Export a model, predict, write the model card."),
        "prune": (runs.prune, "Delete old versions and updates of models."),
        "dashboard": (dashboard.app, "Watch runs in a browser."),
    },
    "Records": {
        "records": (records.app, "De-identify, check and profile FHIR records."),
        "seal": (sealing.seal, "Seal a file for a recipient."),
        "open": (sealing.open_sealed, "Open a sealed file."),
    },
    "Governance": {
        "keys": (keys.app, "Create and register keys; invite and admit sites."),
        "vault": (vault.app, "Re-identify a subject, with two signatures."),
        "audit": (governance.app, "Verify and export the audit log."),
        "retention": (governance.retention, "Delete data whose retention period has ended."),
        "withdrawals": (governance.withdrawals, "List incomplete withdrawals."),
    },
    "Lab": {
        "lab": (lab.app, "Run experiments: data sets, partitions, strategies."),
        "codec": (codec.app, "Recommend a codec; inspect payloads."),
        "bench": (bench.bench, "Run benchmarks on this machine."),
    },
}
_ORDER = [name for panel in PANELS.values() for name in panel]


class RootGroup(typer.core.TyperGroup):
    """Root command group, in the order of the panels."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands of the root group `abaton` in the order of the help's panels."""
        return _ORDER


app = typer.Typer(
    name="abaton",
    cls=RootGroup,
    help="Run health studies from consent to community model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in PANELS.items():
    for name, (command, summary) in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel, short_help=summary)
        elif callable(command):
            app.command(name, rich_help_panel=panel, short_help=summary)(command)


def _version(*, requested: bool) -> None:
    if requested:
        typer.echo(f"abaton {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit", callback=_version, is_eager=True
    ),
) -> None:
    """Run health studies from consent to community model."""


def main() -> None:
    """Run the application `abaton`; print expected errors as one line and set the exit code."""
    try:
        code = app(standalone_mode=False, prog_name="abaton")
    except AbatonError as error:
        print_error(_with_store(str(error), sys.argv))
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError:  # the help has been shown
        sys.exit(SettingsError.exit_code)
    except click.UsageError as error:
        print_error(_usage_problem(error))
        sys.exit(SettingsError.exit_code)
    except click.Abort:  # a prompt was interrupted
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _with_store(text: str, arguments: list[str]) -> str:
    """Add the given store to the commands in the application's error messages, so that they can be copied.

    >>> _with_store("list the runs with 'abaton runs'", ["abaton", "show", "x", "--store", "here"])
    "list the runs with 'abaton runs --store here'"
    """
    store = re.search(r"(?:^| )--store[= ](\S+)", shlex.join(arguments))
    if store is None:
        return text
    return re.sub(r"'(abaton (?:runs|show|resume|run|demo)\b[^']*)'", rf"'\1 --store {store[1]}'", text)


def _usage_problem(error: click.UsageError) -> str:
    """Return what is wrong with the application's command line, the closest match, and the help command."""
    path = error.ctx.command_path if error.ctx else "abaton"
    problem, candidates = error.format_message().rstrip("."), []
    if isinstance(error, click.NoSuchOption):
        problem, candidates = f"unknown option '{error.option_name}'", error.possibilities or []
    elif unknown := re.match(r"No such command '([^']+)'", error.message):
        problem = f"unknown command '{unknown[1]}'"
        group = error.ctx.command if error.ctx else None
        options = (
            [*getattr(group, "commands", ()), *(opt for candidate in group.params for opt in candidate.opts)]
            if group
            else []
        )
        candidates = _find_command(typer.main.get_command(app), unknown[1], "abaton")
        candidates = candidates or get_close_matches(unknown[1], options)
    suggestion = (
        f"; did you mean {' or '.join(repr(candidate) for candidate in candidates[:3])}?"
        if candidates
        else ";"
    )
    return f"{problem}{suggestion} '{path} -h' lists what is available"


def _find_command(command: object, name: str, path: str) -> list[str]:
    """Return the full path of each command with this name in all groups of the application."""
    subcommands: dict[str, object] = getattr(command, "commands", {})
    matches = [f"{path} {name}"] if name in subcommands else []
    return [
        *matches,
        *(
            match
            for group, subcommand in subcommands.items()
            for match in _find_command(subcommand, name, f"{path} {group}")
        ),
    ]
