"""A lifeline: processes end with the one that started them, however that ended.

A child whose parent was killed waits forever: its pipes never end, since its brothers and sisters hold copies of the
parent's ends. So there is one pipe more, to which nobody writes and whose writing end only the parent keeps. The system
closes it with the parent, and every child hears that. Something else that the parent has forked may hold a copy of that
end, too, so that children also look now and then whether their parent is still the same.
"""

from __future__ import annotations

import multiprocessing
import os
import threading

_LOOK = 0.5  # seconds


class Lifeline:
    """Made by a parent before it forks, and held by its children."""

    def __init__(self) -> None:
        self._parent = os.getpid()
        self._theirs, self._ours = multiprocessing.get_context("fork").Pipe(duplex=False)

    def let_go(self) -> None:
        """Let children that are still there end."""
        self._ours.close()
        self._theirs.close()

    def hold(self) -> None:
        """End this process, a child, as soon as its parent is gone, whatever it is doing."""
        self._ours.close()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while os.getppid() == self._parent and not self._theirs.poll(_LOOK):
            pass
        os._exit(1)
