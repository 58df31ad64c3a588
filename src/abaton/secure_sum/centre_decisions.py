"""Decisions of the centre in secure sums: pure functions of state and message.

Invariants:
(1) a contribution is in at most one context that is not abandoned;
(2) a sum is opened only when all its inputs are there, and from then on it cannot be abandoned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from immutables import Map
from pydantic import Field, TypeAdapter

from abaton.secure_sum.modular_vectors import ModularSum, Values, content_digest
from abaton.secure_sum.settings import SumSettings
from abaton.secure_sum.sum_keys import (
    PRIME,
    SEED_BYTES,
    lagrange_weights,
    seed_commitment,
    self_mask_key,
    share_digest,
)
from abaton.secure_sum.sum_messages import (
    CHECK_SEGMENT,
    JsonMessage,
    KeyAdvertisement,
    KeyDirectory,
    MaskedInput,
    RevealedShares,
    SiteFaultError,
    SumContext,
)
from abaton.secure_sum.sum_rules import advertisement_problem, check_context, refuse


class SumPhase(StrEnum):
    """Phase of a sum at the centre."""

    COLLECTING = "collecting"
    OPENING = "opening"
    OPENED = "opened"
    FAILED = "failed"
    ABANDONED = "abandoned"


class KeyReceived(JsonMessage):
    """A site advertised a valid key."""

    kind: Literal["key"] = "key"
    advertisement: KeyAdvertisement


class DirectoryFixed(JsonMessage):
    """The run's key directory is complete."""

    kind: Literal["directory"] = "directory"
    directory: KeyDirectory


class SumBegun(JsonMessage):
    """A sum was begun."""

    kind: Literal["begun"] = "begun"
    context: SumContext


class InputReceived(JsonMessage):
    """A valid masked input arrived; its payload is an attachment."""

    kind: Literal["input"] = "input"
    context_digest: bytes
    site: str
    head: bytes
    payload_digest: bytes


class OpeningStarted(JsonMessage):
    """All inputs are there: shares of exactly this context will be requested."""

    kind: Literal["opening"] = "opening"
    context_digest: bytes


class SharesReceived(JsonMessage):
    """A holder revealed its shares; an empty share did not match the digest of its dealer."""

    kind: Literal["shares"] = "shares"
    context_digest: bytes
    holder: str
    shares: tuple[bytes, ...]


class SumOpened(JsonMessage):
    """The sum was computed; its values are an attachment."""

    kind: Literal["opened"] = "opened"
    context_digest: bytes
    values_digest: bytes
    mismatches: tuple[tuple[str, str], ...]


class SumFailed(JsonMessage):
    """The sum cannot be opened; `site` is the site at fault, empty if unknown."""

    kind: Literal["failed"] = "failed"
    context_digest: bytes
    site: str
    reason: str


class SumAbandoned(JsonMessage):
    """The sum was given up before opening; its contributions may be part of another one."""

    kind: Literal["abandoned"] = "abandoned"
    context_digest: bytes


