"""Consent roster of a run: the subjects that may be used, checked before every round and recorded with it.

Invariants:
(1) no subject is trained on in a round whose snapshot does not contain them;
(2) a subject that was removed once stays removed for the run;
(3) the roster uses the site's own identifiers and never leaves the site;
(4) while no consent changes, starts or ends, the cost of a check does not depend on the number of subjects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from abaton.canonical_json import canonical_digest
from abaton.errors import RefusedError
from abaton.governance import CohortSnapshot, ConsentAction, record_round, take_snapshot
from abaton.site import (
    WITHDRAWAL_REASONS,
    ConsentGate,
    LoadedSiteConfig,
    OptOutGate,
    PermissionDecision,
    PermittedUse,
    RegistryGate,
    StatedLegalBasis,
    build_consent_gate,
    subject_pseudonym,
)
from abaton.study import Study

WallClock = Callable[[float], datetime]
"""Converts seconds of an engine's clock to a UTC timestamp."""


class _CachedEligibility(NamedTuple):
    """The last eligibility result, with the keys and the allowed set that it was computed from."""

    keys: tuple[str, ...]
    allowed: frozenset[str]
    eligible: frozenset[str]


@dataclass
class ConsentRoster:
    """Subjects of one site in one run, and whether they may still be used.

    Args:
        file: The site's configuration, which names the source of consents.
        study: The study; consents refer to its hash.
        run: The name of the run under which rounds are recorded.
        patient_ids: Patient id of each subject key of the rows.
        wall_clock: Converts the engine's clock to UTC.
    """

    file: LoadedSiteConfig
    study: Study
    run: str
    patient_ids: Mapping[str, str] = field(repr=False)
    wall_clock: WallClock
    _gate_of_process: tuple[int, ConsentGate] | None = field(default=None, init=False, repr=False)
    _pseudonyms: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _cached: _CachedEligibility | None = field(default=None, init=False, repr=False)
    _last_snapshot: CohortSnapshot | None = field(default=None, init=False, repr=False)
    _sorted_pseudonyms: tuple[tuple[str, ...], tuple[str, ...]] = field(
        default=((), ()), init=False, repr=False
    )

    def eligible_at(self, keys: Sequence[str], seconds: float) -> frozenset[str]:
        """Return the subjects on the consent roster at a time of the engine's clock; record nothing."""
        gate, timestamp, subjects = self._gate(), self.wall_clock(seconds), tuple(keys)
        if isinstance(gate, RegistryGate):
            document, allowed = gate.registry.eligible_subjects(gate.study, ConsentAction.TRAIN, timestamp)
            self._check_study_hash(document)
            return self._eligible_among(gate, subjects, allowed)
        if isinstance(gate, StatedLegalBasis | PermittedUse):
            return (
                self._without_opt_outs(gate, subjects)
                if gate.decide_for_all(timestamp, ConsentAction.TRAIN).allowed
                else frozenset()
            )
        return frozenset(
            key for key in subjects if gate(self.patient_ids[key], timestamp, ConsentAction.TRAIN).allowed
        )

    def take_snapshot_for_round(
        self, keys: Sequence[str], seconds: float, version: int | None = None
    ) -> tuple[frozenset[str], str]:
        """Return the roster's eligible subjects and snapshot digest; given a version, record the round's cohort."""
        gate, timestamp, subjects = self._gate(), self.wall_clock(seconds), tuple(keys)
        if not isinstance(gate, RegistryGate):
            eligible = self.eligible_at(subjects, seconds)
            scope = {
                "study": self.study.study.id,
                "document": self.study.hash,
                "purpose": ConsentAction.TRAIN.value,
            }
            return eligible, canonical_digest(
                {**scope, "members": sorted(eligible)}
            )  # frozen: part of the bytes
        if self._sorted_pseudonyms[0] != subjects:
            self._sorted_pseudonyms = subjects, tuple(sorted(self._pseudonym(gate, key) for key in subjects))
        snapshot = take_snapshot(
            gate.registry,
            gate.study,
            ConsentAction.TRAIN,
            timestamp,
            self._sorted_pseudonyms[1],
            self._last_snapshot,
        )
        self._check_study_hash(snapshot.document)
        self._last_snapshot = snapshot
        if version is not None:
            record_round(gate.registry.database, self.run, version, snapshot, timestamp)
        return self._eligible_among(gate, subjects, snapshot.eligible), snapshot.id

    def _eligible_among(
        self, gate: RegistryGate, keys: tuple[str, ...], allowed: frozenset[str]
    ) -> frozenset[str]:
        """Return the roster's subjects whose pseudonym is allowed; repeated calls use the cached result."""
        cached = self._cached
        if cached is None or cached.allowed is not allowed or cached.keys != keys:
            eligible = frozenset(key for key in keys if self._pseudonym(gate, key) in allowed)
            self._cached = cached = _CachedEligibility(keys, allowed, eligible)
        return cached.eligible

    def _without_opt_outs(
        self, gate: StatedLegalBasis | PermittedUse, keys: tuple[str, ...]
    ) -> frozenset[str]:
        """Return the roster's subjects that are not on the opt-out list; repeated calls use the cached result."""
        opted_out = gate.opt_outs.opted_out() if gate.opt_outs else frozenset()
        cached = self._cached
        if cached is None or cached.allowed is not opted_out or cached.keys != keys:
            if gate.opt_outs is None:
                eligible = frozenset(keys)
            else:
                eligible = frozenset(
                    key for key in keys if self._pseudonym(gate.opt_outs, key) not in opted_out
                )
            self._cached = cached = _CachedEligibility(keys, opted_out, eligible)
        return cached.eligible

    def _pseudonym(self, gate: RegistryGate | OptOutGate, key: str) -> str:
        pseudonym = self._pseudonyms.get(key)
        if pseudonym is None:
            pseudonym = self._pseudonyms[key] = subject_pseudonym(gate.key, self.patient_ids[key])
        return pseudonym

    def _check_study_hash(self, document: str) -> None:
        if document != self.study.hash:
            raise RefusedError(
                "the registry contains another version of the study document",
                where=f"site '{self.file.config.site.id}'",
                remedy="start a new run with the new document",
            )

    def _gate(self) -> ConsentGate:
        """Return the roster's consent gate, opened once per process: a forked process needs its own database."""
        if self._gate_of_process is None or self._gate_of_process[0] != os.getpid():
            self._gate_of_process, self._cached, self._last_snapshot = (
                (os.getpid(), build_consent_gate(self.file, self.study)),
                None,
                None,
            )
        return self._gate_of_process[1]


