"""The shelf: payloads on their way from the engine to the community model, kept in the store as well."""

from __future__ import annotations

from abaton.store import Blobs


class Shelf:
    """Payloads by digest; those not yet committed are in memory, all of them are in the store."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._fresh: dict[str, bytes] = {}

    def put(self, payload: bytes) -> str:
        """Keep a payload before anybody hears of it."""
        digest = self.blobs.put_payload(payload)
        self._fresh[digest] = payload
        return digest

    def take(self, digest: str) -> bytes:
        """A payload for the community model."""
        payload = self._fresh.pop(digest, None)
        return self.blobs.payload(digest) if payload is None else payload
