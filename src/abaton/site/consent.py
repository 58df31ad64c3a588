"""May this person's records be used for this study, now? The one question that the pipeline asks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol


class Permission(NamedTuple):
    """Whether records may be used, on what ground, and if not, why (a code or a few words, never content)."""

    allowed: bool
    ground: str = ""
    reason: str = ""


class ConsentGate(Protocol):
    """Whoever knows the consents for one study, pinned to its document's hash."""

    def __call__(self, subject: str, kind: str, moment: datetime) -> Permission:
        """Whether a subject's records may be used.

        Args:
            subject: The id of the Patient in the site's records.
            kind: The type of resource; empty for the person as a whole.
            moment: The time for which is asked.
        """


@dataclass(frozen=True, slots=True)
class StatedGround:
    """A site that answers for a lawful ground of its own, such as an ethics vote, for everybody in its records.

    >>> from datetime import UTC
    >>> StatedGround("ethics vote 7/2026")("1", "Observation", datetime(2026, 1, 1, tzinfo=UTC)).allowed
    True
    """

    ground: str

    def __call__(self, subject: str, kind: str, moment: datetime) -> Permission:
        """Everybody is allowed, on the stated ground."""
        return Permission(allowed=True, ground=self.ground)
