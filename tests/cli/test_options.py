"""Consistency of the command line: an option means the same everywhere, and one meaning has one name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import click
import pytest
import typer.main
from typer.testing import CliRunner

from abaton.cli.app import PANELS, app

ROOT = typer.main.get_command(app)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its path."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None or (path and command.invoke_without_command):
        yield " ".join(path), command
    for name, subcommand in (subcommands or {}).items():
        yield from commands(subcommand, (*path, name))


COMMANDS = dict(commands(ROOT))
OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option)
]


def kind(option: click.Option) -> tuple[object, ...]:
    return (option.type.name, option.is_flag, sorted(option.opts))


def test_an_option_is_of_one_kind_and_has_the_same_short_form_everywhere():
    kinds = defaultdict(lambda: defaultdict(list))
    for name, option in OPTIONS:
        long = next(opt for opt in option.opts if opt.startswith("--"))
        kinds[long][str(kind(option))].append(name)
    several = {option: dict(uses) for option, uses in kinds.items() if len(uses) > 1}
    # Simulated time is given in fractions of rounds; rounds of a privacy budget are integers.
    assert set(several) <= {"--rounds"}, several


def test_one_meaning_has_one_name():
    by_text = defaultdict(set)
    for _, option in OPTIONS:
        by_text[(option.help or "").split(":")[0].split(";")[0].rstrip(".")].add(option.opts[0])
    assert {text: options for text, options in by_text.items() if len(options) > 1} == {}
    by_variable = defaultdict(set)
    for _, option in OPTIONS:
        by_variable[option.envvar].add(option.opts[0])
    assert all(len(options) == 1 for variable, options in by_variable.items() if variable)


def test_every_option_is_explained():
    assert [(name, option.opts) for name, option in OPTIONS if not option.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_a_short_form_everywhere(name):
    done = CliRunner().invoke(app, [*name.split(), "-h"], prog_name="abaton")
    assert done.exit_code == 0
    assert f"abaton {name}" in done.output


def test_no_command_has_more_options_than_can_be_read():
    """Except in the lab, where the options are the experiment."""
    most = {name: len([o for o in c.params if isinstance(o, click.Option)]) for name, c in COMMANDS.items()}
    assert {name: n for name, n in most.items() if n > 16 and not name.startswith("lab ")} == {}


def test_commands_are_shown_in_panels_with_short_texts():
    shown = CliRunner().invoke(app, ["--help"], prog_name="abaton", env={"COLUMNS": "80"}).output
    positions = [
        shown.index(f"─ {panel} ─") for panel in ("Study", "Site", "Runs", "Records", "Governance", "Lab")
    ]
    assert positions == sorted(positions)
    assert set(ROOT.commands) == {name for panel in PANELS.values() for name in panel}
    assert "..." not in shown.split("─ Study ─")[1], "no line is cut off"
    assert len(shown.splitlines()) < 60


WITHOUT = {
    "serve intake": "prints its address",
    "dashboard": "prints its address",
    "serve study": "always prints JSON",
    "audit export": "always prints JSON, one line per entry",
    "study expand": "prints TOML; 'study show' and 'study export' print JSON",
    "records conformance": "always prints JSON, in the format of the official runner",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_prints_data_prints_it_as_json_too(name):
    """A command without --json calls no function that prints results."""
    command = COMMANDS[name]
    if any("--json" in param.opts for param in command.params):
        assert name not in WITHOUT
        return
    called = set(command.callback.__wrapped__.__code__.co_names if hasattr(command.callback, "__wrapped__")
                 else command.callback.__code__.co_names)  # fmt: skip
    prints = called & {"echo", "emit", "table", "print_path"}
    assert not prints or name in WITHOUT, prints
