"""The words that governance speaks in: tags for people, moments as text, and codes for what is refused.

A tag is HMAC-SHA-256(key, purpose and parts), cut to 130 bits and written as 26 letters and digits. The same person
has the same tag in one registry, and two registries with different keys cannot be matched. A moment is written in one
form; the forms of FHIR are read. A refusal has one code for programs and one line for people, never a record's content.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from abaton.errors import Refused, SettingsError

_TAG = re.compile(r"[A-Z2-7]{26}\Z")
_NAME = re.compile(r"[!-~]{1,200}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def tag(key: bytes, purpose: str, *parts: str) -> str:
    """The tag of something under a key; every part counts with its length, so no two lists of parts run together.

    >>> tag(b"k" * 32, "subject", "heart", "4711") == tag(b"k" * 32, "subject", "heart4", "711")
    False
    """
    if len(key) < 32:
        raise SettingsError(
            "a key for tags needs 32 random bytes", remedy="make one with 'abaton records key'"
        )
    made = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose, *parts):
        raw = part.encode("utf-8", "surrogatepass")
        made.update(len(raw).to_bytes(8, "big") + raw)
    return letters(made.digest())


def letters(raw: bytes) -> str:
    """The first 130 bits as 26 letters and digits (base32).

    >>> letters(bytes(32))
    'AAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    return base64.b32encode(raw[:20]).decode()[:26]


def is_tag(text: object) -> bool:
    """Whether something has the form of a tag."""
    return isinstance(text, str) and _TAG.match(text) is not None


def is_digest(text: object) -> bool:
    """Whether something has the form of a SHA-256 fingerprint."""
    return isinstance(text, str) and _DIGEST.match(text) is not None


def is_name(text: object) -> bool:
    """Whether something can be the identifier of a study or a site: 1 to 200 visible ASCII characters."""
    return isinstance(text, str) and _NAME.match(text) is not None


_FHIR = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d))?)?)?\Z", re.ASCII
)


def stamp(when: datetime) -> str:
    """A moment as text in UTC; such texts sort as the moments do.

    >>> stamp(datetime(2026, 3, 1, 13, 0, tzinfo=UTC))
    '2026-03-01T13:00:00.000Z'
    """
    if when.tzinfo is None:
        raise SettingsError("a time without a time zone is not clear", remedy="give one in UTC")
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime:
    """The moment that a text of :func:`stamp` stands for."""
    return datetime.fromisoformat(text)


def first_moment(text: object) -> datetime | None:
    """The first moment of a FHIR dateTime, or nothing if it is none; days without a time are days of UTC.

    >>> first_moment("2026-03").isoformat()
    '2026-03-01T00:00:00+00:00'
    """
    found = _FHIR.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    year, month, day, hour = found.group(1, 2, 3, 4)
    try:
        if hour is not None:
            return datetime.fromisoformat(found.group()).astimezone(UTC)
        return datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def last_moment(text: object) -> datetime | None:
    """The first moment after a FHIR dateTime as the end of a period: the end belongs to the period.

    >>> last_moment("2026-12").isoformat()
    '2027-01-01T00:00:00+00:00'
    """
    start = first_moment(text)
    if start is None or not isinstance(text, str):
        return None
    try:
        if len(text) == 4:
            return start.replace(year=start.year + 1)
        if len(text) == 7:
            return (start + timedelta(days=31)).replace(day=1)
        return start + (timedelta(days=1) if len(text) == 10 else timedelta(microseconds=1))
    except (ValueError, OverflowError):
        return None


def day_start(day: date) -> datetime:
    """The first moment of a day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def day_end(day: date) -> datetime:
    """The first moment after a day."""
    return day_start(day) + timedelta(days=1)


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
