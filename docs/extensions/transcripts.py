"""Run every command and write the pages of docs/commands: help and transcripts are what the commands printed.

Usage: python docs/extensions/transcripts.py          runs everything: some minutes
       python docs/extensions/transcripts.py help     writes the help anew, and keeps the transcripts

The tutorial's blocks of kind `console` are run and filled in, too. The commands of the pages are in
scenario/scenario.txt and run one after the other in an empty folder:

    # a remark
    = NAME=value            the environment of what follows
    % command               runs, and is not shown
    $ command               runs and is shown; must end with exit code 0
    $3 command              the same, must end with exit code 3
    & NAME command          starts and is shown; its output is taken when it is ended
    ! NAME                  ends it
    ? WORDS | line          the line, if there is a command of these words

`{run STORE N}` stands for the name of the N-th run in a store, `{file NAME}` for what is in a file.
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
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCENARIO = HERE / "scenario"
PAGES, TUTORIAL = HERE.parent / "commands", HERE.parent / "tutorial.md"
WIDTH, LONGEST, HEAD, TAIL = 96, 90, 70, 12
PLAIN = {"COLUMNS": str(WIDTH), "LINES": "40", "TERM": "dumb", "NO_COLOR": "1"}

# Commands that belong to no group, and the page on which they are.
TITLES = {
    "": "Studies at work, runs, sealing and retention",
    "audit": "The audit chain",
    "citizen": "The citizen's page",
    "codec": "Codecs",
    "dashboard": "The dashboard",
    "keys": "Keys",
    "lab": "The lab",
    "records": "Records",
    "serve": "The research centre",
    "site": "Sites",
    "study": "Studies",
    "vault": "Re-identification",
}


@dataclass(frozen=True)
class Shown:
    """A command as it was typed, and what it printed."""

    command: str
    printed: str


def commands() -> dict[tuple[str, ...], str]:
    """Every command of the command line with its help, as a terminal of a fixed width shows it."""
    import typer.main
    from click.testing import CliRunner

    from abaton.cli.app import app

    root = typer.main.get_command(app)
    made = {}
    for path in _leaves(root, ()):
        done = CliRunner().invoke(root, [*path, "--help"], prog_name="abaton", env=PLAIN)
        made[path] = _clean(done.output)
    return made


def _leaves(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path
        return
    if path and getattr(command, "invoke_without_command", False):
        yield path
    for name in sorted(inner):
        yield from _leaves(inner[name], (*path, name))


def _clean(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.replace("\r\n", "\n"))
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


class Stage:
    """An empty folder in which commands run, each in a terminal that has no colours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        program = folder / "bin" / "abaton"
        program.write_text(f"#!{sys.executable}\nfrom abaton.cli import main\n\nmain()\n")
        program.chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ABATON")},
            **PLAIN,
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ABATON_STORE": str(folder / "store"),
        }
        self.background: dict[str, tuple[subprocess.Popen[bytes], list[bytes], threading.Thread, str]] = {}

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end: its exit code and what it printed, on stdout and stderr together."""
        process, chunks, reader = self._start(command)
        code = process.wait()
        reader.join()
        return code, self._told(chunks)

    def begin(self, name: str, command: str) -> None:
        """Start a command, and go on when it has been silent for a while."""
        process, chunks, reader = self._start(command)
        self.background[name] = (process, chunks, reader, command)
        deadline, heard = time.monotonic() + 60, 0
        while time.monotonic() < deadline:
            time.sleep(4)
            if chunks and len(chunks) == heard:
                return
            heard = len(chunks)

    def end(self, name: str) -> Shown:
        """End a command that was started."""
        process, chunks, reader, command = self.background.pop(name)
        chunks.append(b"^C\n")
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(5)
        return Shown(command, self._told(chunks))

    def _start(self, command: str) -> tuple[subprocess.Popen[bytes], list[bytes], threading.Thread]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        chunks: list[bytes] = []

        def read() -> None:
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # nobody writes any more
                    break
                if not part:
                    break
                chunks.append(part)
            os.close(ours)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        return process, chunks, reader

    def _told(self, chunks: list[bytes]) -> str:
        text = _clean(b"".join(chunks).decode(errors="replace"))
        text = text.replace(f"{self.folder}/", "").replace(str(self.folder), ".")
        lines = [line if len(line) <= 140 else f"{line[:139]}…" for line in text.splitlines()]
        if len(lines) > LONGEST:
            lines = [*lines[:HEAD], f"… ({len(lines) - HEAD - TAIL} more lines)", *lines[-TAIL:]]
        return "\n".join(lines)

    def filled(self, command: str) -> str:
        """The command with the names of runs put in."""

        def name(found: re.Match[str]) -> str:
            code, told = self.raw(f"abaton runs --json --store {found[1]}")
            assert code == 0, told
            return str(json.loads(told)[int(found[2]) - 1]["run"])

        command = re.sub(r"\{file (\S+)\}", lambda found: (self.folder / found[1]).read_text(), command)
        return re.sub(r"\{run (\S+) (\d+)\}", name, command)

    def raw(self, command: str) -> tuple[int, str]:
        """Run a command quietly: its exit code and its stdout."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


