"""May this person's records be used for this study, now? The one question that the pipeline asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from abaton.canonical_json import digest
from abaton.governance import Action, Ask, Held, Permit, Reason, Registry, tag
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
    ground: Held | None = None
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
    """Those who have opted out of any use for research, by the list that was read last, and who have left a study.

    Args:
        registry: Where both are kept.
        key: The key under which people are known there.
        study: The study's id.
        has_list: Whether the site's document names an opt-out list.
    """

    registry: Registry
    key: bytes = field(repr=False)
    study: str
    has_list: bool = True

    def names(self, subject: str) -> bool:
        """Whether a person is out."""
        return subject_tag(self.key, subject) in self.out()

    def out(self) -> frozenset[str]:
        """The tags of everybody who is out; while nothing has changed, the very same set."""
        return self.registry.who_is_out(self.study)


class _ForEverybody(ABC):
    """A gate that is open to all on one ground, but for those who have opted out."""

    __slots__ = ()
    opt_outs: OptOuts | None

    @abstractmethod
    def in_general(self, moment: datetime, action: Action) -> Permission:
        """What holds for whoever has not opted out."""

    def __call__(
        self,
        subject: str,
        moment: datetime,
        action: Action = Action.COLLECT,
        kinds: Collection[str] = (),
    ) -> Permission:
        """What holds in general, unless the person has opted out: that always wins."""
        return _OUT if self.opt_outs and self.opt_outs.names(subject) else self.in_general(moment, action)


@dataclass(frozen=True, slots=True)
class StatedGround(_ForEverybody):
    """A site that answers for a lawful ground of its own, such as an ethics vote, for everybody in its records.

    Args:
        ground: The ground, as the audit chain holds it; see :func:`abaton.governance.state_ground`.
        opt_outs: Who has opted out or left the study, if the site knows people.
    """

    ground: Held
    opt_outs: OptOuts | None = None

    def in_general(self, moment: datetime, action: Action) -> Permission:
        """What holds for whoever has not opted out."""
        return Permission(allowed=True, ground=self.ground)

    def words(self) -> str:
        """On what ground, for a report."""
        return f"used on a ground that the site states: {self.ground.words}{_but(self.opt_outs)}"


@dataclass(frozen=True, slots=True)
class PermittedUse(_ForEverybody):
    """A data permit for one study document, minus those who have opted out.

    Args:
        permit: The permit.
        purpose: What the study is for.
        document: The hash of its document.
        ground: The permit as the audit chain holds it; see :func:`abaton.governance.note_permit`.
        opt_outs: Who has opted out or left the study, if the site knows people.
    """

    permit: Permit
    purpose: str
    document: str
    ground: Held
    opt_outs: OptOuts | None = None

    def in_general(self, moment: datetime, action: Action) -> Permission:
        """What holds for whoever has not opted out."""
        reason = self.permit.reason(self.document, self.purpose, moment, action)
        if reason.allows:
            return Permission(allowed=True, ground=self.ground)
        return Permission(allowed=False, reason=_PERMIT_WORDS[reason])

    def words(self) -> str:
        """On what ground, for a report."""
        made = self.permit
        actions = ", ".join(_ACTIONS[each] for each in made.actions)
        return (
            f"used on data permit {made.number} of {made.authority}, {made.start} to {made.end}, "
            f"for {', '.join(made.purposes)}, to {actions}, "
            f"given for document {made.document}{_but(self.opt_outs)}"
        )


_OUT = Permission(allowed=False, reason="the person has opted out of use for research")
_ACTIONS = {Action.COLLECT: "collect", Action.SEND: "send", Action.TRAIN: "train"}
_PERMIT_WORDS = {
    Reason.OTHER_DOCUMENT: "the data permit was given for another version of the study document",
    Reason.NOT_PERMITTED: "the data permit does not name the study's purpose, or does not allow this",
    Reason.NOT_YET: "the data permit does not hold yet",
    Reason.EXPIRED: "the data permit has expired",
}


def _but(opt_outs: OptOuts | None) -> str:
    if opt_outs is None or not opt_outs.has_list:
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
            ground = self.registry.held(f"consent to {self.study} {self.document}")
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
