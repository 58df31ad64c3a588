"""The command line is one language: an option means the same everywhere, and one meaning has one name."""

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
    """Every command that does something, with the words that call it."""
    inner = getattr(command, "commands", None)
    if inner is None or (path and command.invoke_without_command):
        yield " ".join(path), command
    for name, each in (inner or {}).items():
        yield from commands(each, (*path, name))


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
    several = {option: dict(found) for option, found in kinds.items() if len(found) > 1}
    # Time for all learners is given in rounds and parts of them; rounds of a budget are counted. A sealed file is from
    # somebody, whose key is a file; a first study is begun from an example, by its name.
    assert set(several) <= {"--rounds", "--from"}, several


def test_one_meaning_has_one_name():
    by_words = defaultdict(set)
    for _, option in OPTIONS:
        by_words[(option.help or "").split(":")[0].split(";")[0].rstrip(".")].add(option.opts[0])
    assert {words: found for words, found in by_words.items() if len(found) > 1} == {}
    by_variable = defaultdict(set)
    for _, option in OPTIONS:
        by_variable[option.envvar].add(option.opts[0])
    assert all(len(found) == 1 for variable, found in by_variable.items() if variable)


def test_every_option_is_explained():
    assert [(name, option.opts) for name, option in OPTIONS if not option.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_a_short_form_everywhere(name):
    done = CliRunner().invoke(app, [*name.split(), "-h"], prog_name="abaton")
    assert done.exit_code == 0
    assert f"abaton {name}" in done.output


def test_no_command_has_more_options_than_can_be_read():
    """Except in the lab, where an experiment is what its options say."""
    most = {name: len([o for o in c.params if isinstance(o, click.Option)]) for name, c in COMMANDS.items()}
    assert {name: n for name, n in most.items() if n > 16 and not name.startswith("lab ")} == {}


def test_commands_are_shown_in_groups_each_in_a_few_words():
    shown = CliRunner().invoke(app, ["--help"], prog_name="abaton", env={"COLUMNS": "80"}).output
    places = [
        shown.index(f"─ {panel} ─") for panel in ("Study", "Site", "Runs", "Records", "Governance", "Lab")
    ]
    assert places == sorted(places)
    assert set(ROOT.commands) == {name for panel in PANELS.values() for name in panel}
    assert "..." not in shown.split("─ Study ─")[1], "no line is cut off"
    assert len(shown.splitlines()) < 60


WITHOUT = {
    "serve intake": "prints an address for as long as it runs",
    "dashboard": "prints an address for as long as it runs",
    "serve study": "prints JSON always",
    "audit export": "prints JSON always, one line for each entry",
    "study expand": "prints a document in TOML; its JSON is that of 'study show' and 'study export'",
    "records conformance": "prints JSON always, in the form of the official runner",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_prints_data_prints_it_as_json_too(name):
    """Where a command has no --json, it prints nothing but remarks: none of the ways to print data is called."""
    command = COMMANDS[name]
    if any("--json" in param.opts for param in command.params):
        assert name not in WITHOUT
        return
    called = set(command.callback.__wrapped__.__code__.co_names if hasattr(command.callback, "__wrapped__")
                 else command.callback.__code__.co_names)  # fmt: skip
    prints = called & {"echo", "emit", "table", "told_place"}
    assert not prints or name in WITHOUT, prints