def play(text: str, folder: Path) -> list[Shown]:
    """Run a scenario; what was shown, in order."""
    stage, shown, known = Stage(folder), [], commands()
    try:
        for line in text.splitlines():
            head, _, rest = line.partition(" ")
            if head == "?":
                needed, _, line = rest.partition(" | ")
                if tuple(needed.split()) not in known:
                    continue
                head, _, rest = line.partition(" ")
            if head == "=":
                name, _, value = rest.partition("=")
                stage.environment[name] = value
            elif head == "%":
                code, told = stage.run(rest)
                assert code == 0, f"{rest}: exit code {code}\n{told}"
            elif head[:1] == "$":
                began = time.monotonic()
                command = stage.filled(rest)
                code, told = stage.run(command)
                print(f"{time.monotonic() - began:6.1f} s  {command}", file=sys.stderr)
                assert code == int(head[1:] or 0), f"{command}: exit code {code}\n{told}"
                shown.append(Shown(command, told))
            elif head == "&":
                name, _, command = rest.partition(" ")
                stage.begin(name, command)
            elif head == "!":
                shown.append(stage.end(rest))
    finally:
        for name in list(stage.background):
            stage.end(name)
    return shown


def typed(page: str) -> list[str]:
    """The commands in a page's blocks of kind `console`."""
    blocks = re.findall(r"```console\n(.*?)```", page, re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def retold(page: str, shown: list[Shown]) -> str:
    """A page whose blocks of kind `console` say what the commands have printed."""
    told = iter(shown)

    def block(found: re.Match[str]) -> str:
        lines = []
        for line in found[1].splitlines():
            if line.startswith("$ "):
                lines += [line, *next(told).printed.splitlines()]
        return "```console\n" + "\n".join(lines) + "\n```"

    return re.sub(r"```console\n(.*?)```", block, page, flags=re.S)


def command_of(typed: str, known: dict[tuple[str, ...], str]) -> tuple[str, ...] | None:
    """Which command a line runs."""
    words = typed.split()
    if "abaton" not in words:
        return None
    rest = words[words.index("abaton") + 1 :]
    return next((tuple(rest[:n]) for n in (2, 1) if tuple(rest[:n]) in known), None)


def pages(known: dict[tuple[str, ...], str], shown: list[Shown]) -> dict[str, str]:
    """The pages by their file's name."""
    groups = {path[0] for path in known if len(path) > 1}
    made: dict[str, str] = {}
    for group in ["", *sorted(groups)]:
        parts = [f"# {TITLES.get(group, group.capitalize())}", ""]
        for path, text in known.items():
            if (path[0] if path[0] in groups else "") != group:
                continue
            parts += [f"## abaton {' '.join(path)}", "", "```text", text, "```", ""]
            for each in shown:
                if command_of(each.command, known) == path:
                    parts += ["```console", f"$ {each.command}", *each.printed.splitlines(), "```", ""]
        made[f"{group or 'runs'}.md"] = "\n".join(parts)
    return made


def kept() -> list[Shown]:
    """The transcripts that the pages hold already."""
    text = "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    found = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", text, re.M | re.S)
    return [Shown(command, printed.rstrip("\n")) for command, printed in found]


def run_everything(known: dict[tuple[str, ...], str]) -> list[Shown]:
    """Play the scenario, and fill in the tutorial."""
    with tempfile.TemporaryDirectory(prefix="abaton-docs-") as place:
        folder = Path(place) / "study"
        shutil.copytree(SCENARIO, folder)
        shown = play((SCENARIO / "scenario.txt").read_text(), folder)
        (Path(place) / "tutorial").mkdir()
        page = TUTORIAL.read_text(encoding="utf-8")
        done = play("\n".join(f"$ {command}" for command in typed(page)), Path(place) / "tutorial")
    TUTORIAL.write_text(retold(page, done), encoding="utf-8")
    return shown


def main() -> None:
    """Write docs/commands."""
    known = commands()
    shown = kept() if sys.argv[1:] == ["help"] else run_everything(known)
    made = pages(known, shown)
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text, encoding="utf-8")
    missing = [" ".join(path) for path in known if all(command_of(s.command, known) != path for s in shown)]
    if missing:
        sys.exit(f"no transcript in scenario.txt: {', '.join(missing)}")


if __name__ == "__main__":
    main()
