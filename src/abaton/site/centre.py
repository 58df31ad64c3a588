"""Talking to the research centre: signed requests, patience with an end, and uploads that go on where they stood.

Invariants:
(1) every attempt is signed anew, so that what is tried again is never taken for a replay;
(2) what may pass (a broken line, 408, 429, 5xx) is tried again with growing pauses; a refusal is not;
(3) nothing the centre says is believed unless its key has signed it: receipts are checked by whoever keeps them;
(4) an error tells the centre's code in our words, never what it sent.
"""

from __future__ import annotations

import json
import secrets
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from abaton.canonical import digest as fingerprint
from abaton.errors import AbatonError, SettingsError
from abaton.governance import Denied, PrivateKey, PublicRing, RefusalCode, Statement
from abaton.governance.senders import Asked, authorisation
from abaton.site.patience import PASSING, Clock, Passing, Patience, asked_pause, persist

_MOST_ANSWER = 1 << 24
_JSON = {"content-type": "application/json"}


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
        url: Where it is.
        ring: Its public keys.
        signer: The site's signing key.
        patience: How long to wait, how often to try.
        ca: A file of certificates to trust instead of the usual ones.
        clock: Time.
        part: Bytes that are sent at a time.
    """

    def __init__(
        self,
        url: str,
        ring: PublicRing,
        signer: PrivateKey,
        *,
        patience: Patience | None = None,
        ca: Path | None = None,
        clock: Clock | None = None,
        part: int = 1 << 19,
    ) -> None:
        self.url, self.ring, self.signer, self.part = url.rstrip("/"), ring, signer, part
        self.patience, self.clock = patience or Patience(), clock or Clock()
        try:
            trust = ssl.create_default_context(cafile=str(ca)) if ca else httpx.create_ssl_context()
        except (OSError, ssl.SSLError):
            raise SettingsError(
                "the certificates to trust cannot be read", where=str(ca), remedy="give a PEM file"
            ) from None
        self._http = httpx.Client(verify=trust, timeout=self.patience.timeout, trust_env=False)

    def close(self) -> None:
        """Let go of the line."""
        self._http.close()

    # what can be asked

    def studies(self) -> list[dict[str, Any]]:
        """The studies that the centre has published."""
        return list(_member(self._ask("GET", "/v1/studies"), "studies", list))

    def document(self, document: str) -> dict[str, Any]:
        """A study document by its fingerprint, which is checked."""
        content = self._ask("GET", f"/v1/studies/{document}")
        if fingerprint(content) != document:
            raise Denied(
                RefusalCode.TAMPERED, "this is not the study document that was asked for", where="centre"
            )
        return content

    def account(self) -> dict[str, Any]:
        """What the site has at the centre."""
        return self._ask("GET", "/v1/account")

    def consent(self, resource: dict[str, Any]) -> Statement:
        """Bring a person's consent; the centre's confirmation."""
        return self._ask("POST", "/v1/consents", _written(resource), _JSON)

    def delete(self, order: Statement) -> Statement:
        """Bring a signed deletion order; the centre's receipt."""
        return self._ask("POST", "/v1/withdrawals", _written(order), _JSON)

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
        received = self._received(self._ask("POST", "/v1/uploads", told, _JSON), size)
        with path.open("rb") as file:
            while received < size:
                file.seek(received)
                target = f"/v1/uploads/{digest}/parts/{received}"
                try:
                    answer = self._ask("PUT", target, file.read(self.part))
                    received = self._received(answer, size)
                except _OutOfStep as error:  # an earlier attempt arrived, and its answer was lost
                    received = min(error.received, size)
                step(received)
        return self._ask("POST", f"/v1/uploads/{digest}/finish")

    def _received(self, answer: dict[str, Any], size: int) -> int:
        return max(0, min(int(_member(answer, "received", int)), size))

    # the line

    def _ask(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        def attempt() -> httpx.Response:
            try:
                response = self._once(method, target, body, headers or {})
            except httpx.TransportError:
                raise Passing("the line broke") from None
            if response.status_code in PASSING:
                raise Passing("the centre is busy", asked_pause(response.headers, self.clock.now()))
            return response

        try:
            return _answer(persist(attempt, self.patience, self.clock))
        except Passing:
            raise CentreAway(
                "the research centre cannot be reached", where=self.url, remedy="try again later"
            ) from None

    def _once(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        request = self._http.build_request(method, self.url + target, content=body, headers=headers)
        line = request.url.raw_path.decode("ascii")
        asked = Asked.of(self.ring.signing.id, method, line, body)
        now = datetime.fromtimestamp(self.clock.now(), UTC)
        request.headers["authorization"] = authorisation(self.signer, asked, now, secrets.token_bytes(16))
        response = self._http.send(request, stream=True)
        try:
            size = 0
            pieces = []
            for piece in response.iter_raw():
                size += len(piece)
                if size > _MOST_ANSWER:
                    raise Denied(RefusalCode.TOO_LARGE, "the centre's answer is too large", where=self.url)
                pieces.append(piece)
        finally:
            response.close()
        return httpx.Response(response.status_code, headers=response.headers, content=b"".join(pieces))


def _written(data: object) -> bytes:
    return json.dumps(data, sort_keys=True).encode()


def _answer(response: httpx.Response) -> dict[str, Any]:
    try:
        found = json.loads(response.content) if response.content else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Denied(RefusalCode.MALFORMED, "the centre's answer cannot be understood", where="centre")
    if response.is_success:
        return found
    try:
        code = RefusalCode(str(found.get("code")))
    except ValueError:
        code = RefusalCode.NOT_FOUND if response.status_code == 404 else RefusalCode.MALFORMED
    received = found.get("received")
    if code is RefusalCode.OUT_OF_STEP and isinstance(received, int) and received >= 0:
        raise _OutOfStep(received)
    reason = str(found.get("reason", ""))
    plain = reason if reason.replace("-", "").isalpha() and len(reason) < 40 else ""
    told = f"the centre refused: {code.value}" + (f", {plain}" if plain else "")
    raise Denied(code, told, where=f"status {response.status_code}", reason=plain)


def _member(answer: dict[str, Any], name: str, kind: type) -> Any:
    found = answer.get(name)
    if type(found) is not kind:
        raise Denied(RefusalCode.MALFORMED, "the centre's answer cannot be understood", where="centre")
    return found
