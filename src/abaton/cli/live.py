"""Show a run while it goes on: a picture in a terminal, a line now and then where there is none.

A run never waits for it: hearing of an event keeps a few numbers, and a thread of its own draws them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from abaton.cli.screen import View

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

    from abaton.cli.screen import View

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
