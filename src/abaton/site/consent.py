"""May this person's records be used for this study, now? The one question that the pipeline asks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from abaton.canonical import digest
from abaton.governance import Action, Ask, Permit, Reason, Registry, tag
from abaton.study import Study
from abaton.study.document import FORMAT

_WORDS = {
    Reason.ABSENT: "there is no consent",
    Reason.EXPIRED: "the consent has expired",
    Reason.NOT_YET: "the consent does not hold yet",
    Reason.WITHDRAWN: "the consent was withdrawn",
    Reason.OTHER_DOCUMENT: "the consent is to another version of the study document",
    Reason.NOT_OPTED_IN: "the person takes part in no studies",
    Reason.NOT_PERMITTED: "the consent does not permit this",
    Reason.OPTED_OUT: "the person has opted out of use for research",
    Reason.STUDY_CLOSED: "the registry does not have this study as open",
}


SAID_NO = frozenset(_WORDS[each] for each in (Reason.WITHDRAWN, Reason.OPTED_OUT, Reason.NOT_OPTED_IN))
"""The reasons for which somebody has left, whatever a clock says."""


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

    def words(self) -> str:
        """On what ground records are used, for a report."""


@dataclass(frozen=True, slots=True)
class OptOuts:
    """Those who have opted out of any use for research, by the list that was read last.

    Args:
        registry: Where the list is kept.
        key: The key under which people are known there.
    """

    registry: Registry
    key: bytes = field(repr=False)

    def names(self, subject: str) -> bool:
        """Whether a person is on the list."""
        return subject_tag(self.key, subject) in self.registry.who_is_out()


@dataclass(frozen=True, slots=True)
class StatedGround:
    """A site that answers for a lawful ground of its own, such as an ethics vote, for everybody in its records.

    >>> from datetime import UTC
    >>> StatedGround("ethics vote 7/2026")("1", datetime(2026, 1, 1, tzinfo=UTC)).allowed
    True
    """

    ground: str
    opt_outs: OptOuts | None = None

    def in_general(self, moment: datetime) -> Permission:
        """What holds for whoever has not opted out."""
        return Permission(allowed=True, ground=self.ground)

    def __call__(
        self,
        subject: str,
        moment: datetime,
        action: Action = Action.COLLECT,
        kinds: Collection[str] = (),
    ) -> Permission:
        """Everybody is allowed on the stated ground, but for those who have opted out."""
        return _OUT if self.opt_outs and self.opt_outs.names(subject) else self.in_general(moment)

    def words(self) -> str:
        """On what ground, for a report."""
        return f"used on a ground that the site states: {self.ground}{_but(self.opt_outs)}"


@dataclass(frozen=True, slots=True)
class PermittedUse:
    """A data permit for one study document, minus those who have opted out.

    Args:
        permit: The permit.
        purpose: What the study is for.
        document: The hash of its document.
        opt_outs: The opt-out list, if the site has one.
    """

    permit: Permit
    purpose: str
    document: str
    opt_outs: OptOuts | None = None

    def in_general(self, moment: datetime) -> Permission:
        """What holds for whoever has not opted out."""
        reason = self.permit.reason(self.document, self.purpose, moment)
        if reason.allows:
            return Permission(allowed=True, ground=f"permit {self.permit.digest} for {self.document}")
        return Permission(allowed=False, reason=_PERMIT_WORDS[reason])

    def __call__(
        self,
        subject: str,
        moment: datetime,
        action: Action = Action.COLLECT,
        kinds: Collection[str] = (),
    ) -> Permission:
        """Everybody is allowed while the permit holds, but for those who have opted out."""
        return _OUT if self.opt_outs and self.opt_outs.names(subject) else self.in_general(moment)

    def words(self) -> str:
        """On what ground, for a report."""
        made = self.permit
        return (
            f"used on data permit {made.number} of {made.authority}, {made.start} to {made.end}, "
            f"for {', '.join(made.purposes)}, given for document {made.document}{_but(self.opt_outs)}"
        )


_OUT = Permission(allowed=False, reason="the person has opted out of use for research")
_PERMIT_WORDS = {
    Reason.OTHER_DOCUMENT: "the data permit was given for another version of the study document",
    Reason.NOT_PERMITTED: "the data permit does not name the study's purpose",
    Reason.NOT_YET: "the data permit does not hold yet",
    Reason.EXPIRED: "the data permit has expired",
}


def _but(opt_outs: OptOuts | None) -> str:
    if opt_outs is None:
        return ""
    return f"; whoever is on the opt-out list {list_digest(opt_outs.registry.who_is_out())} is left out"


def list_digest(tags: Collection[str]) -> str:
    """The fingerprint of a list of people, by which the audit chain and the report know it."""
    return digest(sorted(tags))


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

    def words(self) -> str:
        """On what ground, for a report."""
        return f"used with each person's consent to document {self.document}"

    def __repr__(self) -> str:
        return f"RegisteredConsents({self.study})"


def publish(registry: Registry, study: Study, when: datetime) -> None:
    """Publish a study's document in a registry, with its end and with the time after which all of it must be gone."""
    content = {"format": FORMAT, **study.content()}
    registry.publish(
        study.study.id, study.hash, when, ends=study.ends, keep_until=study.keep_until, content=content
    )


def subject_tag(key: bytes, subject: str) -> str:
    """How a person is named in the site's registry: a tag of the Patient's id under the site's key.

    >>> subject_tag(b"k" * 32, "p1") == tag(b"k" * 32, "subject", "p1")
    True
    """
    return tag(key, "subject", subject)
