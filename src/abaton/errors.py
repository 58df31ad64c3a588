"""Errors that say what is wrong, where, and what to do about it."""

from __future__ import annotations

from typing import ClassVar


class AbatonError(Exception):
    """Something went wrong, told in one line: what, where, and what to do.

    No message may ever hold the content of a record.

    >>> str(AbatonError("the run is not there", where="store /data", remedy="list runs with 'abaton runs'"))
    "the run is not there (store /data): list runs with 'abaton runs'"
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(what + (f" ({where})" if where else "") + (f": {remedy}" if remedy else ""))


class LayoutError(AbatonError):
    """A vector does not fit the model it is meant for."""


class PayloadError(AbatonError):
    """Bytes that claim to be an update are not one."""


class StoreError(AbatonError):
    """The store cannot be read or written."""


class SettingsError(AbatonError):
    """A setting or an argument is not usable; nothing was started."""

    exit_code = 2


class Refused(AbatonError):
    """A policy forbids what was asked for."""

    exit_code = 3
