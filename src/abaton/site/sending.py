"""Sending: de-identified records of everybody who agreed, sealed, to the centre, with a receipt for each.

Invariants:
(1) nothing is queued or sent without a consent to sending in force at that moment, at the site and at the centre;
(2) the same content is not queued again while the last envelope of the person holds it;
(3) interrupted at any point, the next run goes on: what is queued is sent, what was sent is not sent anew;
(4) nothing of a person is sent while an earlier no of theirs waits to be carried out at the centre.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from abaton.canonical_json import canonical, digest
from abaton.governance import (
    Action,
    Ask,
    Denied,
    Outbox,
    PrivateKey,
    Queued,
    RefusalCode,
    Registry,
    pending,
    verifier,
)
from abaton.governance.external_consent import is_confirmed, keep_confirmation
from abaton.site.centre import CentreClient
from abaton.site.record_pipeline import KeptSubject, Site

Step = Callable[[str], None]
LEAVING = "withdrawal-pending"


@dataclass(slots=True)
class Sending:
    """What became of one sending: how many envelopes were queued, sent, and refused for which reason."""

    queued: int = 0
    unchanged: int = 0
    sent: int = 0
    bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class SiteSender:
    """All that a site needs to send.

    Args:
        registry: The consents.
        outbox: What waits to be sent.
        signer: The site's signing key.
        client: The way to the centre.
        now: The time.
        tag_of: The tag of a person by the id of the Patient.
    """

    registry: Registry
    outbox: Outbox
    signer: PrivateKey
    client: CentreClient
    now: Callable[[], datetime]
    tag_of: Callable[[str], str]

    def queue(self, site: Site, done: Sending) -> None:
        """Seal the records of everybody who is kept, one envelope for each person."""
        study, document = site.study.study.id, site.study.hash
        for kept in site.kept():
            ask = Ask(self.tag_of(kept.subject), study, document, Action.SEND)
            content = written(kept)
            if self.outbox.has(study, ask.subject, hashlib.sha256(content).hexdigest()):
                done.unchanged += 1
                continue
            try:
                recipient = self.client.ring.sealing
                self.outbox.put(ask, [content], self.signer, recipient, self.now(), secrets.token_bytes)
                done.queued += 1
            except Denied as error:
                done.refused[error.reason or error.code.value] += 1

    def send(self, done: Sending, step: Step = lambda words: None) -> None:
        """Bring everything that waits to the centre, consents first; what is refused stays, and is counted."""
        for queued in self.outbox.waiting():
            try:
                self._send(queued)
                done.sent += 1
                done.bytes += queued.size
                step(f"envelope {queued.sequence}: receipt kept")
            except Denied as error:
                done.refused[error.reason or error.code.value] += 1

    def _send(self, queued: Queued) -> None:
        if (queued.study, queued.subject) in self._leaving():
            raise Denied(RefusalCode.NO_CONSENT, "an earlier no is not carried out yet", reason=LEAVING)
        reason = self.registry.sending(Ask(queued.subject, queued.study), self.now())
        if not reason.allows:
            raise Denied(
                RefusalCode.NO_CONSENT, f"sending is not allowed: {reason.value}", reason=reason.value
            )
        for study in ("", queued.study):
            self._tell(queued.subject, study)
        receipt = self.client.upload(self.outbox.path(queued), queued.digest, queued.size)
        self.outbox.settle(queued, receipt, verifier([self.client.ring.signing]), self.now())

    def _leaving(self) -> set[tuple[str, str]]:
        """Who has withdrawn from what, and not everywhere yet: a yes that came after is not to overtake the no."""
        return {(case.study, case.subject) for case in pending(self.registry.database)}

    def _tell(self, subject: str, study: str) -> None:
        """Bring a consent to the centre, unless the centre has confirmed this very one."""
        consent = self.registry.consent(subject, study)
        if consent is None or is_confirmed(self.registry.database, subject, study, digest(consent)):
            return
        asked = (subject, study, digest(consent))
        find = verifier([self.client.ring.signing])
        keep_confirmation(self.registry.database, asked, self.client.consent(consent), find, self.now())


def written(kept: KeptSubject) -> bytes:
    """A person's de-identified records, one line each in canonical form."""
    return b"".join(canonical(record.content) + b"\n" for record in kept.records)