class RemainingConsentGate:
    """Gate of a resumed run: subjects that withdrew since its start do not pass.

    Args:
        gate: Source of consents.
        later: Time up to which withdrawals count.
        simulated: Whether the run's clock is simulated. A consent then expires by that clock, and only an explicit
            withdrawal since the start counts.
    """

    def __init__(self, gate: ConsentGate, later: datetime, *, simulated: bool) -> None:
        self.gate, self._later, self._simulated = gate, later, simulated

    def __call__(
        self,
        subject: str,
        timestamp: datetime,
        action: ConsentAction = ConsentAction.COLLECT,
        resource_types: Collection[str] = (),
    ) -> PermissionDecision:
        """Return the consent decision in a resumed run: at the start, or at the later time after a withdrawal."""
        at_start = self.gate(subject, timestamp, action, resource_types)
        if not at_start.allowed:
            return at_start
        now = self.gate(subject, max(self._later, timestamp), action, resource_types)
        is_withdrawn = not now.allowed and (not self._simulated or now.reason in WITHDRAWAL_REASONS)
        return now if is_withdrawn else at_start

    def legal_basis_text(self) -> str:
        """Return the legal basis of a resumed run's consent roster as text for a report."""
        return self.gate.legal_basis_text()


def pseudonym_key(gate: ConsentGate) -> bytes | None:
    """Return the key of the pseudonyms behind a consent roster; None if no subject can withdraw."""
    inner = gate.gate if isinstance(gate, RemainingConsentGate) else gate
    if isinstance(inner, StatedLegalBasis | PermittedUse):
        return None if inner.opt_outs is None else inner.opt_outs.key
    return inner.key if isinstance(inner, RegistryGate) else None
