"""Progress of a run on stderr: a live view in a terminal, a line at intervals elsewhere.

A separate thread draws the live view three times a second from the immutable controller state, so a run with
thousands of events per second does not wait for the display.
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
from abaton.cli.progress import (
    RunProgress,
    TimeEstimate,
    approximate_duration,
    duration,
    learner_states,
    progress_line,
    sparkline,
)
from abaton.controller import ControllerState, Event

_NARROW_WIDTH, _MAX_LEARNERS, _OTHER_LINES = 64, 8, 6  # characters; learners shown; other lines
_FRACTION_STEP, _MIN_INTERVAL_SECONDS, _MAX_INTERVAL_SECONDS = 0.1, 1.0, 15.0  # between two lines


class ProgressView:
    """View of a run: `on_event` receives every event, `on_step` a text for each step of the run."""

    def __init__(self, rounds: int | None, clock: Callable[[], float], *, lines: bool) -> None:
        self.progress, self._estimate = RunProgress(rounds), TimeEstimate(rounds)
        self._clock, self._started_at, self._lines = clock, clock(), lines
        self._printed_at = self._updated_at = self._started_at
        self._next_fraction, self.activity = _FRACTION_STEP, "starting"

    @property
    def elapsed(self) -> float:
        """Seconds since training started, for the progress view."""
        return self._clock() - self._started_at

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until training ends, shown in the progress view; `None` before an estimate."""
        return self._estimate.seconds_left(self.elapsed)

    def on_event(self, state: ControllerState, event: Event) -> None:
        """Update the progress view by an event of the run."""
        self._updated_at = self._clock()
        if not self.progress.has_started:
            self._started_at = self._printed_at = self._updated_at
            self.activity = "training"
        self.progress.on_event(state, event)
        self._estimate.note(self._updated_at - self._started_at, self.progress.version)
        if self._lines:
            self._print_line()

    def on_step(self, text: str) -> None:
        """Show the current step of the run in the progress view."""
        self.activity = text
        note(text)

    def _print_line(self) -> None:
        now, progress = self._updated_at, self.progress
        if now - self._printed_at < _MIN_INTERVAL_SECONDS:
            return
        fraction = progress.fraction
        if (
            fraction is not None and fraction >= self._next_fraction
        ) or now - self._printed_at >= _MAX_INTERVAL_SECONDS:
            self._printed_at, self._next_fraction = now, (fraction or 0.0) + _FRACTION_STEP
            note(progress_line(progress, self.seconds_left))

    def print_summary(self, *, use_sparkline: bool) -> None:
        """Print a line that summarises training after the progress view."""
        progress = self.progress
        if not progress.updates:
            return
        loss = ""
        if progress.losses:
            line = f" {sparkline(progress.losses, 24)} " if use_sparkline else " to "
            loss = f": loss {progress.losses[0]:.3f}{line}{progress.losses[-1]:.3f}"
        note(
            f"trained {progress.version:,} versions in {duration(self._updated_at - self._started_at)}{loss}; "
            f"{progress.bytes:,} bytes in {progress.updates:,} updates from {len(progress.learners):,} learners"
        )

    def draw(self, console: Console) -> RenderableType:
        """Draw the current progress view, fitted to the size of the terminal."""
        progress, narrow = self.progress, console.width < _NARROW_WIDTH
        if not progress.has_started:
            return Text(f"{self.activity} …", style="dim", overflow="ellipsis", no_wrap=True)
        width = max(10, min(40, console.width - 44))
        bar = ProgressBar(
            total=progress.rounds, completed=progress.version, width=width, pulse=not progress.rounds
        )
        header = Table.grid(padding=(0, 1))
        seconds_left = self.seconds_left
        time_left = (
            ""
            if seconds_left is None or progress.fraction == 1
            else f"{approximate_duration(seconds_left)} left"
        )
        header.add_row(self.activity, bar, progress.count(), time_left)
        loss = "" if not progress.losses else f"loss {progress.losses[0]:.3f} "
        line = Text(loss, overflow="ellipsis", no_wrap=True)
        if progress.losses:
            line.append(sparkline(progress.losses, 12 if narrow else 24), style="cyan")
            line.append(f" {progress.losses[-1]:.3f}  ")
        line.append(f"{progress.bytes:,} bytes in {progress.updates:,} updates")
        if not narrow:
            line.append(f"  {progress.elapsed_seconds:,.1f} s of run time")
        return Group(header, line, self._learners(console, narrow=narrow))

    def _learners(self, console: Console, *, narrow: bool) -> RenderableType:
        progress = self.progress
        states = learner_states(progress)
        shown = sorted(states)[: max(1, min(_MAX_LEARNERS, console.height - _OTHER_LINES))]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("learner", overflow="ellipsis", no_wrap=True, max_width=24)
        table.add_column("state", no_wrap=True)
        table.add_column("updates", justify="right")
        if not narrow:
            table.add_column("bytes", justify="right")
            table.add_column("loss", justify="right")
        for name in shown:
            learner = progress.learners.get(name)
            cells = [f"{learner.updates:,}" if learner else "0"]
            if not narrow:
                cells.append(f"{learner.bytes:,}" if learner else "0")
                cells.append("–" if learner is None or learner.loss is None else f"{learner.loss:.3f}")
            table.add_row(Text(name), Text(states[name], style=_STYLES.get(states[name], "")), *cells)
        if len(states) == len(shown):
            return table
        not_shown = [states[name] for name in states if name not in shown]
        counts = ", ".join(f"{not_shown.count(state)} {state}" for state in sorted(set(not_shown)))
        return Group(table, Text(f"and {len(not_shown)} more: {counts}", style="dim"))


_STYLES = {"training": "green", "evaluating": "blue", "waiting": "dim", "lost": "red"}


REFRESH_PER_SECOND = 3


@contextmanager
def show_progress(rounds: int | None, clock: Callable[[], float] = time.monotonic) -> Iterator[ProgressView]:
    """Show the progress view of a run, then print a summary line.

    Args:
        rounds: Number of versions of the run, if known.
        clock: Returns the time in seconds.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    is_live = console.is_terminal and not console.is_dumb_terminal
    view = ProgressView(rounds, clock, lines=not is_live)
    if is_live:
        live_view = Live(
            get_renderable=lambda: view.draw(console),
            console=console,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        with live_view:
            yield view
    else:
        yield view
    view.print_summary(use_sparkline=is_live and (sys.stderr.encoding or "").lower().startswith("utf"))
