"""Reading the file of a document: not too large, and text."""

from __future__ import annotations

from pathlib import Path

from abaton.documents.problems import DocumentError, Problem

LARGEST = 32 * 1024 * 1024
"""Bytes; a study with its protocol as PDF stays far below."""


def read_document(file: Path, wrong: type[DocumentError]) -> bytes:
    """The bytes of a document's file.

    Args:
        file: The file.
        wrong: The error that carries the problem, if it cannot be read or is too large.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(LARGEST + 1)
    except OSError as error:
        raise wrong(
            [Problem(str(file), "", "the file cannot be read", error.strerror or "check the path")]
        ) from None
    if len(raw) > LARGEST:
        raise wrong([Problem(str(file), "", "the file is too large for a document", "32 MB is the limit")])
    return raw


def text_of(raw: bytes, file: str, wrong: type[DocumentError]) -> str:
    """The text of a document, or the line on which it is none."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise wrong([Problem(file, "", "this is not UTF-8 text", "save it as UTF-8", line)]) from None
