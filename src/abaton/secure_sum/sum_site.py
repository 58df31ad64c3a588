"""A site's side of secure sums: masks its contributions and helps to open sums.

Every method decides (:mod:`abaton.secure_sum.site_decisions`) and writes the events that follow before it answers.
Everything secret is derived from one secret of the run, so an answer that is repeated, also after a crash, has the same
bytes. One context masks one vector: other values under the same masks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from abaton.errors import SettingsError
from abaton.governance.keys import PrivateKey, RandomBytes
from abaton.secure_sum.event_log import EventLog, EventMachine, LogTransaction
from abaton.secure_sum.modular_vectors import (
    ModularSum,
    Values,
    content_digest,
    values_from_bytes,
    values_to_bytes,
)
from abaton.secure_sum.settings import SumSettings
from abaton.secure_sum.site_decisions import (
    SITE_EVENT,
    ContributionDropped,
    ContributionRecorded,
    InputMasked,
    KeyAdvertised,
    SecretCreated,
    SiteEvent,
    SumSiteState,
    apply_site_event,
    decide_contribution,
    decide_directory,
    decide_opening,
    decide_own_part,
)
from abaton.secure_sum.sum_keys import (
    PRIME,
    SEED_BYTES,
    SHARE_BYTES,
    derive_key,
    derive_number,
    exchange_key,
    pair_secret,
    seed_commitment,
    self_mask_key,
    share_at,
    share_digest,
    share_pad,
)
from abaton.secure_sum.sum_messages import (
    CHECK_SEGMENT,
    Contributor,
    JsonMessage,
    KeyAdvertisement,
    KeyDirectory,
    MaskedInput,
    RevealedShares,
    RevealRequest,
    SumContext,
    SumSegment,
)
from abaton.secure_sum.sum_rules import refuse

Encoder: TypeAlias = Callable[[Values, SumContext], Values]
"""Turns recorded values into the values of the context's segments; a deterministic function of both."""


