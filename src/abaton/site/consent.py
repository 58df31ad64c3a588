"""May this person's records be used for this study, now? The one question that the pipeline asks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from abaton.governance import Action, Ask, Reason, Registry, tag

WITHDRAWN = "the consent was withdrawn"

_WORDS = {
    Reason.ABSENT: "there is no consent",
    Reason.EXPIRED: "the consent has expired",
    Reason.NOT_YET: "the consent does not hold yet",
    Reason.WITHDRAWN: WITHDRAWN,
    Reason.OTHER_DOCUMENT: "the consent is to another version of the study document",
    Reason.NOT_OPTED_IN: "the person takes part in no studies",
    Reason.NOT_PERMITTED: "the consent does not permit this",
    Reason.STUDY_CLOSED: "the registry does not have this study as open",
}


class Permission(NamedTuple):
    """Whether records may be used, on what ground, and if not, why (a few words, never content).

    Types of resources that were asked for and are not covered are in `without`.
    """

    allowed: bool
    ground: str = ""
    reason: str = ""
    without: frozenset[str] = frozenset()


class ConsentGate(Protocol):
    """Whoever knows the consents for one study, pinned to its document's hash."""

    def __call__(
        self,
        subject: str,
        moment: datetime,
        action: Action = Action.COLLECT,
        kinds: Collection[str] = (),
    ) -> Permission:
        """Whether a subject's records may be used.

        Args:
            subject: The id of the Patient in the site's records.
            moment: The time for which is asked.
            action: What is to be done with them.
            kinds: The types of resources that it is to be done with.
        """


@dataclass(frozen=True, slots=True)
class StatedGround:
    """A site that answers for a lawful ground of its own, such as an ethics vote, for everybody in its records.

    >>> from datetime import UTC
    >>> StatedGround("ethics vote 7/2026")("1", datetime(2026, 1, 1, tzinfo=UTC)).allowed
    True
    """

    ground: str

    def __call__(
        self,
        subject: str,
        moment: datetime,
        action: Action = Action.COLLECT,
        kinds: Collection[str] = (),
    ) -> Permission:
        """Everybody is allowed, on the stated ground."""
        return Permission(allowed=True, ground=self.ground)


@dataclass(frozen=True, slots=True)
class RegisteredConsents:
    """Consents in a registry: each person's own, in force now, to this very study document.

    Args:
        registry: The consents.
        key: The key under which people are known there; see :func:`subject_tag`.
        study: The study's id.
        document: The hash of its document.
    """

    registry: Registry
    key: bytes
    study: str
    document: str

    def __call__(
        self,
        subject: str,
        moment: datetime,
        action: Action = Action.COLLECT,
        kinds: Collection[str] = (),
    ) -> Permission:
        """What the registry says of a person, an action and types of resources at a moment."""
        ask = Ask(subject_tag(self.key, subject), self.study, self.document, action)
        reason, without = self.registry.permission(ask, kinds, moment)
        if reason.allows:
            ground = f"consent to {self.study} {self.document}"
            return Permission(allowed=True, ground=ground, without=without)
        return Permission(
            allowed=False, reason=_WORDS.get(reason, f"the consent does not hold: {reason.value}")
        )

    def __repr__(self) -> str:
        return f"RegisteredConsents({self.study})"


def subject_tag(key: bytes, subject: str) -> str:
    """How a person is named in the site's registry: a tag of the Patient's id under the site's key.

    >>> subject_tag(b"k" * 32, "p1") == tag(b"k" * 32, "subject", "p1")
    True
    """
    return tag(key, "subject", subject)
