"""Sessions of people who have shown their token: short, bounded in number, kept in memory alone.

A restart of the dashboard ends them all, which costs a person one look at their token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from abaton.dashboard.access import Person


@dataclass(slots=True)
class _Session:
    """One person's session: since when, and when it was last used."""

    person: Person
    begun: float
    used: float


class Sessions:
    """The sessions of one dashboard.

    Args:
        tick: Seconds that only go forward.
        idle: After how many seconds without a request a session ends.
        longest: After how many seconds it ends in any case.
        most: How many there are at most; the longest unused is dropped.
    """

    def __init__(
        self, tick: Callable[[], float], *, idle: float = 1800, longest: float = 8 * 3600, most: int = 1000
    ) -> None:
        self._tick, self.idle, self.longest, self._most = tick, idle, longest, most
        self._open: OrderedDict[str, _Session] = OrderedDict()
        self._secret = secrets.token_bytes(32)

    def begin(self, person: Person) -> str:
        """Open a session; the name that its cookie carries."""
        name, now = secrets.token_urlsafe(32), self._tick()
        self._open[name] = _Session(person, now, now)
        while len(self._open) > self._most:
            self._open.popitem(last=False)
        return name

    def person(self, name: str, *, use: bool = True) -> Person | None:
        """Whose session it is, if it has not ended; `use` counts as being there."""
        found, now = self._open.get(name), self._tick()
        if found is None:
            return None
        if now - found.used > self.idle or now - found.begun > self.longest:
            del self._open[name]
            return None
        if use:
            found.used = now
            self._open.move_to_end(name)
        return found.person

    def end(self, name: str) -> None:
        """Close a session."""
        self._open.pop(name, None)

    def form_key(self, name: str) -> str:
        """What every form of a session carries, so that no other site can send it (CSRF)."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def is_form_key(self, name: str, key: str) -> bool:
        """Whether a form was made for a session."""
        return hmac.compare_digest(self.form_key(name).encode(), key.encode())