CentreEvent: TypeAlias = (
    KeyReceived
    | DirectoryFixed
    | SumBegun
    | InputReceived
    | OpeningStarted
    | SharesReceived
    | SumOpened
    | SumFailed
    | SumAbandoned
)
CENTRE_EVENT: TypeAdapter[CentreEvent] = TypeAdapter(Annotated[CentreEvent, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class SumProgress:
    """One sum at the centre.

    Attributes:
        context: What is summed.
        phase: Where it is.
        inputs: Heads of masked inputs by site, without payload.
        payload_digests: Digests of their payloads.
        shares: Shares by holder, in the order of contributors; empty if a share did not match.
        failure: Reason and site at fault of a failed sum.
        mismatches: Contributor and holder of shares that did not match, of an opened sum.
    """

    context: SumContext
    phase: SumPhase = SumPhase.COLLECTING
    inputs: Map[str, MaskedInput] = field(default_factory=Map)
    payload_digests: Map[str, bytes] = field(default_factory=Map)
    shares: Map[str, tuple[bytes, ...]] = field(default_factory=Map)
    failure: tuple[str, str] = ("", "")
    mismatches: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SumCentreState:
    """What the centre knows of a run: the fold of its events."""

    keys: Map[str, KeyAdvertisement] = field(default_factory=Map)
    directory: KeyDirectory | None = None
    sums: Map[bytes, SumProgress] = field(default_factory=Map)
    contexts: Map[tuple[str, str], bytes] = field(
        default_factory=Map
    )  # of contributions in a sum that is not abandoned


def apply_centre_event(state: SumCentreState, event: CentreEvent) -> SumCentreState:
    """Return the state after an event."""
    match event:
        case KeyReceived():
            return replace(state, keys=state.keys.set(event.advertisement.site, event.advertisement))
        case DirectoryFixed():
            return replace(state, directory=event.directory)
        case SumBegun():
            digest = event.context.digest
            keys = {contributor.key: digest for contributor in event.context.contributors}
            sums = state.sums.set(digest, SumProgress(event.context))
            return replace(state, sums=sums, contexts=state.contexts.update(keys))
        case _:
            progress = _apply_to_sum(state.sums[event.context_digest], event)
            contexts = state.contexts
            if progress.phase is SumPhase.ABANDONED:
                for contributor in progress.context.contributors:
                    contexts = contexts.delete(contributor.key)
            return replace(state, sums=state.sums.set(event.context_digest, progress), contexts=contexts)


def _apply_to_sum(
    progress: SumProgress,
    event: InputReceived | OpeningStarted | SharesReceived | SumOpened | SumFailed | SumAbandoned,
) -> SumProgress:
    match event:
        case InputReceived():
            return replace(
                progress,
                inputs=progress.inputs.set(event.site, MaskedInput.from_bytes(event.head)),
                payload_digests=progress.payload_digests.set(event.site, event.payload_digest),
            )
        case OpeningStarted():
            return replace(progress, phase=SumPhase.OPENING)
        case SharesReceived():
            return replace(progress, shares=progress.shares.set(event.holder, event.shares))
        case SumOpened():
            return SumProgress(progress.context, SumPhase.OPENED, mismatches=event.mismatches)
        case SumFailed():
            return SumProgress(progress.context, SumPhase.FAILED, failure=(event.reason, event.site))
        case SumAbandoned():
            return SumProgress(progress.context, SumPhase.ABANDONED)


def decide_key(
    state: SumCentreState, advertisement: KeyAdvertisement, settings: SumSettings
) -> list[CentreEvent]:
    """Accept the key of a site before the directory is fixed.

    Raises:
        SiteFaultError: The key is invalid, or the site advertised another one before.
        RefusedError: The directory is fixed.
    """
    if problem := advertisement_problem(advertisement, settings):
        raise SiteFaultError(advertisement.site, problem)
    earlier = state.keys.get(advertisement.site)
    if earlier is not None:
        if earlier != advertisement:
            raise SiteFaultError(advertisement.site, "advertised another key before")
        return []
    if state.directory is not None:
        raise refuse("the key directory of this run is fixed", "start another run with this site")
    return [KeyReceived(advertisement=advertisement)]


def decide_begin(state: SumCentreState, context: SumContext, settings: SumSettings) -> list[CentreEvent]:
    """Begin a sum.

    Raises:
        RefusedError: A rule is broken, or a contribution belongs to another sum.
    """
    if state.directory is None:
        raise refuse("the key directory is not fixed", "fix it when enough sites have advertised keys")
    check_context(context, settings, state.directory)
    progress = state.sums.get(context.digest)
    if progress is not None and progress.phase is not SumPhase.ABANDONED:
        return []
    if any(contributor.key in state.contexts for contributor in context.contributors):
        raise refuse("a contribution is part of another sum", "abandon that sum first")
    return [SumBegun(context=context)]


def decide_input(state: SumCentreState, masked: MaskedInput) -> list[CentreEvent]:
    """Accept a masked input; the last one starts the opening.

    Raises:
        SiteFaultError: It has another form, length, context or signature than it must have.
        RefusedError: The sum was abandoned.
    """
    progress = state.sums.get(masked.context_digest)
    if progress is None:
        raise SiteFaultError(masked.site, "sent a masked input for a context that was not requested")
    context, directory = progress.context, state.directory
    assert directory is not None
    if masked.site not in {contributor.site for contributor in context.contributors}:
        raise SiteFaultError(masked.site, "sent a masked input to a sum of others")
    if len(masked.payload) != context.payload_bytes:
        raise SiteFaultError(masked.site, "sent a masked input of another length")
    if {len(masked.sealed_shares), len(masked.share_digests)} != {len(directory.holders)}:
        raise SiteFaultError(masked.site, "sent another number of shares")
    payload_digest = content_digest(masked.payload)
    if not masked.is_signed_by(directory.by_site[masked.site].signing_key, payload_digest):
        raise SiteFaultError(masked.site, "sent a masked input without a valid signature")
    if progress.phase is SumPhase.ABANDONED:
        raise refuse("the sum was abandoned")
    if progress.phase in (SumPhase.OPENED, SumPhase.FAILED):
        return []
    head = masked.head_bytes()
    if masked.site in progress.inputs:
        known = progress.inputs[masked.site].head_bytes(), progress.payload_digests[masked.site]
        if known != (head, payload_digest):
            raise SiteFaultError(masked.site, "signed two different masked inputs for one context")
        return []
    digest = context.digest
    events: list[CentreEvent] = [
        InputReceived(context_digest=digest, site=masked.site, head=head, payload_digest=payload_digest)
    ]
    if len(progress.inputs) + 1 == len(context.contributors):
        events.append(OpeningStarted(context_digest=digest))
    return events


def decide_shares(
    state: SumCentreState, revealed: RevealedShares, settings: SumSettings
) -> list[CentreEvent]:
    """Accept the shares of a holder, checked against the digests of their dealers.

    Raises:
        SiteFaultError: The sum is not being opened, or the number of shares differs.
    """
    progress = state.sums.get(revealed.context_digest)
    if progress is None or progress.phase in (SumPhase.COLLECTING, SumPhase.ABANDONED):
        raise SiteFaultError(revealed.site, "revealed shares that were not requested")
    if progress.phase is not SumPhase.OPENING:
        return []
    context, directory = progress.context, state.directory
    assert directory is not None
    if revealed.site not in directory.holders or len(revealed.shares) != len(context.contributors):
        raise SiteFaultError(revealed.site, "revealed another number of shares")
    index = directory.holders[revealed.site] - 1
    shares = tuple(
        share
        if share_digest(context.digest, dealer.site, revealed.site, share)
        == progress.inputs[dealer.site].share_digests[index]
        else b""
        for dealer, share in zip(context.contributors, revealed.shares, strict=True)
    )
    known = progress.shares.get(revealed.site)
    if known is not None and (b"" not in known or known == shares):
        return []
    events: list[CentreEvent] = [
        SharesReceived(context_digest=context.digest, holder=revealed.site, shares=shares)
    ]
    # Up to c holders may lie; if more than c shares of one dealer do not match, the dealer is at fault.
    answers = progress.shares.set(revealed.site, shares)
    for position, dealer in enumerate(context.contributors):
        if sum(not answer[position] for answer in answers.values()) > settings.colluding:
            reason = "made shares that do not match its own digests"
            events.append(SumFailed(context_digest=context.digest, site=dealer.site, reason=reason))
            break
    return events


def is_openable(progress: SumProgress, settings: SumSettings) -> bool:
    """Return whether the centre has enough matching shares of every contributor."""
    return progress.phase is SumPhase.OPENING and all(
        sum(bool(answer[position]) for answer in progress.shares.values()) >= settings.threshold
        for position in range(len(progress.context.contributors))
    )


def open_sum(
    progress: SumProgress,
    settings: SumSettings,
    directory: KeyDirectory,
    payloads: Iterable[bytes],
) -> Values:
    """Return the values of a sum that is openable.

    Args:
        progress: The sum with its shares.
        settings: Settings of the study.
        directory: The run's key directory.
        payloads: Payloads in the order of contributors.

    Raises:
        SiteFaultError: Shares of a site do not give the seed that it committed to; `site` is empty if the masks of
            an unknown site are wrong.
    """
    context, weights_by_holders = progress.context, dict[tuple[str, ...], list[int]]()
    total = ModularSum(context.all_segments)
    for position, (contributor, payload) in enumerate(zip(context.contributors, payloads, strict=True)):
        holders = tuple(
            holder
            for holder in directory.holders
            if holder in progress.shares and progress.shares[holder][position]
        )[: settings.threshold]
        if holders not in weights_by_holders:
            weights_by_holders[holders] = lagrange_weights([directory.holders[holder] for holder in holders])
        secret = (
            sum(
                weight * int.from_bytes(progress.shares[holder][position], "little")
                for weight, holder in zip(weights_by_holders[holders], holders, strict=True)
            )
            % PRIME
        )
        seed = secret.to_bytes(32, "little")
        if (
            seed[SEED_BYTES:] != bytes(32 - SEED_BYTES)
            or seed_commitment(context.digest, contributor.site, seed[:SEED_BYTES])
            != progress.inputs[contributor.site].commitment
        ):
            raise SiteFaultError(contributor.site, "made shares that do not give the seed of its commitment")
        total.add_payload(payload)
        total.add_stream(self_mask_key(seed[:SEED_BYTES], context.digest), negative=True)
    values, in_range = total.to_values(len(settings.sites), len(context.contributors))
    result = dict(values)
    if int(result.pop(CHECK_SEGMENT)[0]) != len(context.contributors) or not in_range:
        raise SiteFaultError("", "masked its contribution with other masks or with values out of range")
    return result
