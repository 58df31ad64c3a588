"""Decisions of a site in secure sums: pure functions of state and message.

Invariants:
(1) the contributions of one sum are recorded as opened in one event, and a contribution that was opened in one context
    is opened in no other;
(2) a site contributes once to each purpose and version, and only to later versions;
(3) a site helps to open its own contribution only in a context in which it masked it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

from immutables import Map
from pydantic import Field, TypeAdapter

from abaton.secure_sum.settings import SumSettings
from abaton.secure_sum.sum_keys import PRIME
from abaton.secure_sum.sum_messages import (
    Contributor,
    JsonMessage,
    KeyAdvertisement,
    KeyDirectory,
    RevealRequest,
    SumContext,
    SumSegment,
)
from abaton.secure_sum.sum_rules import check_context, check_directory, refuse


class SecretCreated(JsonMessage):
    """The site joined a run with a new secret."""

    kind: Literal["secret"] = "secret"
    study: str
    run: str
    site: str
    secret: Annotated[bytes, Field(repr=False, min_length=32, max_length=32)]


class KeyAdvertised(JsonMessage):
    """The site advertised its key; later calls repeat it."""

    kind: Literal["advertised"] = "advertised"
    advertisement: KeyAdvertisement


class DirectoryAccepted(JsonMessage):
    """The site accepted the run's key directory."""

    kind: Literal["directory"] = "directory"
    directory: KeyDirectory


class ContributionRecorded(JsonMessage):
    """The site finished a task; its values are an attachment."""

    kind: Literal["contribution"] = "contribution"
    contributor: Contributor
    purpose: str
    segments: tuple[SumSegment, ...]
    content_digest: bytes


class ContributionDropped(JsonMessage):
    """The values of a task were deleted."""

    kind: Literal["dropped"] = "dropped"
    task: str


class InputMasked(JsonMessage):
    """The site masked a contribution in a context."""

    kind: Literal["masked"] = "masked"
    context_digest: bytes
    payload_digest: bytes


class ContributionsOpened(JsonMessage):
    """The site helped to open all contributions of one sum."""

    kind: Literal["opened"] = "opened"
    context_digest: bytes
    contributions: tuple[tuple[str, str], ...]


SiteEvent: TypeAlias = (
    SecretCreated
    | KeyAdvertised
    | DirectoryAccepted
    | ContributionRecorded
    | ContributionDropped
    | InputMasked
    | ContributionsOpened
)
SITE_EVENT: TypeAdapter[SiteEvent] = TypeAdapter(Annotated[SiteEvent, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class SumSiteState:
    """What a site knows of a run: the fold of its events."""

    created: SecretCreated | None = None
    advertisement: KeyAdvertisement | None = None
    directory: KeyDirectory | None = None
    contributions: Map[str, ContributionRecorded] = field(default_factory=Map)
    dropped: frozenset[str] = frozenset()
    last_versions: Map[str, int] = field(default_factory=Map)
    payload_digests: Map[bytes, bytes] = field(default_factory=Map)
    opened: Map[tuple[str, str], bytes] = field(default_factory=Map)


def apply_site_event(state: SumSiteState, event: SiteEvent) -> SumSiteState:
    """Return the state after an event."""
    match event:
        case SecretCreated():
            return replace(state, created=event)
        case KeyAdvertised():
            return replace(state, advertisement=event.advertisement)
        case DirectoryAccepted():
            return replace(state, directory=event.directory)
        case ContributionRecorded():
            return replace(
                state,
                contributions=state.contributions.set(event.contributor.task, event),
                last_versions=state.last_versions.set(event.purpose, event.contributor.version),
            )
        case ContributionDropped():
            return replace(state, dropped=state.dropped | {event.task})
        case InputMasked():
            digests = state.payload_digests.set(event.context_digest, event.payload_digest)
            return replace(state, payload_digests=digests)
        case ContributionsOpened():
            opened = state.opened.update(dict.fromkeys(event.contributions, event.context_digest))
            return replace(state, opened=opened)


def decide_directory(
    state: SumSiteState, directory: KeyDirectory, settings: SumSettings, trusted_signers: Mapping[str, str]
) -> list[SiteEvent]:
    """Accept the run's key directory once.

    Raises:
        RefusedError: It breaks a rule, lacks this site, or differs from the one that was accepted.
    """
    if state.directory is not None:
        if state.directory.digest != directory.digest:
            raise refuse("this run has another key directory")
        return []
    if state.advertisement is None or state.advertisement not in directory.advertisements:
        raise refuse("the key directory lacks this site's own key")
    own = state.advertisement
    check_directory(directory, settings, {**trusted_signers, own.site: own.signer()})
    return [DirectoryAccepted(directory=directory)]


def decide_contribution(state: SumSiteState, contribution: ContributionRecorded) -> list[SiteEvent]:
    """Fix the values of a finished task.

    Raises:
        RefusedError: The task has other values already, or its version is not later than the last of its purpose.
    """
    contributor = contribution.contributor
    recorded = state.contributions.get(contributor.task)
    if recorded is not None:
        if recorded != contribution:
            raise refuse(f"task '{contributor.task}' has another contribution already", "use a new task")
        return []
    last = state.last_versions.get(contribution.purpose)
    if last is not None and contributor.version <= last:
        raise refuse(
            f"this site has contributed to version {last} of '{contribution.purpose}' already",
            "start from a later version",
        )
    if any(
        earlier.purpose == contribution.purpose
        and earlier.contributor.version_digest == contributor.version_digest
        for earlier in state.contributions.values()
    ):
        raise refuse("this site has contributed to the same model under another version already")
    return [contribution]


def decide_own_part(
    state: SumSiteState, context: SumContext, settings: SumSettings, site: str
) -> ContributionRecorded | None:
    """Check a context and return this site's contribution in it, or None if it has none.

    Raises:
        RefusedError: A rule is broken, or the context differs from what this site did.
    """
    if state.directory is None:
        raise refuse("this site has no key directory", "send the key directory first")
    check_context(context, settings, state.directory)
    line = next((contributor for contributor in context.contributors if contributor.site == site), None)
    if line is None:
        return None
    recorded = state.contributions.get(line.task)
    if recorded is None:
        raise refuse("this site has not finished the task")
    if recorded.contributor != line:
        raise refuse("the task started from another version or model")
    if (recorded.purpose, recorded.segments) != (context.purpose, context.segments):
        raise refuse("the sum has another purpose or other segments than the task")
    return recorded


def decide_opening(
    state: SumSiteState, request: RevealRequest, settings: SumSettings, site: str
) -> list[SiteEvent]:
    """Allow the opening of a sum, once for each of its contributions.

    Raises:
        RefusedError: A rule is broken, or a contribution was opened in another context.
    """
    context = request.context
    own = decide_own_part(state, context, settings, site)
    if request.site != site or len(request.sealed_shares) != len(context.contributors):
        raise refuse("the shares are not those of this site")
    if any(int.from_bytes(sealed, "little") >= PRIME for sealed in request.sealed_shares):
        raise refuse("a sealed share is malformed")
    if own is not None and context.digest not in state.payload_digests:
        raise refuse("this site has not masked its contribution in this context")
    keys = tuple(contributor.key for contributor in context.contributors)
    earlier = {state.opened.get(key) for key in keys}
    if earlier - {None, context.digest}:
        raise refuse("a contribution of this sum was opened in another context")
    if earlier == {context.digest}:
        return []
    return [ContributionsOpened(context_digest=context.digest, contributions=keys)]
