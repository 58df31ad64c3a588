"""Codes and errors for refused envelopes, statements and requests.

An error has a code for programs and a sentence for users, never the content of a record.
"""

from __future__ import annotations

from enum import StrEnum

from abaton.errors import RefusedError


class RefusalCode(StrEnum):
    """Reason for which an envelope, a statement or a request is refused."""

    MALFORMED = "malformed"
    TRUNCATED = "truncated"
    TAMPERED = "tampered"
    FORGED = "forged"
    UNKNOWN_SENDER = "unknown-sender"
    UNKNOWN_KEY = "unknown-key"
    RETIRED_KEY = "retired-key"
    WRONG_STUDY = "wrong-study"
    WRONG_DOCUMENT = "wrong-document"
    REPLAYED = "replayed"
    TOO_LARGE = "too-large"
    NO_CONSENT = "no-consent"
    NOT_APPROVED = "not-approved"
    NOT_FOUND = "not-found"
    EXPIRED = "expired"
    WRONG_SENDER = "wrong-sender"
    OFFSET_MISMATCH = "offset-mismatch"
    QUOTA = "quota"
    UNSIGNED = "unsigned"


_REMEDIES = {
    RefusalCode.MALFORMED: "the data are damaged or not in Abaton's format: request them again",
    RefusalCode.TRUNCATED: "the end is missing: request the data again",
    RefusalCode.TAMPERED: "the data were changed after sealing: request them again and inform the security officer",
    RefusalCode.FORGED: "the signature is not the sender's: inform the security officer",
    RefusalCode.UNKNOWN_SENDER: "register the sender's public keys first ('abaton keys register')",
    RefusalCode.UNKNOWN_KEY: "get the recipient's current public keys and seal again",
    RefusalCode.RETIRED_KEY: "get the current public keys and repeat the operation with them",
    RefusalCode.WRONG_STUDY: "send it to the centre of its study",
    RefusalCode.WRONG_DOCUMENT: "obtain consent to the current study document, and seal again",
    RefusalCode.REPLAYED: "use a new sequence number for each envelope",
    RefusalCode.TOO_LARGE: "send less data, or raise the limit",
    RefusalCode.NO_CONSENT: "obtain a consent that is in force",
    RefusalCode.NOT_APPROVED: "have two people sign the same request, one of them the data controller",
    RefusalCode.NOT_FOUND: "check the identifier",
    RefusalCode.EXPIRED: "create a new one",
    RefusalCode.WRONG_SENDER: "another sender is the custodian: contact that sender",
    RefusalCode.OFFSET_MISMATCH: "ask for the received bytes and continue from there",
    RefusalCode.UNSIGNED: "sign with a key that is registered at the centre",
    RefusalCode.QUOTA: "finish or abandon open uploads, or ask the centre for a larger quota",
}


class DeniedError(RefusedError):
    """Error with a code that a program can act on.

    >>> DeniedError(RefusalCode.FORGED, "the receipt is not genuine").code
    <RefusalCode.FORGED: 'forged'>
    """

    def __init__(self, code: RefusalCode, what: str, *, where: str = "", reason: str = "") -> None:
        self.code, self.reason = code, reason
        super().__init__(what, where=where, remedy=_REMEDIES[code])
