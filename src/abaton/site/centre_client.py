"""Talking to the research centre: signed requests, and uploads that go on where they stood.

Invariants:
(1) every attempt is signed anew, so that what is tried again is never taken for a replay;
(2) what may pass is tried again by :class:`abaton.site.sources.fhir_server.http_client.Web`; a refusal is not;
(3) nothing the centre says is believed unless its key has signed it: receipts are checked by whoever keeps them;
(4) an error tells the centre's code in our words, never what it sent.

Sending: de-identified records of everybody who agreed, sealed, to the centre, with a receipt for each.

Invariants:
(1) nothing is queued or sent without a consent to sending in force at that moment, at the site and at the centre;
(2) the same content is not queued again while the last envelope of the person holds it;
(3) interrupted at any point, the next run goes on: what is queued is sent, what was sent is not sent anew;
(4) nothing of a person is sent while an earlier no of theirs waits to be carried out at the centre.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from abaton.canonical_json import canonical, digest
from abaton.errors import AbatonError
from abaton.governance import (
    Action,
    Ask,
    Denied,
    Outbox,
    PrivateKey,
    PublicRing,
    Queued,
    RefusalCode,
    Registry,
    Statement,
    pending,
    verifier,
)
from abaton.governance.external_consent import is_confirmed, keep_confirmation
from abaton.governance.senders import Asked, signed_headers
from abaton.site.record_pipeline import KeptSubject, Site
from abaton.site.sources.fhir_server.http_client import Answer, ServerError, Web
from abaton.site.sources.fhir_server.retry import PASSING

_MOST_ANSWER = 1 << 24
_JSON = {"content-type": "application/json"}
_ANSWERS = frozenset(range(200, 600)) - PASSING
"""A refusal is an answer, too: it has a code to be told."""


class CentreAway(AbatonError):
    """The centre cannot be reached now; nothing is lost, and it can be tried again."""


class _OutOfStep(Denied):
    def __init__(self, received: int) -> None:
        super().__init__(
            RefusalCode.OUT_OF_STEP, "the part does not follow on what has arrived", where="centre"
        )
        self.received = received


class CentreClient:
    """One research centre, as a site talks to it.

    Args:
        web: The line to it.
        ring: Its public keys.
        signer: The site's signing key.
        part: Bytes that are sent at a time.
    """

    def __init__(self, web: Web, ring: PublicRing, signer: PrivateKey, *, part: int = 1 << 19) -> None:
        self.web, self.ring, self.signer, self.part = web, ring, signer, part

    def account(self) -> dict[str, Any]:
        """What the site has at the centre."""
        return self.ask("GET", "/v1/account")

    def consent(self, resource: dict[str, Any]) -> Statement:
        """Bring a person's consent; the centre's confirmation."""
        return self.ask("POST", "/v1/consents", _written(resource), _JSON)

    def delete(self, order: Statement) -> Statement:
        """Bring a signed deletion order; the centre's receipt."""
        return self.ask("POST", "/v1/withdrawals", _written(order), _JSON)

    def upload(
        self, path: Path, digest: str, size: int, step: Callable[[int], None] = lambda sent: None
    ) -> Statement:
        """Bring an envelope in parts, from where it stands; the centre's receipt.

        Args:
            path: The sealed file.
            digest: Its fingerprint.
            size: Its size.
            step: Told how many bytes have arrived.
        """
        told = _written({"digest": digest, "size": size})
        received = self._received(self.ask("POST", "/v1/uploads", told, _JSON), size)
        with path.open("rb") as file:
            while received < size:
                file.seek(received)
                target = f"/v1/uploads/{digest}/parts/{received}"
                try:
                    answer = self.ask("PUT", target, file.read(self.part))
                    received = self._received(answer, size)
                except _OutOfStep as error:  # an earlier attempt arrived, and its answer was lost
                    received = min(error.received, size)
                step(received)
        return self.ask("POST", f"/v1/uploads/{digest}/finish")

    def _received(self, answer: dict[str, Any], size: int) -> int:
        found = answer.get("received")
        if type(found) is not int:
            raise Denied(RefusalCode.MALFORMED, "the centre's answer cannot be understood", where="centre")
        return max(0, min(found, size))

    def ask(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Ask for something in the site's name; what the centre answers, or its refusal.

        Args:
            method: The HTTP method.
            target: The path below the centre's address.
            body: What is brought.
            headers: What is said of it.
        """
        url = self.web.base.rstrip("/") + target

        def signed() -> Mapping[str, str]:
            parts, now = urlsplit(url), datetime.fromtimestamp(self.web.clock.now(), UTC)
            asked = Asked.of(self.ring.signing.id, method, parts.path, parts.query, body)
            return {**(headers or {}), **signed_headers(self.signer, asked, now, secrets.token_bytes(16))}

        try:
            found = self.web.ask(url, signed, method=method, content=body, fine=_ANSWERS, limit=_MOST_ANSWER)
        except ServerError as error:
            raise CentreAway(
                f"the research centre cannot be reached: {error.what}",
                where=error.where,
                remedy="try again later",
            ) from None
        return _answer(found)


def _written(data: object) -> bytes:
    return json.dumps(data, sort_keys=True).encode()


def _answer(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body) if answer.body else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Denied(RefusalCode.MALFORMED, "the centre's answer cannot be understood", where="centre")
    if answer.status < 300:
        return found
    try:
        code = RefusalCode(str(found.get("code")))
    except ValueError:
        code = RefusalCode.NOT_FOUND if answer.status == 404 else RefusalCode.MALFORMED
    received = found.get("received")
    if code is RefusalCode.OUT_OF_STEP and isinstance(received, int) and received >= 0:
        raise _OutOfStep(received)
    reason = str(found.get("reason", ""))
    plain = reason if reason.replace("-", "").isalpha() and len(reason) < 40 else ""
    told = f"the centre refused: {code.value}" + (f", {plain}" if plain else "")
    raise Denied(code, told, where=f"status {answer.status}", reason=plain)


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