class SumSite:
    """One site in the secure sums of a run.

    Args:
        settings: Settings that the study document fixes.
        site: This site.
        signing_key: Its signing key, whose fingerprint the study lists.
        trusted_signers: Fingerprints of the other sites' keys that this site has compared.
        log: Durable log; several processes of the site may share it.
        random_bytes: Source of the run's secret, used once.
        encode: Turns recorded values into those of the segments; by default they are the same.
    """

    def __init__(
        self,
        settings: SumSettings,
        site: str,
        signing_key: PrivateKey,
        trusted_signers: Mapping[str, str],
        log: EventLog,
        random_bytes: RandomBytes,
        encode: Encoder = lambda values, context: values,
    ) -> None:
        if settings.sites.get(site) != signing_key.id:
            raise SettingsError(
                f"the study does not list the signing key of site '{site}'",
                where="secure sum",
                remedy="send the fingerprint of the key to the research centre",
            )
        self._settings, self._site, self._signing_key = settings, site, signing_key
        self._trusted_signers, self._encode = trusted_signers, encode
        self._machine = EventMachine(
            log, SumSiteState(), apply_site_event, SITE_EVENT.validate_json, JsonMessage.to_bytes
        )
        self._pair_secrets: tuple[str, Mapping[str, bytes]] = ("", {})  # with the digest of their directory
        self._machine.transact(lambda state, transaction: (self._joined(state, random_bytes), None))

    def _joined(self, state: SumSiteState, random_bytes: RandomBytes) -> list[SiteEvent]:
        settings = self._settings
        if state.created is None:
            secret = random_bytes(32)
            return [SecretCreated(study=settings.study, run=settings.run, site=self._site, secret=secret)]
        if (state.created.study, state.created.run, state.created.site) != (
            settings.study,
            settings.run,
            self._site,
        ):
            raise refuse("the state belongs to another study, run or site", "use one file for each run")
        return []

    @property
    def state(self) -> SumSiteState:
        """State after the last transaction of this process."""
        return self._machine.state

    def advertise(self, subjects: int) -> KeyAdvertisement:
        """Return the site's signed key; `subjects` is a lower bound, fixed by the first call."""

        def decide(state: SumSiteState, _: LogTransaction) -> tuple[list[SiteEvent], KeyAdvertisement]:
            if state.advertisement is not None:
                return [], state.advertisement
            advertisement = KeyAdvertisement(
                study=self._settings.study,
                run=self._settings.run,
                site=self._site,
                exchange_key=exchange_key(self._secret(state)).public_key().public_bytes_raw(),
                subjects=subjects,
                signing_key=self._signing_key.public.raw,
            ).sign(self._signing_key)
            return [KeyAdvertised(advertisement=advertisement)], advertisement

        return self._machine.transact(decide)

    def accept_directory(self, directory: KeyDirectory) -> None:
        """Accept the keys of the run's sites, once.

        Raises:
            RefusedError: See :func:`decide_directory`.
        """

        def decide(state: SumSiteState, _: LogTransaction) -> tuple[list[SiteEvent], None]:
            events = decide_directory(state, directory, self._settings, self._trusted_signers)
            if events:
                self._secrets_of_pairs(state, directory)
            return events, None

        self._machine.transact(decide)

    def record(
        self, contributor: Contributor, purpose: str, segments: Sequence[SumSegment], values: Values
    ) -> None:
        """Fix the contribution of a finished task.

        Args:
            contributor: This site, the task, and the version that it started from.
            purpose: What the task contributes to.
            segments: Segments that the study prescribes for this purpose.
            values: Vectors of int64 or float64.

        Raises:
            RefusedError: See :func:`decide_contribution`.
            SettingsError: A vector has another type, or a float is not finite.
        """
        if contributor.site != self._site:
            raise refuse("the contribution is that of another site", "record own contributions only")
        if any(vector.dtype.kind == "f" and not np.isfinite(vector).all() for vector in values.values()):
            raise SettingsError(
                "a value is not finite", where="secure sum", remedy="exclude missing values before summing"
            )
        content = values_to_bytes(values)
        contribution = ContributionRecorded(
            contributor=contributor,
            purpose=purpose,
            segments=tuple(segments),
            content_digest=content_digest(content),
        )

        def decide(state: SumSiteState, transaction: LogTransaction) -> tuple[list[SiteEvent], None]:
            events = decide_contribution(state, contribution)
            if events:
                transaction.attach(_attachment(contributor.task), content)
            return events, None

        self._machine.transact(decide)

    def mask(self, context: SumContext) -> MaskedInput:
        """Return this site's masked contribution to a sum, always the same bytes for a context.

        Raises:
            RefusedError: A rule is broken, or the context differs from what this site did.
            SettingsError: The encoded values are out of range.
        """

        def decide(state: SumSiteState, transaction: LogTransaction) -> tuple[list[SiteEvent], MaskedInput]:
            recorded = decide_own_part(state, context, self._settings, self._site)
            if recorded is None:
                raise refuse("this site is not a contributor of the sum")
            task = recorded.contributor.task
            if state.opened.get((self._site, task), context.digest) != context.digest:
                raise refuse("the contribution was opened in another context")
            if task in state.dropped:
                raise refuse("the contribution was deleted after its sum was opened")
            values = values_from_bytes(transaction.attachment(_attachment(task)))
            masked = self._masked(state, context, self._encode(values, context))
            payload_digest = content_digest(masked.payload)
            if state.payload_digests.get(context.digest, payload_digest) != payload_digest:
                raise refuse(
                    "other values were masked in this context before", "the encoder must be deterministic"
                )
            signed = replace(masked, signature=self._signing_key.sign(masked.signed_bytes(payload_digest)))
            if context.digest in state.payload_digests:
                return [], signed
            return [InputMasked(context_digest=context.digest, payload_digest=payload_digest)], signed

        return self._machine.transact(decide)

    def reveal(self, request: RevealRequest) -> RevealedShares:
        """Return this site's shares of the contributors' seeds, after recording that it opens this sum.

        Raises:
            RefusedError: See :func:`decide_opening`.
        """

        def decide(state: SumSiteState, _: LogTransaction) -> tuple[list[SiteEvent], RevealedShares]:
            events = decide_opening(state, request, self._settings, self._site)
            context, pairs = request.context, self._secrets_of_pairs(state, state.directory)
            shares = tuple(
                (
                    (
                        int.from_bytes(sealed, "little")
                        - share_pad(pairs[dealer.site], context.digest, dealer.site, self._site)
                    )
                    % PRIME
                ).to_bytes(SHARE_BYTES, "little")
                for dealer, sealed in zip(context.contributors, request.sealed_shares, strict=True)
            )
            return events, RevealedShares(self._site, context.digest, shares)

        return self._machine.transact(decide)

    def drop(self, task: str) -> None:
        """Delete the values of a task whose sum was opened or will not be made."""

        def decide(state: SumSiteState, transaction: LogTransaction) -> tuple[list[SiteEvent], None]:
            if task not in state.contributions or task in state.dropped:
                return [], None
            transaction.detach(_attachment(task))
            return [ContributionDropped(task=task)], None

        self._machine.transact(decide)

    def erase(self) -> None:
        """Delete the secret and everything else at the end of the run."""
        self._machine.erase()
        self._pair_secrets = ("", {})

    def _masked(self, state: SumSiteState, context: SumContext, values: Values) -> MaskedInput:
        directory = state.directory
        assert directory is not None
        pairs, site, digest = self._secrets_of_pairs(state, directory), self._site, context.digest
        seed = derive_key(self._secret(state), digest, b"self-mask", length=SEED_BYTES)
        total = ModularSum(context.all_segments)
        total.add_values({**values, CHECK_SEGMENT: np.ones(1, np.int64)}, len(self._settings.sites))
        total.add_stream(self_mask_key(seed, digest))
        for contributor in context.contributors:
            if contributor.site != site:
                key = derive_key(pairs[contributor.site], digest, b"pair")
                total.add_stream(key, negative=contributor.site < site)
        polynomial = derive_key(self._secret(state), digest, b"polynomial")
        coefficients = [int.from_bytes(seed, "little")] + [
            derive_number(polynomial, digest, b"coefficient", degree.to_bytes(2, "big"))
            for degree in range(1, self._settings.threshold)
        ]
        sealed, digests = [], []
        for holder, index in directory.holders.items():
            share = share_at(coefficients, index)
            pad = share_pad(pairs[holder], digest, site, holder)
            sealed.append(((share + pad) % PRIME).to_bytes(SHARE_BYTES, "little"))
            digests.append(share_digest(digest, site, holder, share.to_bytes(SHARE_BYTES, "little")))
        return MaskedInput(
            site,
            digest,
            seed_commitment(digest, site, seed),
            tuple(sealed),
            tuple(digests),
            total.to_payload(),
        )

    def _secret(self, state: SumSiteState) -> bytes:
        if state.created is None:
            raise refuse("the run has ended at this site", "start another run")
        return state.created.secret

    def _secrets_of_pairs(self, state: SumSiteState, directory: KeyDirectory | None) -> Mapping[str, bytes]:
        assert directory is not None
        if self._pair_secrets[0] != directory.digest:
            own = exchange_key(self._secret(state))
            secrets = {}
            for advertisement in directory.advertisements:
                try:
                    secrets[advertisement.site] = pair_secret(own, advertisement.exchange_key)
                except ValueError:
                    raise refuse(f"the key of site '{advertisement.site}' has small order") from None
            self._pair_secrets = directory.digest, secrets
        return self._pair_secrets[1]


def _attachment(task: str) -> str:
    return f"contribution/{task}"
