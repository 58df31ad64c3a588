"""The centre's side of secure sums: collects masked inputs and shares, and opens each sum once.

Every method decides (:mod:`abaton.secure_sum.centre_decisions`) and writes the events that follow before it returns: a
context before its first request, the opening before the first share is requested, the sum in the transaction that
deletes masked inputs and shares. After a restart :meth:`SumCentre.requests` returns what is still to be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from abaton.secure_sum.centre_decisions import (
    CENTRE_EVENT,
    CentreEvent,
    DirectoryFixed,
    SumAbandoned,
    SumCentreState,
    SumFailed,
    SumOpened,
    SumPhase,
    SumProgress,
    apply_centre_event,
    decide_begin,
    decide_input,
    decide_key,
    decide_shares,
    is_openable,
    open_sum,
)
from abaton.secure_sum.event_log import EventLog, EventMachine, LogTransaction
from abaton.secure_sum.modular_vectors import content_digest, values_from_bytes, values_to_bytes
from abaton.secure_sum.settings import SumSettings
from abaton.secure_sum.sum_messages import (
    Contributor,
    JsonMessage,
    KeyAdvertisement,
    KeyDirectory,
    MaskedInput,
    MaskRequest,
    Request,
    RevealedShares,
    RevealRequest,
    SiteFaultError,
    SumContext,
    SumResult,
    SumSegment,
)
from abaton.secure_sum.sum_rules import refuse


class SumCentre:
    """The centre in the secure sums of a run.

    Args:
        settings: Settings that the study document fixes.
        log: Durable log.
    """

    def __init__(self, settings: SumSettings, log: EventLog) -> None:
        self._settings = settings
        self._machine = EventMachine(
            log, SumCentreState(), apply_centre_event, CENTRE_EVENT.validate_json, JsonMessage.to_bytes
        )
        self._machine.transact(lambda state, transaction: ([], None))

    @property
    def state(self) -> SumCentreState:
        """State after the last transaction."""
        return self._machine.state

    def accept_key(self, advertisement: KeyAdvertisement) -> None:
        """Accept the key of a site; raises as :func:`decide_key`."""
        self._machine.transact(lambda state, _: (decide_key(state, advertisement, self._settings), None))

    def fix_directory(self) -> KeyDirectory:
        """Return the run's key directory, fixed by the first call.

        Raises:
            RefusedError: Fewer sites than the threshold have advertised a key.
        """

        def decide(state: SumCentreState, _: LogTransaction) -> tuple[list[CentreEvent], KeyDirectory]:
            if state.directory is not None:
                return [], state.directory
            if len(state.keys) < self._settings.threshold:
                raise refuse(
                    f"{len(state.keys)} sites have advertised keys, {self._settings.threshold} are needed",
                    "wait for more sites",
                )
            directory = KeyDirectory(advertisements=tuple(state.keys[site] for site in sorted(state.keys)))
            return [DirectoryFixed(directory=directory)], directory

        return self._machine.transact(decide)

    def begin(
        self,
        purpose: str,
        contributors: Sequence[Contributor],
        segments: Sequence[SumSegment],
        settings: Mapping[str, str] | None = None,
    ) -> SumContext:
        """Begin a sum and return its context; raises as :func:`decide_begin`."""

        def decide(state: SumCentreState, _: LogTransaction) -> tuple[list[CentreEvent], SumContext]:
            context = SumContext(
                study=self._settings.study,
                run=self._settings.run,
                directory=state.directory.digest if state.directory else "0" * 64,
                threshold=self._settings.threshold,
                purpose=purpose,
                contributors=tuple(sorted(contributors, key=lambda contributor: contributor.site)),
                settings=dict(settings or {}),
                segments=tuple(segments),
            )
            return decide_begin(state, context, self._settings), context

        return self._machine.transact(decide)

    def requests(self, context: SumContext) -> list[Request]:
        """Return what is still to be asked for a sum: masked inputs, then shares."""
        return self._machine.transact(lambda state, _: ([], _open_requests(state, context)))

    def receive_input(self, masked: MaskedInput) -> None:
        """Accept a masked input; raises as :func:`decide_input`."""

        def decide(state: SumCentreState, transaction: LogTransaction) -> tuple[list[CentreEvent], None]:
            events = decide_input(state, masked)
            if events:
                transaction.attach(_payload_name(masked.context_digest, masked.site), masked.payload)
            return events, None

        self._machine.transact(decide)

    def receive_shares(self, revealed: RevealedShares) -> None:
        """Accept the shares of a holder, and open the sum when there are enough; raises as :func:`decide_shares`."""

        def decide(state: SumCentreState, transaction: LogTransaction) -> tuple[list[CentreEvent], None]:
            events = decide_shares(state, revealed, self._settings)
            for event in events:
                state = apply_centre_event(state, event)
            if events and is_openable(progress := state.sums[revealed.context_digest], self._settings):
                assert state.directory is not None
                events.append(_opened(progress, self._settings, state.directory, transaction))
            if events and isinstance(events[-1], SumOpened | SumFailed):
                _delete_payloads(state.sums[revealed.context_digest].context, transaction)
            return events, None

        self._machine.transact(decide)

    def abandon(self, context: SumContext) -> None:
        """Give up a sum whose inputs are not complete, so that another set of sites can be summed.

        Raises:
            RefusedError: The sum is being opened, or is open.
        """

        def decide(state: SumCentreState, transaction: LogTransaction) -> tuple[list[CentreEvent], None]:
            phase = _progress(state, context).phase
            if phase is SumPhase.ABANDONED:
                return [], None
            if phase is not SumPhase.COLLECTING:
                raise refuse(f"the sum is {phase.value}", "wait for more sites, or go on without this sum")
            _delete_payloads(context, transaction)
            return [SumAbandoned(context_digest=context.digest)], None

        self._machine.transact(decide)

    def phase(self, context: SumContext) -> SumPhase:
        """Return the phase of a sum."""
        return self._machine.transact(lambda state, _: ([], _progress(state, context).phase))

    def result(self, context: SumContext) -> SumResult:
        """Return an opened sum, as often as needed.

        Raises:
            SiteFaultError: The sum failed; the error names the site at fault.
            RefusedError: The sum is not open.
        """

        def decide(state: SumCentreState, transaction: LogTransaction) -> tuple[list[CentreEvent], SumResult]:
            progress = _progress(state, context)
            if progress.phase is SumPhase.FAILED:
                reason, site = progress.failure
                raise SiteFaultError(site, reason)
            if progress.phase is not SumPhase.OPENED:
                raise refuse(f"the sum is {progress.phase.value}", "wait for more sites")
            values = values_from_bytes(transaction.attachment(_values_name(context)))
            return [], SumResult(context, values, progress.mismatches)

        return self._machine.transact(decide)

    def erase(self) -> None:
        """Delete everything at the end of the run."""
        self._machine.erase()


def _progress(state: SumCentreState, context: SumContext) -> SumProgress:
    progress = state.sums.get(context.digest)
    if progress is None:
        raise refuse("this sum was not begun", "begin it first")
    return progress


def _open_requests(state: SumCentreState, context: SumContext) -> list[Request]:
    progress, directory = _progress(state, context), state.directory
    assert directory is not None
    if progress.phase is SumPhase.COLLECTING:
        sites = [contributor.site for contributor in context.contributors]
        return [MaskRequest(site, context) for site in sites if site not in progress.inputs]
    if progress.phase is SumPhase.OPENING:
        return [
            RevealRequest(
                holder,
                context,
                tuple(
                    progress.inputs[dealer.site].sealed_shares[index - 1] for dealer in context.contributors
                ),
            )
            for holder, index in directory.holders.items()
            if b"" in progress.shares.get(holder, (b"",))
        ]
    return []


def _opened(
    progress: SumProgress, settings: SumSettings, directory: KeyDirectory, transaction: LogTransaction
) -> SumOpened | SumFailed:
    context = progress.context
    payloads = (
        transaction.attachment(_payload_name(context.digest, contributor.site))
        for contributor in context.contributors
    )
    try:
        values = open_sum(progress, settings, directory, payloads)
    except SiteFaultError as fault:
        return SumFailed(context_digest=context.digest, site=fault.site, reason=fault.reason)
    content = values_to_bytes(values)
    transaction.attach(_values_name(context), content)
    mismatches = tuple(
        (contributor.site, holder)
        for position, contributor in enumerate(context.contributors)
        for holder, shares in sorted(progress.shares.items())
        if not shares[position]
    )
    return SumOpened(
        context_digest=context.digest, values_digest=content_digest(content), mismatches=mismatches
    )


def _delete_payloads(context: SumContext, transaction: LogTransaction) -> None:
    for contributor in context.contributors:
        transaction.detach(_payload_name(context.digest, contributor.site))


def _payload_name(context_digest: bytes, site: str) -> str:
    return f"payload/{context_digest.hex()}/{site}"


def _values_name(context: SumContext) -> str:
    return f"sum/{context.digest.hex()}"
