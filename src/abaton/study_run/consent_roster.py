"""Who may be used now: asked of a site's consents before every round, and written down with the round.

Invariants:
(1) nobody is trained on in a round whose snapshot does not hold them;
(2) who is out once stays out for the run;
(3) the roll knows people by the site's own ids: it never leaves the site;
(4) while no consent changes, begins or ends, asking costs the same however many people there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from abaton.canonical_json import digest
from abaton.errors import Refused
from abaton.governance import Action, Snapshot, note_round, take_snapshot
from abaton.site import (
    SAID_NO,
    ConsentGate,
    OptOuts,
    Permission,
    PermittedUse,
    RegisteredConsents,
    SiteFile,
    StatedGround,
    gate_of,
    subject_tag,
)
from abaton.study import Study

Moment = Callable[[float], datetime]
"""What time it is in the world when an engine's clock says so many seconds."""


class _Seen(NamedTuple):
    """An answer that was given: of whom, from whom, and who."""

    keys: tuple[str, ...]
    allowed: frozenset[str]
    inside: frozenset[str]


@dataclass
class Roll:
    """The people of one site in one run, and whether they still agree.

    Args:
        file: The site's document, which says who knows the consents.
        study: The study; consents are pinned to its hash.
        run: The name of the run, under which rounds are noted.
        people: How rows name people, and the Patient's id of each.
        moment: The time of the world by the engine's clock.
    """

    file: SiteFile
    study: Study
    run: str
    people: Mapping[str, str] = field(repr=False)
    moment: Moment
    _opened: tuple[int, ConsentGate] | None = field(default=None, init=False, repr=False)
    _tags: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _seen: _Seen | None = field(default=None, init=False, repr=False)
    _last: Snapshot | None = field(default=None, init=False, repr=False)
    _order: tuple[tuple[str, ...], tuple[str, ...]] = field(default=((), ()), init=False, repr=False)

    def inside(self, keys: Sequence[str], at: float) -> frozenset[str]:
        """Who of some people may be used at a moment, without writing anything down."""
        gate, when, asked = self._gate(), self.moment(at), tuple(keys)
        if isinstance(gate, RegisteredConsents):
            document, allowed = gate.registry.who_may(gate.study, Action.TRAIN, when)
            self._check(document)
            return self._among(gate, asked, allowed)
        if isinstance(gate, StatedGround | PermittedUse):
            return (
                self._without_opt_outs(gate, asked)
                if gate.in_general(when, Action.TRAIN).allowed
                else frozenset()
            )
        return frozenset(key for key in asked if gate(self.people[key], when, Action.TRAIN).allowed)

    def taken(self, keys: Sequence[str], at: float, version: int | None = None) -> tuple[frozenset[str], str]:
        """Take a snapshot of who is in, and its fingerprint; noted as the cohort of a round if a version is given."""
        gate, when, asked = self._gate(), self.moment(at), tuple(keys)
        if not isinstance(gate, RegisteredConsents):
            inside = self.inside(asked, at)
            about = {"study": self.study.study.id, "document": self.study.hash, "purpose": Action.TRAIN.value}
            return inside, digest({**about, "members": sorted(inside)})
        if self._order[0] != asked:
            self._order = asked, tuple(sorted(self._tag(gate, key) for key in asked))
        made = take_snapshot(gate.registry, gate.study, Action.TRAIN, when, self._order[1], self._last)
        self._check(made.document)
        self._last = made
        if version is not None:
            note_round(gate.registry.database, self.run, version, made, when)
        return self._among(gate, asked, made.allowed), made.id

    def _among(
        self, gate: RegisteredConsents, keys: tuple[str, ...], allowed: frozenset[str]
    ) -> frozenset[str]:
        """Who of some people is among those who may be used; asked again of the same, the same answer."""
        seen = self._seen
        if seen is None or seen.allowed is not allowed or seen.keys != keys:
            inside = frozenset(key for key in keys if self._tag(gate, key) in allowed)
            self._seen = seen = _Seen(keys, allowed, inside)
        return seen.inside

    def _without_opt_outs(self, gate: StatedGround | PermittedUse, keys: tuple[str, ...]) -> frozenset[str]:
        """Everybody who is not on the opt-out list; asked again of the same, the same answer."""
        out = gate.opt_outs.out() if gate.opt_outs else frozenset()
        seen = self._seen
        if seen is None or seen.allowed is not out or seen.keys != keys:
            if gate.opt_outs is None:
                inside = frozenset(keys)
            else:
                inside = frozenset(key for key in keys if self._tag(gate.opt_outs, key) not in out)
            self._seen = seen = _Seen(keys, out, inside)
        return seen.inside

    def _tag(self, gate: RegisteredConsents | OptOuts, key: str) -> str:
        found = self._tags.get(key)
        if found is None:
            found = self._tags[key] = subject_tag(gate.key, self.people[key])
        return found

    def _check(self, document: str) -> None:
        if document != self.study.hash:
            raise Refused(
                "the registry has another document of this study now",
                where=f"site '{self.file.document.site.id}'",
                remedy="start a new run with the new document",
            )

    def _gate(self) -> ConsentGate:
        """The gate, opened once in every process: a database is not shared with a forked one."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened, self._seen, self._last = (os.getpid(), gate_of(self.file, self.study)), None, None
        return self._opened[1]


class StillIn:
    """A gate for a run that is resumed: who has left since it was begun does not pass.

    Args:
        gate: Who knows the consents.
        later: The moment by which people may have left.
        simulated: Whether the run's clock is simulated: a consent that ends by itself then ends by that clock, and
            only who has said no since has left.
    """

    def __init__(self, gate: ConsentGate, later: datetime, *, simulated: bool) -> None:
        self.gate, self._later, self._simulated = gate, later, simulated

    def __call__(
        self,
        subject: str,
        moment: datetime,
        action: Action = Action.COLLECT,
        kinds: Collection[str] = (),
    ) -> Permission:
        """What the gate says of the moment, unless the person has left since."""
        then = self.gate(subject, moment, action, kinds)
        if not then.allowed:
            return then
        now = self.gate(subject, max(self._later, moment), action, kinds)
        left = not now.allowed and (not self._simulated or now.reason in SAID_NO)
        return now if left else then

    def words(self) -> str:
        """On what ground, for a report."""
        return self.gate.words()


def key_of(gate: ConsentGate) -> bytes | None:
    """The key under which the site knows people who may leave, if anybody may."""
    inner = gate.gate if isinstance(gate, StillIn) else gate
    if isinstance(inner, StatedGround | PermittedUse):
        return None if inner.opt_outs is None else inner.opt_outs.key
    return inner.key if isinstance(inner, RegisteredConsents) else None
