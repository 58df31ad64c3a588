"""Run every command and write docs/commands: a compact help and transcripts of what the commands printed.

Usage: python docs/extensions/transcripts.py          run everything (some minutes)
       python docs/extensions/transcripts.py help     rewrite the help and keep the transcripts

The console blocks of the tutorial are run and filled in as well. A comment `<!-- lines: REGEX -->` on the line before a
block keeps only the matching lines of its output. The commands of the pages are in scenario/scenario.txt and run one
after the other in an empty folder:

    # a comment
    = NAME=value            set an environment variable for the following lines
    % command               run without a transcript
    $ command               run with a transcript; the exit code must be 0
    $3 command              the same; the exit code must be 3
    & NAME command          start in the background; the transcript ends when it is stopped
    ! NAME                  stop it
    ? COMMAND | line        run the line if the command exists

`{run STORE N}` is replaced by the name of the N-th run in a store, `{file NAME}` by the content of a file.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCENARIO = HERE / "scenario"
PAGES, TUTORIAL = HERE.parent / "commands", HERE.parent / "tutorial.md"
WIDTH, MAX_COLUMNS = 96, 100
MAX_LINES, HEAD, TAIL = 5, 3, 1  # lines of output that a page shows per command
QUIET_SECONDS = 10.0  # a service that prints nothing for this long has started
MIN_SHARED = 3  # an option of this many commands is described once, under "Shared options"
TERMINAL = {"COLUMNS": str(WIDTH), "LINES": "40", "TERM": "dumb", "NO_COLOR": "1"}

TITLES = {
    "": "Studies, runs, sealing and retention",
    "audit": "Audit log",
    "citizen": "Citizen page",
    "codec": "Codecs",
    "dashboard": "Dashboard",
    "keys": "Keys",
    "lab": "Experiments",
    "model": "Trained models",
    "records": "Records",
    "serve": "Research centre services",
    "site": "Sites",
    "study": "Study documents",
    "vault": "Re-identification",
}
INTRO = "`--help` prints the complete help. [Shared options](runs.md#shared-options) are described once."


@dataclass(frozen=True)
class Shown:
    """A command line and its output."""

    command: str
    printed: str


@dataclass(frozen=True)
class Entry:
    """One argument or option in the help of a command."""

    name: str
    text: str
    is_option: bool


def commands() -> dict[tuple[str, ...], str]:
    """Return every command with its compact help: usage, summary, arguments and options."""
    entries = _entries()
    shared = _shared(entries)
    return {
        path: _format_help(path, command, entries[path], shared) for path, command in _leaf_commands().items()
    }


def shared_options() -> list[Entry]:
    """Return the options that several commands have with the same description."""
    return sorted(_shared(_entries()), key=lambda entry: entry.name.lstrip("-"))


def _leaf_commands() -> dict[tuple[str, ...], Any]:
    import typer.main

    from abaton.cli.app import app

    return dict(_leaves(typer.main.get_command(app), ()))


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield path, command
        return
    if path and getattr(command, "invoke_without_command", False):
        yield path, command
    for name in sorted(subcommands):
        yield from _leaves(subcommands[name], (*path, name))


def _entries() -> dict[tuple[str, ...], list[Entry]]:
    return {path: list(_command_entries(path, command)) for path, command in _leaf_commands().items()}


def _command_entries(path: tuple[str, ...], command: Any) -> Iterator[Entry]:
    import click

    context = click.Context(
        command, info_name=" ".join(("abaton", *path)), help_option_names=["-h", "--help"]
    )
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            name = record[0].replace(" RANGE", "")
            text = " ".join(record[1].replace("\\[", "[").split())
            is_option = parameter.param_type_name == "option"
            yield Entry(name, text if is_option else text.replace(" [required]", ""), is_option)


def _shared(entries: dict[tuple[str, ...], list[Entry]]) -> set[Entry]:
    uses = Counter(entry for group in entries.values() for entry in group if entry.is_option)
    common = [entry for entry, count in uses.most_common() if count >= MIN_SHARED]
    return set({entry.name: entry for entry in reversed(common)}.values())  # the most common text of a name


def _format_help(path: tuple[str, ...], command: Any, entries: list[Entry], shared: set[Entry]) -> str:
    import click

    context = click.Context(
        command, info_name=" ".join(("abaton", *path)), help_option_names=["-h", "--help"]
    )
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    summary = " ".join((command.help or "").split("\n\n")[0].split())
    lines = [f"Usage: {context.command_path} {usage}".rstrip(), *_wrap(summary, WIDTH), ""]
    lines += format_entries([entry for entry in entries if entry not in shared])
    names = [entry.name.split()[0] for entry in entries if entry in shared]
    if names:
        lines += [f"  {line}" for line in _wrap("Shared: " + ", ".join(names), WIDTH - 2)]
    return "\n".join(lines).strip("\n")


def _wrap(text: str, width: int) -> list[str]:
    """Return a text as lines; names of options are not broken."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


