"""Check that every command named by README, pages and messages exists with its options and can be run."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer.main
from tests.house.parsed_sources import parsed
from typer.testing import CliRunner

from abaton.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TOP = typer.main.get_command(app)
GAPS = ("…", "...", "NAME", "ARGS")
CALL = re.compile(r"abaton (?=[a-z-])")


def typed(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of a page that run Abaton, and whether each is whole: in a block it is, in a sentence perhaps not."""
    blocks = re.compile(r"^```[a-z]*\n(.*?)^```", re.M | re.S)
    for block in blocks.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from ((call, True) for call in calls(line))
    for inline in re.findall(r"`([^`\n]+)`", blocks.sub("", text)):
        yield from ((call, False) for call in calls(inline))


def calls(line: str) -> Iterator[str]:
    """The calls of Abaton in a line of a shell: after a prompt, and between `;`, `&`, `|` and loops."""
    line = re.sub(r"\s#\s.*", "", re.sub(r"^\s*\$ ", "", line))
    for part in re.split(r"\s*(?:;|&&|\|\||\||&)\s*|\b(?:until|while|if|do|then)\b ", line):
        part = re.sub(r"^(?:\w+=\S+ |/\S*/bin/|ExecStart=\S*/|sudo )+", "", part.strip())
        if CALL.match(part) and not part.startswith("abaton is "):
            yield re.sub(r"\s*(?:\d?>|<)\s*\S+", "", part)


