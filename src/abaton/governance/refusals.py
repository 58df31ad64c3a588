"""Why something was refused: one code for programs, one line for people, never a record's content."""

from __future__ import annotations

from enum import StrEnum

from abaton.errors import Refused


class RefusalCode(StrEnum):
    """The reasons for which sealed data, statements and requests are refused."""

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
    NOT_YOURS = "not-yours"
    OUT_OF_STEP = "out-of-step"
    QUOTA = "quota"
    UNSIGNED = "unsigned"


_REMEDIES = {
    RefusalCode.MALFORMED: "it was not made by Abaton, or was damaged on its way: ask for it again",
    RefusalCode.TRUNCATED: "its end is missing: ask for it again",
    RefusalCode.TAMPERED: "it was changed on its way: ask for it again, and find out by whom",
    RefusalCode.FORGED: "its signature is not the sender's: tell the security officer",
    RefusalCode.UNKNOWN_SENDER: "enter the sender's public keys first",
    RefusalCode.UNKNOWN_KEY: "get the recipient's current public keys and seal it again",
    RefusalCode.RETIRED_KEY: "get the current public keys and make it again with them",
    RefusalCode.WRONG_STUDY: "send it to the centre of the study it was made for",
    RefusalCode.WRONG_DOCUMENT: "ask for consent to the study's current document, and seal it again",
    RefusalCode.REPLAYED: "number every sending anew",
    RefusalCode.TOO_LARGE: "send it in parts, or raise the limit",
    RefusalCode.NO_CONSENT: "nothing may be used without a consent in force",
    RefusalCode.NOT_APPROVED: "ask two different people, one of them the data controller, to sign the same request",
    RefusalCode.NOT_FOUND: "check the name",
    RefusalCode.EXPIRED: "make it again",
    RefusalCode.NOT_YOURS: "it belongs to another sender: ask them",
    RefusalCode.OUT_OF_STEP: "ask how far it has come, and go on from there",
    RefusalCode.UNSIGNED: "sign it with a key that is entered at the centre",
    RefusalCode.QUOTA: "finish or give up what is open, or ask the centre for more room",
}


class Denied(Refused):
    """Something was refused for a reason that a program can act on.

    >>> Denied(RefusalCode.FORGED, "the receipt is not genuine").code
    <RefusalCode.FORGED: 'forged'>
    """

    def __init__(self, code: RefusalCode, what: str, *, where: str = "", reason: str = "") -> None:
        self.code, self.reason = code, reason
        super().__init__(what, where=where, remedy=_REMEDIES[code])
