"""Who may be used now: asked of a site's consents before every round, and written down with the round.

Invariants:
(1) nobody is trained on in a round whose snapshot does not hold them;
(2) who is out once stays out for the run;
(3) the roll knows people by the site's own ids: it never leaves the site.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from abaton.canonical import digest
from abaton.errors import Refused
from abaton.governance import Action, note_round, take_snapshot, who_may
from abaton.site import (
    WITHDRAWN,
    ConsentGate,
    Permission,
    RegisteredConsents,
    SiteFile,
    gate_of,
    subject_tag,
)
from abaton.study import Study

Moment = Callable[[float], datetime]
"""What time it is in the world when an engine's clock says so many seconds."""


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

    def inside(self, keys: Sequence[str], at: float) -> frozenset[str]:
        """Who of some people may be used at a moment, without writing anything down."""
        gate, when = self._gate(), self.moment(at)
        if isinstance(gate, RegisteredConsents):
            document, allowed = who_may(gate.registry, gate.study, Action.TRAIN, when)
            self._check(document)
            return frozenset(key for key in keys if subject_tag(gate.key, self.people[key]) in allowed)
        return frozenset(key for key in keys if gate(self.people[key], when, Action.TRAIN).allowed)

    def taken(self, keys: Sequence[str], at: float, version: int | None = None) -> tuple[frozenset[str], str]:
        """Take a snapshot of who is in, and its fingerprint; noted as the cohort of a round if a version is given."""
        gate, when = self._gate(), self.moment(at)
        if not isinstance(gate, RegisteredConsents):
            inside = self.inside(keys, at)
            about = {"study": self.study.study.id, "document": self.study.hash, "purpose": Action.TRAIN.value}
            return inside, digest({**about, "members": sorted(inside)})
        tags = {subject_tag(gate.key, self.people[key]): key for key in keys}
        made = take_snapshot(gate.registry, gate.study, Action.TRAIN, when, list(tags))
        self._check(made.document)
        if version is not None:
            note_round(gate.registry.database, self.run, version, made, when)
        return frozenset(tags[member] for member in made.members), made.id

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
            self._opened = os.getpid(), gate_of(self.file, self.study)
        return self._opened[1]


class StillIn:
    """A gate for a run that is gone on with: who has left since it was begun does not pass.

    Args:
        gate: Who knows the consents.
        later: The moment by which people may have left.
        simulated: Whether the run's clock is simulated: a consent that ends by itself then ends by that clock, and
            only who has withdrawn has left.
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
        left = not now.allowed and (not self._simulated or now.reason == WITHDRAWN)
        return now if left else then


def consents_of(gate: ConsentGate) -> RegisteredConsents | None:
    """The registry behind a gate, if there is one."""
    inner = gate.gate if isinstance(gate, StillIn) else gate
    return inner if isinstance(inner, RegisteredConsents) else None