def format_entries(entries: list[Entry]) -> list[str]:
    """Return arguments and options as lines of two columns."""
    column = min(28, max((len(entry.name) for entry in entries), default=0)) + 4
    lines: list[str] = []
    for entry in entries:
        wrapped = _wrap(entry.text, WIDTH - column) or [""]
        if len(entry.name) + 4 > column:
            lines.append(f"  {entry.name}")
        else:
            lines.append(f"  {entry.name}".ljust(column) + wrapped.pop(0))
        lines += [" " * column + rest for rest in wrapped]
    return [line.rstrip() for line in lines]


def _clean(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.replace("\r\n", "\n"))
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _without_borders(text: str) -> list[str]:
    """Return the lines of an output without the borders of its tables."""
    lines = [line for line in text.splitlines() if not re.fullmatch(r"[\s─━┏┓┡┩└┘┳╇┴┬╈]+", line)]
    lines = [re.sub(r"^[│┃] ?| ?[│┃]$", "", line) for line in lines]
    return [re.sub(r" ?[│┃] ?", "  ", line).rstrip() for line in lines]


def excerpt(printed: str, pattern: str | None = None) -> list[str]:
    """Return the lines of an output that a page shows: those that match, or the first and the last ones."""
    lines = _without_borders(printed)
    if pattern is not None:
        matching = [line if re.search(pattern, line) else "…" for line in lines]
        pairs = zip(matching, ["…", *matching], strict=False)
        lines = [line for line, before in pairs if line != "…" or before != "…"]
        lines = lines[:-1] if lines[-1:] == ["…"] else lines
    elif len(lines) > MAX_LINES:
        lines = [*lines[:HEAD], f"… ({len(lines) - HEAD - TAIL} more lines)", *lines[-TAIL:]]
    return [part for line in lines for part in _fit(line)]


