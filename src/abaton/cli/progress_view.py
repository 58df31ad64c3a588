"""A run as a terminal shows it: how far it is, what learners do, how the loss falls, bytes, time left.

Show a run while it goes on: a picture in a terminal, a line now and then where there is none.

A run never waits for it: hearing of an event keeps a few numbers, and a thread of its own draws them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from abaton.cli.output import note
from abaton.cli.progress import Course, Pace, about, duration, plain_line, sparkline, states_of
from abaton.controller import Event, State

_NARROW, _MOST_ROWS, _ROUND_IT = 64, 8, 6  # columns; learners that are named; lines that are not learners
_STEP, _PAUSE, _LONG = 0.1, 1.0, 15.0  # of a run, between lines; seconds between lines, at least and at most


class View:
    """A run as it is seen: `hear` is told of every event, `step` of what is done in words."""

    def __init__(self, rounds: int | None, clock: Callable[[], float], *, lines: bool) -> None:
        self.course, self._pace = Course(rounds), Pace(rounds)
        self._clock, self._began, self._lines = clock, clock(), lines
        self._said, self._last, self._next, self.words = self._began, self._began, _STEP, "beginning"

    @property
    def elapsed(self) -> float:
        """Seconds since training began."""
        return self._clock() - self._began

    @property
    def left(self) -> float | None:
        """Seconds that training will still take, if enough is known to say so."""
        return self._pace.left(self.elapsed)

    def hear(self, state: State, event: Event) -> None:
        """Keep what is shown of an event."""
        self._last = self._clock()
        if not self.course.heard:
            self._began = self._said = self._last
            self.words = "training"
        self.course.hear(state, event)
        self._pace.note(self._last - self._began, self.course.version)
        if self._lines:
            self._say()

    def step(self, words: str) -> None:
        """Say what is done now."""
        self.words = words
        note(words)

    def _say(self) -> None:
        now, course = self._last, self.course
        if now - self._said < _PAUSE:
            return
        far = course.share
        if (far is not None and far >= self._next) or now - self._said >= _LONG:
            self._said, self._next = now, (far or 0.0) + _STEP
            note(plain_line(course, self.left))

    def sum_up(self, *, drawn: bool) -> None:
        """Leave a line that says how it went."""
        course = self.course
        if not course.updates:
            return
        loss = ""
        if course.losses:
            line = f" {sparkline(course.losses, 24)} " if drawn else " to "
            loss = f": loss {course.losses[0]:.3f}{line}{course.losses[-1]:.3f}"
        note(
            f"trained {course.version:,} versions in {duration(self._last - self._began)}{loss}; "
            f"{course.bytes:,} bytes in {course.updates:,} updates from {len(course.learners):,} learners"
        )

    def draw(self, console: Console) -> RenderableType:
        """The picture at this moment, as wide and as high as the terminal allows."""
        course, narrow = self.course, console.width < _NARROW
        if not course.heard:
            return Text(f"{self.words} …", style="dim", overflow="ellipsis", no_wrap=True)
        room = max(10, min(40, console.width - 44))
        bar = ProgressBar(total=course.rounds, completed=course.version, width=room, pulse=not course.rounds)
        head = Table.grid(padding=(0, 1))
        left = self.left
        told = "" if left is None or course.share == 1 else f"{about(left)} left"
        head.add_row(self.words, bar, course.count(), told)
        loss = "" if not course.losses else f"loss {course.losses[0]:.3f} "
        line = Text(loss, overflow="ellipsis", no_wrap=True)
        if course.losses:
            line.append(sparkline(course.losses, 12 if narrow else 24), style="cyan")
            line.append(f" {course.losses[-1]:.3f}  ")
        line.append(f"{course.bytes:,} bytes in {course.updates:,} updates")
        if not narrow:
            line.append(f"  {course.at:,.1f} s on the run's clock")
        return Group(head, line, self._learners(console, narrow=narrow))

    def _learners(self, console: Console, *, narrow: bool) -> RenderableType:
        course = self.course
        states = states_of(course)
        shown = sorted(states)[: max(1, min(_MOST_ROWS, console.height - _ROUND_IT))]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("learner", overflow="ellipsis", no_wrap=True, max_width=24)
        table.add_column("state", no_wrap=True)
        table.add_column("updates", justify="right")
        if not narrow:
            table.add_column("bytes", justify="right")
            table.add_column("loss", justify="right")
        for name in shown:
            mine = course.learners.get(name)
            cells = [f"{mine.updates:,}" if mine else "0"]
            if not narrow:
                cells.append(f"{mine.bytes:,}" if mine else "0")
                cells.append("–" if mine is None or mine.loss is None else f"{mine.loss:.3f}")
            table.add_row(Text(name), Text(states[name], style=_STYLES.get(states[name], "")), *cells)
        if len(states) == len(shown):
            return table
        hidden = [states[name] for name in states if name not in shown]
        counts = ", ".join(f"{hidden.count(state)} {state}" for state in sorted(set(hidden)))
        return Group(table, Text(f"and {len(hidden)} more: {counts}", style="dim"))


_STYLES = {"training": "green", "evaluating": "blue", "waiting": "dim", "lost": "red"}


DRAWS = 3  # in a second


@contextmanager
def watching(rounds: int | None, clock: Callable[[], float] = time.monotonic) -> Iterator[View]:
    """Show a run, and leave a line that sums it up.

    Args:
        rounds: How many versions there will be, if that is known.
        clock: Tells the time.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    moves = console.is_terminal and not console.is_dumb_terminal
    view = View(rounds, clock, lines=not moves)
    if moves:
        picture = Live(
            get_renderable=lambda: view.draw(console),
            console=console,
            refresh_per_second=DRAWS,
            transient=True,
            redirect_stdout=False,
        )
        with picture:
            yield view
    else:
        yield view
    view.sum_up(drawn=moves and (sys.stderr.encoding or "").lower().startswith("utf"))
