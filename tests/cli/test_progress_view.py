"""Progress of a run on stderr: a live view in a terminal, lines elsewhere, and a summary."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from tests.lab import four_sites as four

from abaton.cli.progress import RunProgress, learner_states, progress_line, sparkline
from abaton.cli.progress_view import ProgressView, show_progress
from abaton.controller import ControllerState, LearnerJoined, TaskFailed, UpdateReceived
from abaton.controller.state import Assignment, LearnerInfo


def run_federation(folder: Path) -> None:
    """Run a federation with the progress view of the commands."""
    with show_progress(5) as view:
        four.federation(seed=1990, rounds=5, scale=0.5).run(store=folder, watch=view.on_event)


@contextmanager
def all_streams_at(descriptor: int) -> Iterator[None]:
    """Redirect the three streams of this process to a file or terminal, then restore them."""
    before = [os.dup(number) for number in range(3)]
    try:
        for number in range(3):
            os.dup2(descriptor, number)
        yield
    finally:
        for number, copy in enumerate(before):
            os.dup2(copy, number)
            os.close(copy)


def in_a_terminal(folder: Path, columns: int, monkeypatch, **environment: str) -> str:
    """Return what a run writes to a terminal with this number of columns."""
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    parts: list[bytes] = []
    reader = threading.Thread(target=lambda: parts.extend(until_closed(ours)))
    reader.start()
    with all_streams_at(theirs), os.fdopen(theirs, "w", encoding="utf-8", buffering=1) as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        run_federation(folder)
    reader.join(60)
    os.close(ours)
    return b"".join(parts).decode()


def until_closed(terminal: int) -> Iterator[bytes]:
    """Yield everything that is written to a terminal until it is closed."""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end has closed
            return
        if not part:
            return
        yield part


def test_a_terminal_shows_a_live_view_and_then_a_summary(tmp_path, monkeypatch):
    seen = in_a_terminal(tmp_path, 100, monkeypatch)
    assert "\x1b[?25l" in seen  # the cursor is hidden during the live view
    assert seen.rindex("\x1b[?25h") < seen.index("trained 5 versions")
    assert "5/5" in seen
    assert re.search("loss [0-9.]+ [^ ]*[▁▂▃▄▅▆▇█]", seen)
    assert "athens" in seen
    assert re.search(r"\x1b\[3[26]m", seen)
    left = seen[seen.rindex("\x1b[?25h") :]
    assert "14,060 bytes in 19 updates from 4 learners" in left


def test_a_narrow_terminal_without_colours(tmp_path, monkeypatch):
    seen = in_a_terminal(tmp_path, 44, monkeypatch, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", seen)
    before = seen[: seen.index("trained")]
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", before.replace("\r", "\n")).splitlines()
    assert not any("3,700" in line for line in lines)  # columns that do not fit are dropped
    assert max(map(len, lines)) <= 44


@pytest.mark.parametrize("terminal", ["dumb", "none"])
def test_without_a_terminal_there_are_lines_only(tmp_path, monkeypatch, capsys, terminal):
    if terminal == "dumb":
        seen = in_a_terminal(tmp_path, 100, monkeypatch, TERM="dumb")
    else:
        run_federation(tmp_path)
        written = capsys.readouterr()
        assert written.out == ""
        seen = written.err
    assert "\x1b[2K" not in seen
    assert re.search(r"trained 5 versions in [0-9.:]+( s)?: loss [0-9.]+ to [0-9.]+; 14,060 bytes", seen)


def update(timestamp: float, learner: str, loss: float | None) -> UpdateReceived:
    return UpdateReceived(timestamp, learner, "t", "p", 48, 3, 10, {} if loss is None else {"loss": loss})


def test_a_line_is_printed_every_tenth_and_at_most_once_a_second(capsys):
    now = [0.0]
    view = ProgressView(100, lambda: now[0], lines=True)
    for version in range(1, 101):
        now[0] += 0.3
        view.on_event(ControllerState(version=version), update(float(version), "kos", 1 / version))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("10/100 versions; loss 0.100; 480 bytes in 10 updates")
    assert not lines[0].endswith("left"), "there is no estimate after three seconds"
    assert lines[1].endswith("about 25 s left")


def test_states_of_learners_come_from_the_controller_state():
    progress = RunProgress()
    members = {name: LearnerInfo(10) for name in ("a", "b", "c")}
    base = ControllerState()
    state = ControllerState(
        present=base.present.update(members), open_tasks=base.open_tasks.set("t", Assignment("a", 0, 0))
    )
    progress.on_event(state, LearnerJoined(0.0, "a", 10))
    progress.on_event(state, TaskFailed(1.0, "b", "u", "lost"))
    assert learner_states(progress) == {"a": "training", "b": "lost", "c": "waiting"}
    assert progress_line(progress, None) == "0 versions; 0 bytes in 0 updates; 1 lost, 1 training, 1 waiting"


def test_many_learners_do_not_fill_the_screen_and_names_are_not_markup():
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    view = ProgressView(None, lambda: 0.0, lines=False)
    names = {f"[red]{i:03}": LearnerInfo(10) for i in range(100)}
    view.on_event(
        ControllerState(present=ControllerState().present.update(names)),
        update(1.0, "[red]000", float("nan")),
    )
    console.print(view.draw(console))
    shown = console.export_text()
    assert "and 92 more: 92 waiting" in shown
    assert "[red]001" in shown
    assert len(shown.splitlines()) < 24


def test_a_sparkline_has_the_given_width_and_accepts_any_value():
    assert len(sparkline([float(i) for i in range(1000)], 24)) == 24
    assert sparkline([float("nan")] * 3, 8) == ""
    assert sparkline([1.0, float("inf"), 0.0], 8) == "█ ▁"
    assert sparkline([2.0, 2.0], 8) == "▁▁"


def test_a_long_run_keeps_few_numbers():
    progress = RunProgress()
    for version in range(1, 20_001):
        progress.on_event(ControllerState(version=version), update(float(version), "kos", 1.0))
    assert len(progress.losses) <= 4096