def _fit(line: str) -> list[str]:
    """Return a line within the maximal width: sentences are wrapped, other lines are cut."""
    if len(line) <= MAX_COLUMNS:
        return [line]
    if line.endswith("."):
        return textwrap.wrap(line, MAX_COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
    return [f"{line[: MAX_COLUMNS - 1]}…"]


class Workspace:
    """An empty folder in which commands run, each in a terminal without colours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        program = folder / "bin" / "abaton"
        program.write_text(f"#!{sys.executable}\nfrom abaton.cli import main\n\nmain()\n")
        program.chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ABATON")},
            **TERMINAL,
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ABATON_STORE": str(folder / "store"),
        }
        self.background: dict[str, tuple[subprocess.Popen[bytes], list[bytes], threading.Thread, str]] = {}

    def run(self, command: str) -> tuple[int, str]:
        """Run a command and return its exit code and its output (stdout and stderr together)."""
        process, chunks, reader = self._start(command)
        code = process.wait()
        reader.join()
        return code, self._output(chunks)

    def start(self, name: str, command: str) -> None:
        """Start a command and return when it has printed nothing for some seconds."""
        process, chunks, reader = self._start(command)
        self.background[name] = (process, chunks, reader, command)
        deadline, count = time.monotonic() + 120, 0
        while time.monotonic() < deadline:
            time.sleep(QUIET_SECONDS)
            if chunks and len(chunks) == count:
                return
            count = len(chunks)

    def stop(self, name: str) -> Shown:
        """Stop a command that was started and return its transcript."""
        process, chunks, reader, command = self.background.pop(name)
        chunks.append(b"^C\n")
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(5)
        return Shown(command, self._output(chunks))

    def _start(self, command: str) -> tuple[subprocess.Popen[bytes], list[bytes], threading.Thread]:
        parent_end, child_end = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=child_end,
            stderr=child_end,
            start_new_session=True,
        )
        os.close(child_end)
        chunks: list[bytes] = []

        def read() -> None:
            while True:
                try:
                    chunk = os.read(parent_end, 65536)
                except OSError:  # the child closed its end
                    break
                if not chunk:
                    break
                chunks.append(chunk)
            os.close(parent_end)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        return process, chunks, reader

    def _output(self, chunks: list[bytes]) -> str:
        text = _clean(b"".join(chunks).decode(errors="replace"))
        return text.replace(f"{self.folder}/", "").replace(str(self.folder), ".")

    def expand(self, command: str) -> str:
        """Return the command with names of runs and contents of files inserted."""

        def run_name(match: re.Match[str]) -> str:
            code, output = self.run_quietly(f"abaton runs --json --store {match[1]}")
            assert code == 0, output
            return str(json.loads(output)[int(match[2]) - 1]["run"])

        command = re.sub(r"\{file (\S+)\}", lambda match: (self.folder / match[1]).read_text(), command)
        return re.sub(r"\{run (\S+) (\d+)\}", run_name, command)

    def run_quietly(self, command: str) -> tuple[int, str]:
        """Run a command and return its exit code and its stdout."""
        process = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return process.returncode, process.stdout


def play(text: str, folder: Path) -> list[Shown]:
    """Run a scenario and return its transcripts in order."""
    workspace, shown, known = Workspace(folder), [], commands()
    try:
        for line in text.splitlines():
            head, _, rest = line.partition(" ")
            if head == "?":
                required, _, line = rest.partition(" | ")
                if tuple(required.split()) not in known:
                    continue
                head, _, rest = line.partition(" ")
            if head == "=":
                name, _, value = rest.partition("=")
                workspace.environment[name] = value
            elif head == "%":
                code, output = workspace.run(rest)
                assert code == 0, f"{rest}: exit code {code}\n{output}"
            elif head[:1] == "$":
                started = time.monotonic()
                command = workspace.expand(rest)
                code, output = workspace.run(command)
                print(f"{time.monotonic() - started:6.1f} s  {command}", file=sys.stderr)
                assert code == int(head[1:] or 0), f"{command}: exit code {code}\n{output}"
                shown.append(Shown(command, output))
            elif head == "&":
                name, _, command = rest.partition(" ")
                workspace.start(name, command)
            elif head == "!":
                shown.append(workspace.stop(rest))
    finally:
        for name in list(workspace.background):
            workspace.stop(name)
    return shown


def typed(page: str) -> list[str]:
    """Return the commands in the console blocks of a page."""
    blocks = re.findall(r"```console\n(.*?)```", page, re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def fill_blocks(page: str, shown: list[Shown]) -> str:
    """Return a page whose console blocks show the output of their commands."""
    transcripts = iter(shown)

    def block(match: re.Match[str]) -> str:
        pattern, lines = match[2], []
        for line in match[3].splitlines():
            if line.startswith("$ "):
                lines += [line, *excerpt(next(transcripts).printed, pattern)]
        return f"{match[1] or ''}```console\n" + "\n".join(lines) + "\n```"

    return re.sub(r"(<!-- lines: (.*?) -->\n)?```console\n(.*?)```", block, page, flags=re.S)


def command_of(typed: str, known: dict[tuple[str, ...], str]) -> tuple[str, ...] | None:
    """Return the command that a line runs, or None."""
    tokens = typed.split()
    if "abaton" not in tokens:
        return None
    rest = tokens[tokens.index("abaton") + 1 :]
    return next((tuple(rest[:n]) for n in (2, 1) if tuple(rest[:n]) in known), None)


def build_pages(known: dict[tuple[str, ...], str], shown: list[Shown]) -> dict[str, str]:
    """Return the text of every page by its file name."""
    groups = {path[0] for path in known if len(path) > 1}
    pages: dict[str, str] = {}
    for group in ["", *sorted(groups)]:
        lines = [f"# {TITLES.get(group, group.capitalize())}", "", INTRO, ""]
        for path, text in known.items():
            if (path[0] if path[0] in groups else "") != group:
                continue
            lines += [f"## abaton {' '.join(path)}", "", "```text", text, "```", ""]
            for transcript in shown:
                if command_of(transcript.command, known) == path:
                    lines += [
                        "```console",
                        f"$ {transcript.command}",
                        *excerpt(transcript.printed),
                        "```",
                        "",
                    ]
        if not group:
            lines += ["## Shared options", "", "```text", *format_entries(shared_options()), "```", ""]
        pages[f"{group or 'runs'}.md"] = "\n".join(lines)
    return pages


def read_transcripts() -> list[Shown]:
    """Return the transcripts that the pages contain."""
    text = "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", text, re.M | re.S)
    return [Shown(command, printed.rstrip("\n")) for command, printed in blocks]


def run_everything() -> list[Shown]:
    """Run the scenario, and the tutorial, whose blocks are filled in."""
    with tempfile.TemporaryDirectory(prefix="abaton-docs-") as root:
        folder = Path(root) / "study"
        shutil.copytree(SCENARIO, folder)
        shown = play((SCENARIO / "scenario.txt").read_text(), folder)
        (Path(root) / "tutorial").mkdir()
        page = TUTORIAL.read_text(encoding="utf-8")
        transcripts = play("\n".join(f"$ {command}" for command in typed(page)), Path(root) / "tutorial")
    TUTORIAL.write_text(fill_blocks(page, transcripts), encoding="utf-8")
    return shown


def main() -> None:
    """Write docs/commands."""
    known = commands()
    shown = read_transcripts() if sys.argv[1:] == ["help"] else run_everything()
    pages = build_pages(known, shown)
    PAGES.mkdir(exist_ok=True)
    for page in PAGES.glob("*.md"):
        if page.name not in pages:
            page.unlink()
    for name, text in pages.items():
        (PAGES / name).write_text(text, encoding="utf-8")
    covered = {command_of(transcript.command, known) for transcript in shown}
    missing = [" ".join(path) for path in known if path not in covered]
    if missing:
        sys.exit(f"scenario.txt has no transcript of: {', '.join(missing)}")


if __name__ == "__main__":
    main()
