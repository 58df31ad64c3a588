"""Errors with a fact, a location and a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the remedy of an error about an unknown name: the closest known one, or `otherwise`.

    >>> did_you_mean("titel", ["title", "period"]), did_you_mean("x", ["title"], "use title")
    ("did you mean 'title'?", 'use title')
    """
    matches = get_close_matches(name[:_MAX_COMPARED], list(known), n=1)
    return f"did you mean '{matches[0]}'?" if matches else otherwise


_MAX_NAME = 40
_MAX_COMPARED = 200


def shorten_name(name: str) -> str:
    r"""Return a key or name of a document for an error: at most 40 characters, unprintable ones escaped.

    An error contains no other text of a document: no value, and no text of a record.

    >>> shorten_name("title"), shorten_name("a" * 50 + "b"), shorten_name("a\x1b[2J")
    ('title', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…', 'a\\x1b[2J')
    """
    start = name[:_MAX_NAME]
    shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in start)
    return shown + "…" * (len(name) > _MAX_NAME)


class AbatonError(Exception):
    """Base class of all errors: what is wrong, where, and a remedy, in one line.

    No message may contain the content of a record.

    >>> str(AbatonError("there is no run 'x'", where="store /data", remedy="list runs with 'abaton runs'"))
    "there is no run 'x' (store /data): list runs with 'abaton runs'"
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(what + (f" ({where})" if where else "") + (f": {remedy}" if remedy else ""))


class LayoutError(AbatonError):
    """A vector does not fit the layout of its model."""


class PayloadError(AbatonError):
    """Bytes are not a valid payload or message."""


class StoreError(AbatonError):
    """The store cannot be read or written."""


class SettingsError(AbatonError):
    """A setting or an argument is invalid; nothing was started."""

    exit_code = 2


class RefusedError(AbatonError):
    """A policy forbids the request."""

    exit_code = 3
