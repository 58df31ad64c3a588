"""The root of the command line: its groups, its version, and errors as one line with an exit code."""

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
from abaton.cli.output import complain
from abaton.errors import AbatonError, SettingsError

# The first page of help: what each group holds, in the order in which it is shown, and each command in a few words.
PANELS: dict[str, dict[str, tuple[object, str]]] = {
    "Study": {
        "demo": (study_run.demo, "Run a whole study with four invented hospitals."),
        "study": (study.app, "Write, check and publish study documents."),
        "run": (study_run.run, "Run a study at its sites, on this machine."),
        "serve": (serve.app, "The research centre: take records, or train on a network."),
    },
    "Site": {
        "site": (site.app, "A hospital's side: check, consent, send, join, withdraw."),
        "citizen": (citizen.app, "The page on which people take part themselves."),
    },
    "Runs": {
        "runs": (runs.runs, "List runs, each with its number."),
        "show": (show.show, "Show a run, its result first."),
        "resume": (runs.resume, "Bring a run that was cut off to its end."),
        "report": (study_run.report, "Write the report of a run."),
        "compare": (show.compare, "Compare runs."),
        "model": (model.app, "Take a run's model along, and its card."),
        "prune": (runs.prune, "Free the space of old versions and updates."),
        "dashboard": (dashboard.app, "Watch runs in a browser."),
    },
    "Records": {
        "records": (records.app, "De-identify, check and explain FHIR records."),
        "seal": (sealing.seal, "Seal a file to a research centre."),
        "open": (sealing.open_sealed, "Open a sealed file."),
    },
    "Governance": {
        "keys": (keys.app, "Make and register keys; invite and admit sites."),
        "vault": (vault.app, "Re-identify one person, with two signatures."),
        "audit": (governance.app, "Verify and export the audit chain."),
        "retention": (governance.retention, "Delete what must not be kept any longer."),
        "withdrawals": (governance.withdrawals, "List withdrawals that are not complete."),
    },
    "Lab": {
        "lab": (lab.app, "Data sets, partitions and the papers' experiments."),
        "codec": (codec.app, "Advice on codecs, and what a payload says."),
        "bench": (bench.bench, "Measure this build on this machine."),
    },
}
_ORDER = [name for panel in PANELS.values() for name in panel]


class Root(typer.core.TyperGroup):
    """The first page of help, in the order of its panels."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the panels."""
        return _ORDER


app = typer.Typer(
    name="abaton",
    cls=Root,
    help="A health study from consent to community model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, members in PANELS.items():
    for name, (member, words) in members.items():
        if isinstance(member, typer.Typer):
            app.add_typer(member, name=name, rich_help_panel=panel, short_help=words)
        elif callable(member):
            app.command(name, rich_help_panel=panel, short_help=words)(member)


def _version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"abaton {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: bool = typer.Option(
        False, "--version", help="Print which Abaton this is, and exit.", callback=_version, is_eager=True
    ),
) -> None:
    """A health study from consent to community model."""


def main() -> None:
    """Run the command line; every expected error becomes one line and an exit code."""
    try:
        code = app(standalone_mode=False, prog_name="abaton")
    except AbatonError as error:
        complain(_with_store(str(error), sys.argv))
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError:  # the help has been shown
        sys.exit(SettingsError.exit_code)
    except click.UsageError as error:
        complain(_wrong_use(error))
        sys.exit(SettingsError.exit_code)
    except click.Abort:  # somebody ended a question
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _with_store(text: str, typed: list[str]) -> str:
    """Let the commands that a message names look at the store that was given, so that they can be typed as they are.

    >>> _with_store("list the runs with 'abaton runs'", ["abaton", "show", "x", "--store", "here"])
    "list the runs with 'abaton runs --store here'"
    """
    given = re.search(r"(?:^| )--store[= ](\S+)", shlex.join(typed))
    if given is None:
        return text
    return re.sub(r"'(abaton (?:runs|show|resume|run|demo)\b[^']*)'", rf"'\1 --store {given[1]}'", text)


def _wrong_use(error: click.UsageError) -> str:
    """What is wrong with a command line, what comes nearest, and where to read on."""
    path = error.ctx.command_path if error.ctx else "abaton"
    told, near = error.format_message().rstrip("."), []
    if isinstance(error, click.NoSuchOption):
        told, near = f"there is no option '{error.option_name}'", error.possibilities or []
    elif unknown := re.match(r"No such command '([^']+)'", error.message):
        told = f"there is no command '{unknown[1]}'"
        group = error.ctx.command if error.ctx else None
        known = (
            [*getattr(group, "commands", ()), *(opt for each in group.params for opt in each.opts)]
            if group
            else []
        )
        near = _places(typer.main.get_command(app), unknown[1], "abaton")
        near = near or get_close_matches(unknown[1], known)
    meant = f"; did you mean {' or '.join(repr(each) for each in near[:3])}?" if near else ";"
    return f"{told}{meant} '{path} -h' shows what there is"


def _places(command: object, name: str, path: str) -> list[str]:
    """Where in the groups there is a command of a name."""
    inner: dict[str, object] = getattr(command, "commands", {})
    here = [f"{path} {name}"] if name in inner else []
    return [*here, *(place for each, sub in inner.items() for place in _places(sub, name, f"{path} {each}"))]
