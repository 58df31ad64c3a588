"""Transcripts of commands, in a terminal of 80 columns and without a terminal, compared with text files.

With ABATON_WRITE_TRANSCRIPTS=1 this test writes the files in `transcripts`. Names of runs, times, digests, metrics and
large numbers change with every run or machine: their digits are 0.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab import four_sites as four

from abaton.lab.demo import make_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.store import Store

GOLDEN = Path(__file__).parent / "transcripts"
COLUMNS = 80
CODE = "from abaton.cli import main; main()"


class Shell:
    """Folder in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        strip = ("ABATON", "COLUMNS", "LINES", "TERM", "_TYPER")
        self.known = {k: v for k, v in os.environ.items() if not k.startswith(strip)}
        self.known |= {"NO_COLOR": "1", "XDG_DATA_HOME": str(folder / "data"), "HOME": str(folder)}
        root = Path(__file__).resolve().parents[2]
        self.known["PYTHONPATH"] = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])

    def without(self, line: str) -> tuple[int, str]:
        """Run a command without a terminal and return both streams, stdout first."""
        done = subprocess.run(
            self.arguments(line), cwd=self.folder, env=self.known, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def within(self, line: str, until: Callable[[], bool] | None = None) -> tuple[int, str]:
        """Run a command in a terminal of 80 columns; press Ctrl-C when `until` is true."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        known = {**self.known, "TERM": "dumb"}
        child = subprocess.Popen(
            self.arguments(line), cwd=self.folder, env=known, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        written, end = b"", time.monotonic() + 300
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # the other end has closed
                    break
                if not part:
                    break
                written += part
            if until is not None and until():
                os.killpg(child.pid, signal.SIGINT)
                until = None
        os.close(ours)
        return child.wait(), written.decode().replace("\r\n", "\n")

    def arguments(self, line: str) -> list[str]:
        return [sys.executable, "-c", CODE, *line.removeprefix("abaton").split()]


def normalise(text: str) -> str:
    """Return the text without what changes with every run."""
    # The progress after a number of seconds depends on the machine.
    # Left behind by a library for colours, if installed.
    text = re.sub(r"^\x1b\[0m\n?", "", text, flags=re.M)
    text = re.sub(r"^[\d,]+/[\d,]+ versions; .*\n", "", text, flags=re.M)
    text = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{4}", "-00000000-000000-0000", text)
    text = re.sub(r"…\d{6}-[0-9a-f]{4}", "…000000-0000", text)
    text = re.sub(r"\b[0-9a-f]{12,64}\b", lambda match: "0" * len(match[0]), text)
    text = re.sub(r"\d+:\d+|\d+\.?\d* s\b", "0 s", text)
    text = re.sub(r"\d{4}-\d\d-\d\d", "0000-00-00", text)
    text = re.sub(r"\d+\.\d+|\d[\d,]{2,}", lambda match: re.sub(r"\d", "0", match[0]), text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def compare(name: str, line: str, done: tuple[int, str], folder: Path, *, full: bool = False) -> None:
    """Compare a transcript with its file, or write it."""
    code, printed = done
    printed = printed.replace(f"{folder}/", "").replace(str(folder), ".")
    body = printed.strip("\n") if full else normalise(printed)
    body = "\n".join(line.rstrip() for line in body.splitlines())
    text = f"$ {line}\n{body}\n[exit code {code}]\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ABATON_WRITE_TRANSCRIPTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        "if the change is intended, write the file with ABATON_WRITE_TRANSCRIPTS=1"
    )


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)


def test_no_line_in_a_terminal_is_wider_than_it():
    files = [path for path in GOLDEN.glob("*.txt") if "without" not in path.stem]
    assert len(files) >= 10
    # Tables and help fit; the terminal may fold sentences.
    lines = [line for path in files for line in path.read_text().splitlines() if line[:1] in "┏┃┡│└╭╰"]
    assert lines
    assert max(map(len, lines)) <= COLUMNS


USES = {
    "help": "abaton --help",
    "wrong-command": "abaton shwo latest",
    "wrong-place": "abaton check study.toml",
    "wrong-option": "abaton runs --stroe here",
    "wrong-folder": "abaton runs --store stoer",
    "missing-word": "abaton show",
    "no-runs": "abaton runs",
}


@pytest.mark.parametrize("name", USES)
def test_output_of_commands_without_runs(shell, name):
    compare(name, USES[name], shell.within(USES[name]), shell.folder, full=True)
    assert [path.name for path in shell.folder.iterdir()] == [], "nothing was created"


def test_help_without_a_terminal(shell):
    compare("help-without-a-terminal", USES["help"], shell.without(USES["help"]), shell.folder, full=True)


RUNS = {
    "runs": "abaton runs --store here",
    "show": "abaton show latest --store here",
    "show-a-number": "abaton show 1 --store here",
    "show-several": "abaton show heart --store here",
    "show-none": "abaton show lungs --store here",
    "resume-finished": "abaton resume latest --store here",
}


@pytest.fixture(scope="module")
def shell_with_runs(tmp_path_factory):
    """Folder with a store of three runs, one with a long name, one interrupted."""
    folder = tmp_path_factory.mktemp("runs")

    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    with Store(folder / "here") as store:
        four.federation(seed=1, rounds=30, scale=0.2).run(
            "heart-failure-at-four-hospitals-first", store=store
        )
        with pytest.raises(Interrupted):
            four.federation(seed=2, rounds=3, scale=0.2).run(
                "heart-interrupted", store=store, watch=interrupt
            )
        four.federation(seed=3, rounds=3, scale=0.2).run("trial", store=store)
    return Shell(folder)


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_listed_and_shown(shell_with_runs, name):
    compare(name, RUNS[name], shell_with_runs.within(RUNS[name]), shell_with_runs.folder)


@pytest.mark.parametrize("name", ["runs", "show"])
def test_runs_are_listed_and_shown_without_a_terminal(shell_with_runs, name):
    compare(
        f"{name}-without-a-terminal", RUNS[name], shell_with_runs.without(RUNS[name]), shell_with_runs.folder
    )


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Folder with four hospitals and a study of few rounds."""
    folder = tmp_path_factory.mktemp("hospitals")
    make_demo(folder / "all", 3, 0.25, rounds=4, cohort=FOUR_HOSPITALS)
    return Shell(folder)


RUN = "abaton run all/study.toml --sites all/athens/site.toml all/kos/site.toml --seed 3 --store here"


@pytest.mark.slow
def test_a_study_is_run(hospitals):
    compare("run", RUN, hospitals.within(RUN), hospitals.folder)
    compare("run-without-a-terminal", RUN, hospitals.without(RUN), hospitals.folder)


@pytest.mark.slow
def test_ctrl_c_prints_how_to_resume_and_that_works(tmp_path):
    make_demo(tmp_path / "all", 3, 0.25, rounds=160, cohort=FOUR_HOSPITALS)
    shell = Shell(tmp_path)

    def under_way() -> bool:
        if not (tmp_path / "here" / "abaton.db").exists():
            return False
        with Store(tmp_path / "here") as store:
            return any(len(store.models(row.run)) > 5 for row in store.runs())

    done = shell.within(RUN, under_way)
    compare("run-ctrl-c", RUN, done, tmp_path)
    (named,) = re.findall(r"resume with '(abaton resume [^']+)'", done[1])
    compare("run-resumed", "abaton resume heart-failure-… --store here", shell.within(named), tmp_path)
    with Store(tmp_path / "here") as store:
        assert store.run("latest").status == "finished"
