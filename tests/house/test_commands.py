"""Every command that README, pages and messages name exists with its options, and leads on where it is typed."""

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
from tests.house.sources import parsed
from typer.testing import CliRunner

from abaton.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TOP = typer.main.get_command(app)
GAPS = ("…", "...", "NAME", "ARGS")
WORDS = re.compile(r"abaton (?=[a-z-])")


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
        if WORDS.match(part) and not part.startswith("abaton is "):
            yield re.sub(r"\s*(?:\d?>|<)\s*\S+", "", part)


def resolved(line: str) -> tuple[click.Command, list[str], click.Context]:
    """The command of a line, and the words that are left for it."""
    words = shlex.split(line)[1:]
    command, context = TOP, click.Context(TOP, info_name="abaton")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if words[0] in GAPS and not command.invoke_without_command:
            return command, [], context
        inner = command.get_command(context, words[0])
        if inner is None:
            break
        command, words = inner, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    return command, words, context


def check(line: str, *, whole: bool) -> None:
    """Refuse a line that names a command or an option that there is not, or has too few or too many words."""
    command, words, context = resolved(line)
    words = [word for word in words if word not in GAPS]
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        raise click.UsageError(f"there is no command '{words[0]}' in '{context.command_path}'")
    if {"-h", "--help"} & set(words):
        return
    options = {
        opt: p for p in command.params if isinstance(p, click.Option) for opt in (*p.opts, *p.secondary_opts)
    }
    if not whole and words and words[-1] in options and not options[words[-1]].is_flag:
        words.append("VALUE")  # a sentence may name an option without a value
    values, rest, _ = command.make_parser(context).parse_args(args=list(words))
    if (
        isinstance(command, click.Group)
        and not rest
        and not command.invoke_without_command
        and whole
        and not values
    ):
        raise click.UsageError(f"'{line}' is only the beginning of a command")
    if rest and not isinstance(command, click.Group):
        raise click.UsageError(f"'{line}' has more words than the command takes: {rest}")
    for param in command.params:
        value = values.get(param.name)
        given = value is not None and value != () and not repr(value).startswith("Sentinel")
        if whole and param.required and not given and not any(gap in line for gap in GAPS[:2]):
            raise click.MissingParameter(ctx=context, param=param)
        if given and isinstance(param.type, click.types.IntParamType | click.types.FloatParamType):
            for each in value if isinstance(value, list | tuple) else [value]:
                if not str(each).isupper():
                    param.type.convert(each, param, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_can_be_typed(page):
    for line, whole in typed(page.read_text()):
        try:
            check(line, whole=whole)
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_commands_are_found_in_pages():
    found = [line for page in PAGES for line, _ in typed(page.read_text())]
    assert len(found) > 200
    assert len({tuple(shlex.split(line)[1:3]) for line in found}) > 60


WRONG = [
    "abaton shwo RUN",
    "abaton runs --stroe x",
    "abaton show",
    "abaton show one two",
    "abaton serve --engine flower",
    "abaton lab privacy --rounds many --noise 2",
    "abaton study",
    "abaton run study.toml",
]


@pytest.mark.parametrize("line", WRONG, ids=[line.replace(" ", "_") for line in WRONG])
def test_the_check_refuses_what_cannot_be_typed(line):
    with pytest.raises(click.UsageError):
        check(line, whole=True)


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
    found = 0
    for path in SOURCES:
        for text in texts(path):
            for line in hints(text):
                found += 1
                try:
                    check(line, whole=False)
                except click.UsageError as error:
                    pytest.fail(f"{path.relative_to(ROOT)}: {line}: {error.format_message()}")
    assert found > 40


def test_options_that_messages_name_exist():
    known = {
        opt for _, command in leaves(TOP) for p in command.params for opt in (*p.opts, *p.secondary_opts)
    }
    known |= {"--help"}
    ours = [
        path for path in SOURCES if not {"engines", "bench"} & set(path.parts)
    ]  # those speak to Flower and Ray
    for path, text in ((each, text) for each in ours for text in texts(each)):
        for option in re.findall(r"(?<![\w(-])--[a-z][a-z-]+(?![\w:-])", text):  # not `var(--ink)` of a style
            assert option in known, f"{path.relative_to(ROOT)} names {option}"


def leaves(command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield command.name or "", command
    for each in getattr(command, "commands", {}).values():
        yield from leaves(each)


# What goes wrong on a machine that has nothing yet: whoever types what the message names gets on, not back.
BEGINNINGS = [
    "runs",
    "show latest",
    "resume latest",
    "report latest -o r.html",
    "compare a b",
    "show x --store here",
    "prune",
    "codec advise x",
    "keys known --database g.db",
    "keys invite kos",
    "keys show x.keys",
    "records deidentify r.json --out out",
    "study check study.toml",
    "site check study.toml",
    "site join x.invitation",
    "lab partition --natural",
]


def said(words: list[str]) -> tuple[int, str]:
    done = CliRunner().invoke(app, words, prog_name="abaton")
    error = done.exception
    return (
        done.exit_code,
        f"{done.stderr} {'' if isinstance(error, SystemExit) or error is None else error}".strip(),
    )


@pytest.mark.parametrize("line", BEGINNINGS, ids=[line.replace(" ", "_") for line in BEGINNINGS])
def test_what_a_message_names_does_not_lead_back_to_it(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABATON_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    _, first = said(shlex.split(line))
    assert first
    named = hints(first)
    for hint in named:
        command, words, _ = resolved(hint)
        if command.name in ("run", "demo", "serve", "intake", "study") or any(w.isupper() for w in words):
            continue  # these take long, or a person has to fill them in
        try:
            check(hint, whole=True)
        except click.UsageError:
            continue
        _, second = said(shlex.split(hint)[1:])
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
    for line, whole in typed(page.read_text()):
        _, words, context = resolved(line)
        name = context.command_path.removeprefix("abaton ")
        files = [word for word in words if word.endswith((".toml", ".key", ".json"))]
        made = {"study new", "site new", "records key"} & {name}
        if not whole or name not in QUICK or any(gap in line for gap in GAPS) or "broken" in line:
            continue
        if not made and not all(Path(file).exists() for file in files[:1]):
            continue
        for file in files if made else ():
            Path(file).unlink(missing_ok=True)
        code, told = said(shlex.split(line)[1:])
        assert code == 0, f"{line}: {told}"


def test_no_message_is_about_a_command_of_another_time():
    gone = ("lab clinics", "serve --engine", "abaton version")
    everything = itertools.chain(PAGES, SOURCES)
    found = [(path.name, words) for path in everything for words in gone if words in path.read_text()]
    assert found == []
