"""Talking to the research centre: signed requests, and uploads that go on where they stood.

Invariants:
(1) every attempt is signed anew, so that what is tried again is never taken for a replay;
(2) what may pass is tried again by :class:`abaton.site.web.Web`; a refusal is not;
(3) nothing the centre says is believed unless its key has signed it: receipts are checked by whoever keeps them;
(4) an error tells the centre's code in our words, never what it sent.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from abaton.errors import AbatonError
from abaton.governance import Denied, PrivateKey, PublicRing, RefusalCode, Statement
from abaton.governance.senders import Asked, signed_headers
from abaton.site.answers import Answer, ServerError
from abaton.site.sources.fhir_server.retry import PASSING
from abaton.site.web import Web

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
