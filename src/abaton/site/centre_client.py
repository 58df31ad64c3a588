"""Client of the research centre: signed requests, resumable uploads, and transfer of sealed records.

Invariants:
(1) every attempt is signed anew, so a retry is not taken for a replay;
(2) transient failures are retried by `FhirHttpClient`; refusals are not;
(3) a statement of the centre counts only with a valid signature; the component that stores a receipt verifies it;
(4) errors contain the refusal code of the centre, not its text;
(5) records are queued and sent only while a consent to sending is in force at the site and at the centre;
(6) unchanged content is not queued again;
(7) an interrupted transfer resumes: queued envelopes are sent, sent ones are not sent again;
(8) no records of a subject are sent while a withdrawal of the subject is pending at the centre.
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

from abaton.canonical_json import canonical_digest, to_canonical_json
from abaton.errors import AbatonError
from abaton.governance import (
    ConsentAction,
    ConsentQuery,
    ConsentRegistry,
    Outbox,
    PrivateKey,
    PublicKeySet,
    QueuedEnvelope,
    Statement,
    pending,
    verifier,
)
from abaton.governance.external_consent import is_confirmed, store_consent_receipt
from abaton.governance.http_signatures import SignedRequest, signed_headers
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.site.record_pipeline import AcceptedSubject, SitePipeline
from abaton.site.sources.fhir_server.http_client import FhirHttpClient, FhirServerError, HttpResponse
from abaton.site.sources.fhir_server.retry import TRANSIENT_STATUSES

_MAX_RESPONSE_BYTES = 1 << 24
_JSON = {"content-type": "application/json"}
_FINAL_STATUSES = frozenset(range(200, 600)) - TRANSIENT_STATUSES
"""Status codes that are not retried; a refusal has a code in its body."""


class CentreUnavailableError(AbatonError):
    """Unreachable research centre; the transfer can be resumed later."""


class _OffsetMismatchError(DeniedError):
    def __init__(self, received: int) -> None:
        super().__init__(
            RefusalCode.OFFSET_MISMATCH,
            "the offset of the chunk differs from the received bytes",
            where="centre",
        )
        self.received = received


class CentreClient:
    """Client of one research centre.

    Args:
        http_client: HTTP client of the centre.
        key_set: Public keys of the centre.
        signer: Signing key of the site.
        chunk_bytes: Size of an upload chunk.
    """

    def __init__(
        self,
        http_client: FhirHttpClient,
        key_set: PublicKeySet,
        signer: PrivateKey,
        *,
        chunk_bytes: int = 1 << 19,
    ) -> None:
        self.http_client, self.key_set, self.signer, self.chunk_bytes = (
            http_client,
            key_set,
            signer,
            chunk_bytes,
        )

    def usage(self) -> dict[str, Any]:
        """Request the site's usage of the centre's intake, as the centre's client."""
        return self.request("GET", "/v1/usage")

    def consent(self, resource: dict[str, Any]) -> Statement:
        """Send a consent to the centre as its client; return the centre's receipt."""
        return self.request("POST", "/v1/consents", _encode_json(resource), _JSON)

    def delete(self, order: Statement) -> Statement:
        """Send a signed deletion order to the centre as its client; return the centre's receipt."""
        return self.request("POST", "/v1/withdrawals", _encode_json(order), _JSON)

    def upload(
        self, path: Path, digest: str, size: int, on_progress: Callable[[int], None] = lambda sent: None
    ) -> Statement:
        """Upload an envelope to the centre in chunks from the received offset; return the centre's receipt.

        Args:
            path: The sealed file.
            digest: Its SHA-256 digest.
            size: Its size in bytes.
            on_progress: Called with the number of received bytes.
        """
        announcement = _encode_json({"digest": digest, "size": size})
        received = self._received(self.request("POST", "/v1/uploads", announcement, _JSON), size)
        with path.open("rb") as file:
            while received < size:
                file.seek(received)
                target = f"/v1/uploads/{digest}/parts/{received}"
                try:
                    response = self.request("PUT", target, file.read(self.chunk_bytes))
                    received = self._received(response, size)
                except (
                    _OffsetMismatchError
                ) as error:  # an earlier attempt was received, but its response was lost
                    received = min(error.received, size)
                on_progress(received)
        return self.request("POST", f"/v1/uploads/{digest}/finish")

    def _received(self, response: dict[str, Any], size: int) -> int:
        received = response.get("received_bytes")
        if type(received) is not int:
            raise DeniedError(
                RefusalCode.MALFORMED, "the centre's response has no 'received_bytes'", where="centre"
            )
        return max(0, min(received, size))

    def request(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send the centre a request signed by the site; return the JSON response, or raise the centre's refusal.

        Args:
            method: HTTP method.
            target: Path below the centre's URL.
            body: Body of the request.
            headers: Further headers.
        """
        url = self.http_client.base.rstrip("/") + target

        def sign() -> Mapping[str, str]:
            parts, now = urlsplit(url), datetime.fromtimestamp(self.http_client.clock.now(), UTC)
            components = SignedRequest.of(self.key_set.signing_key.id, method, parts.path, parts.query, body)
            return {
                **(headers or {}),
                **signed_headers(self.signer, components, now, secrets.token_bytes(16)),
            }

        try:
            response = self.http_client.request(
                url,
                sign,
                method=method,
                content=body,
                accepted_statuses=_FINAL_STATUSES,
                limit=_MAX_RESPONSE_BYTES,
            )
        except FhirServerError as error:
            raise CentreUnavailableError(
                f"the research centre cannot be reached: {error.what}",
                where=error.where,
                remedy="run the command again later; the transfer resumes",
            ) from None
        return _parse_response(response)


def _encode_json(data: object) -> bytes:
    return json.dumps(data, sort_keys=True).encode()


def _parse_response(response: HttpResponse) -> dict[str, Any]:
    try:
        content = json.loads(response.body) if response.body else {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise DeniedError(RefusalCode.MALFORMED, "the centre's response is not a JSON object", where="centre")
    if response.status < 300:
        return content
    try:
        code = RefusalCode(str(content.get("code")))
    except ValueError:
        code = RefusalCode.NOT_FOUND if response.status == 404 else RefusalCode.MALFORMED
    received = content.get("received_bytes")
    if code is RefusalCode.OFFSET_MISMATCH and isinstance(received, int) and received >= 0:
        raise _OffsetMismatchError(received)
    text = str(content.get("reason", ""))
    reason = text if text.replace("-", "").isalpha() and len(text) < 40 else ""
    what = f"the centre refused: {code.value}" + (f", {reason}" if reason else "")
    raise DeniedError(code, what, where=f"status {response.status}", reason=reason)


ProgressCallback = Callable[[str], None]
WITHDRAWAL_PENDING = "withdrawal-pending"


@dataclass(slots=True)
class TransferReport:
    """Numbers of queued, unchanged and sent envelopes, and of refused ones by reason."""

    queued: int = 0
    unchanged: int = 0
    sent: int = 0
    bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class RecordSender:
    """Sender of sealed records to the centre.

    Args:
        registry: Registry of the consents.
        outbox: Outbox of sealed envelopes.
        signer: Signing key of the site.
        client: Client of the centre.
        now: Returns the current time.
        pseudonym_of: Returns the registry pseudonym of a Patient id.
    """

    registry: ConsentRegistry
    outbox: Outbox
    signer: PrivateKey
    client: CentreClient
    now: Callable[[], datetime]
    pseudonym_of: Callable[[str], str]

    def queue(self, site: SitePipeline, report: TransferReport) -> None:
        """Seal the records of all accepted subjects for the centre, one envelope per subject."""
        study, document = site.study.study.id, site.study.hash
        for subject in site.accepted_subjects():
            query = ConsentQuery(self.pseudonym_of(subject.subject), study, document, ConsentAction.SEND)
            content = subject_ndjson(subject)
            if self.outbox.has_content(study, query.subject, hashlib.sha256(content).hexdigest()):
                report.unchanged += 1
                continue
            try:
                recipient = self.client.key_set.sealing_key
                self.outbox.put(query, [content], self.signer, recipient, self.now(), secrets.token_bytes)
                report.queued += 1
            except DeniedError as error:
                report.refused[error.reason or error.code.value] += 1

    def send(self, report: TransferReport, on_progress: ProgressCallback = lambda text: None) -> None:
        """Send all queued envelopes to the centre, each after its subject's consents; refused ones are counted."""
        for queued in self.outbox.waiting():
            try:
                self._send(queued)
                report.sent += 1
                report.bytes += queued.size
                on_progress(f"envelope {queued.sequence}: receipt stored")
            except DeniedError as error:
                report.refused[error.reason or error.code.value] += 1

    def _send(self, queued: QueuedEnvelope) -> None:
        if (queued.study, queued.subject) in self._pending_withdrawals():
            raise DeniedError(
                RefusalCode.NO_CONSENT, "a withdrawal of the subject is pending", reason=WITHDRAWAL_PENDING
            )
        reason = self.registry.sending_decision(ConsentQuery(queued.subject, queued.study), self.now())
        if not reason.permits:
            raise DeniedError(
                RefusalCode.NO_CONSENT, f"sending is not allowed: {reason.value}", reason=reason.value
            )
        for study in ("", queued.study):
            self._send_consent(queued.subject, study)
        receipt = self.client.upload(self.outbox.path(queued), queued.digest, queued.size)
        self.outbox.store_receipt(queued, receipt, verifier([self.client.key_set.signing_key]), self.now())

    def _pending_withdrawals(self) -> set[tuple[str, str]]:
        """Return study and subject of withdrawals that the centre must receive before a later consent is sent."""
        return {(case.study, case.subject) for case in pending(self.registry.database)}

    def _send_consent(self, subject: str, study: str) -> None:
        """Send a subject's consent to the centre, unless the centre has confirmed this version of it."""
        consent = self.registry.consent(subject, study)
        if consent is None or is_confirmed(self.registry.database, subject, study, canonical_digest(consent)):
            return
        expected = (subject, study, canonical_digest(consent))
        verify = verifier([self.client.key_set.signing_key])
        store_consent_receipt(
            self.registry.database, expected, self.client.consent(consent), verify, self.now()
        )


def subject_ndjson(subject: AcceptedSubject) -> bytes:
    """Return the de-identified records of a subject as canonical NDJSON, to be sealed for the centre."""
    return b"".join(to_canonical_json(record.content) + b"\n" for record in subject.records)