def resolved(line: str) -> tuple[click.Command, list[str], click.Context]:
    """The command of a line, and the words that are left for it."""
    arguments = shlex.split(line)[1:]
    command, context = TOP, click.Context(TOP, info_name="abaton")
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        if arguments[0] in GAPS and not command.invoke_without_command:
            return command, [], context
        inner = command.get_command(context, arguments[0])
        if inner is None:
            break
        command, arguments = inner, arguments[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    return command, arguments, context


def check(line: str, *, complete: bool) -> None:
    """Refuse a line that names a command or an option that there is not, or has too few or too many words."""
    command, arguments, context = resolved(line)
    arguments = [word for word in arguments if word not in GAPS]
    if isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        raise click.UsageError(f"there is no command '{arguments[0]}' in '{context.command_path}'")
    if {"-h", "--help"} & set(arguments):
        return
    options = {
        opt: p for p in command.params if isinstance(p, click.Option) for opt in (*p.opts, *p.secondary_opts)
    }
    if not complete and arguments and arguments[-1] in options and not options[arguments[-1]].is_flag:
        arguments.append("VALUE")  # a sentence may name an option without a value
    values, rest, _ = command.make_parser(context).parse_args(args=list(arguments))
    if (
        isinstance(command, click.Group)
        and not rest
        and not command.invoke_without_command
        and complete
        and not values
    ):
        raise click.UsageError(f"'{line}' is only the beginning of a command")
    if rest and not isinstance(command, click.Group):
        raise click.UsageError(f"'{line}' has more words than the command takes: {rest}")
    for param in command.params:
        value = values.get(param.name)
        given = value is not None and value != () and not repr(value).startswith("Sentinel")
        if complete and param.required and not given and not any(gap in line for gap in GAPS[:2]):
            raise click.MissingParameter(ctx=context, param=param)
        if given and isinstance(param.type, click.types.IntParamType | click.types.FloatParamType):
            for item in value if isinstance(value, list | tuple) else [value]:
                if not str(item).isupper():
                    param.type.convert(item, param, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_can_be_typed(page):
    for line, complete in typed(page.read_text()):
        try:
            check(line, complete=complete)
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_commands_are_found_in_pages():
    lines = [line for page in PAGES for line, _ in typed(page.read_text())]
    assert len(lines) > 200
    assert len({tuple(shlex.split(line)[1:3]) for line in lines}) > 60


INVALID = [
    "abaton shwo RUN",
    "abaton runs --stroe x",
    "abaton show",
    "abaton show one two",
    "abaton serve --engine flower",
    "abaton lab privacy --rounds many --noise 2",
    "abaton study",
    "abaton run study.toml",
]


@pytest.mark.parametrize("line", INVALID, ids=[line.replace(" ", "_") for line in INVALID])
def test_the_check_refuses_what_cannot_be_typed(line):
    with pytest.raises(click.UsageError):
        check(line, complete=True)


def texts(path: Path) -> Iterator[str]:
    """The texts of a program; what is put into them is a word in capitals."""
    tree = parsed(path)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def hints(text: str) -> list[str]:
    """The commands that a message names in quotes."""
    return re.findall(r"['`](abaton [a-z-][^'`\n]*)['`]", text)


def test_commands_that_messages_name_exist():
    count = 0
    for path in SOURCES:
        for text in texts(path):
            for line in hints(text):
                count += 1
                try:
                    check(line, complete=False)
                except click.UsageError as error:
                    pytest.fail(f"{path.relative_to(ROOT)}: {line}: {error.format_message()}")
    assert count > 40


def test_options_that_messages_name_exist():
    known = {
        opt for _, command in leaves(TOP) for p in command.params for opt in (*p.opts, *p.secondary_opts)
    }
    known |= {"--help"}
    ours = [
        path for path in SOURCES if not {"engines", "bench"} & set(path.parts)
    ]  # those speak to Flower and Ray
    for path, text in ((source, text) for source in ours for text in texts(source)):
        for option in re.findall(r"(?<![\w(-])--[a-z][a-z-]+(?![\w:-])", text):  # not `var(--ink)` of a style
            assert option in known, f"{path.relative_to(ROOT)} names {option}"


def leaves(command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield command.name or "", command
    for subcommand in getattr(command, "commands", {}).values():
        yield from leaves(subcommand)


# Errors on a new machine: the command that the message names must not lead to the same error.
BEGINNINGS = [
    "runs",
    "show latest",
    "resume latest",
    "report latest -o r.html",
    "compare a b",
    "show x --store here",
    "prune",
    "codec advise x",
    "keys list --database g.db",
    "keys invite kos",
    "keys show x.keys",
    "records deidentify r.json --out out",
    "study check study.toml",
    "site check study.toml",
    "site join x.invitation",
    "lab partition --natural",
]


def run_command(arguments: list[str]) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments, prog_name="abaton")
    error = done.exception
    return (
        done.exit_code,
        f"{done.stderr} {'' if isinstance(error, SystemExit) or error is None else error}".strip(),
    )


@pytest.mark.parametrize("line", BEGINNINGS, ids=[line.replace(" ", "_") for line in BEGINNINGS])
def test_commands_named_by_a_message_do_not_repeat_it(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABATON_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    _, first = run_command(shlex.split(line))
    assert first
    named = hints(first)
    for hint in named:
        command, arguments, _ = resolved(hint)
        if command.name in ("run", "demo", "serve", "intake", "study") or any(w.isupper() for w in arguments):
            continue  # these take long, or a person has to fill them in
        try:
            check(hint, complete=True)
        except click.UsageError:
            continue
        _, second = run_command(shlex.split(hint)[1:])
        assert second != first, f"'{hint}' answers with the same"


QUICK = {
    "study new",
    "study check",
    "study show",
    "study export",
    "site new",
    "records key",
    "lab data",
    "lab privacy",
}


@cache
def new_document(kind: str) -> str:
    """What `abaton study new` or `abaton site new` writes, written once for all pages."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{kind}.toml"
        assert CliRunner().invoke(app, [kind, "new", str(file)]).exit_code == 0
        return file.read_text(encoding="utf-8")


def has_quick_commands(page: Path) -> bool:
    """Whether a page may have one of them: most have none."""
    text = page.read_text(encoding="utf-8")
    return any(f"abaton {name}" in text for name in QUICK)


@pytest.mark.parametrize(
    "page", list(filter(has_quick_commands, PAGES)), ids=lambda page: str(page.relative_to(ROOT))
)
def test_quick_commands_of_a_page_are_done_in_order(page, tmp_path, monkeypatch):
    """Those that need nothing but each other; the tutorial and the pages of commands are run as a whole elsewhere."""
    monkeypatch.chdir(tmp_path)
    for name in ("study", "site"):
        Path(f"{name}.toml").write_text(new_document(name), encoding="utf-8")
    for line, complete in typed(page.read_text()):
        _, arguments, context = resolved(line)
        name = context.command_path.removeprefix("abaton ")
        files = [word for word in arguments if word.endswith((".toml", ".key", ".json"))]
        writes_files = {"study new", "site new", "records key"} & {name}
        if not complete or name not in QUICK or any(gap in line for gap in GAPS) or "broken" in line:
            continue
        if not writes_files and not all(Path(file).exists() for file in files[:1]):
            continue
        for file in files if writes_files else ():
            Path(file).unlink(missing_ok=True)
        code, output = run_command(shlex.split(line)[1:])
        assert code == 0, f"{line}: {output}"


def test_no_message_names_a_removed_command():
    removed = ("lab clinics", "serve --engine", "abaton version")
    everything = itertools.chain(PAGES, SOURCES)
    mentions = [
        (path.name, command) for path in everything for command in removed if command in path.read_text()
    ]
    assert mentions == []
