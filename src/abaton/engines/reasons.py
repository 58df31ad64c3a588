"""What may be said of a task that came to nothing: a few fixed words, never the text of an error."""

from __future__ import annotations

from abaton.errors import AbatonError

DIED = "process ended"
DROPPED = "dropped out"
FAILED = "learner failed"
GONE = "learner is gone"
LATE = "no answer in time"
NO_BASE = "base is gone"
OTHER_LAYOUT = "another layout"
OTHER_SOFTWARE = "another version of Abaton"
OTHER_TERMS = "other terms"
REFUSED = "task was refused"
STRANGER = "not in this run"
UNKNOWN = "unknown message"
UNREADABLE_ANSWER = "unreadable answer"
UNREADABLE_UPDATE = "unreadable update"

REASONS = frozenset({DIED, FAILED, LATE, NO_BASE, OTHER_LAYOUT, OTHER_TERMS, REFUSED, STRANGER, UNKNOWN})
"""Everything that a site may say went wrong; no other text of a site's errors is ever passed on."""


class Said(Exception):
    """One of the fixed words, on its way to the controller."""


def plain_reason(said: object) -> str:
    """A site's reason if it is one of those that a site may give.

    >>> plain_reason("another layout"), plain_reason("patient 4711 is not finite")
    ('another layout', 'learner failed')
    """
    return said if isinstance(said, str) and said in REASONS else FAILED


def word_for(error: Exception) -> str:
    """The fixed word for an error.

    >>> word_for(Said(NO_BASE)), word_for(AbatonError("row 4711")), word_for(ValueError("row 4711"))
    ('base is gone', 'task was refused', 'learner failed')
    """
    if isinstance(error, Said):
        return plain_reason(str(error))
    return REFUSED if isinstance(error, AbatonError) else FAILED
