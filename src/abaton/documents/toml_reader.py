"""TOML as people write it: read against a model with lines for every problem, and written in sections.

Reading the file of a document: not too large, and text.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from abaton.documents.line_numbers import KeyPath, line_numbers, nearest_line
from abaton.documents.problems import DocumentError, Guide, Problem, dotted, problems_of
from abaton.errors import SettingsError

Checked = TypeVar("Checked", bound=BaseModel)


def checked_toml(
    text: str,
    file: str,
    model: type[Checked],
    guide: Guide,
    wrong: type[DocumentError],
    context: Mapping[str, Any] | None = None,
) -> Checked:
    """Check the text of a TOML document against its model.

    Args:
        text: The document.
        file: How the file is called.
        model: What the document must be.
        guide: Where its keys are explained.
        wrong: The error that carries the problems.
        context: What the model's own checks are told.

    Returns:
        The document, complete and checked.
    """
    lines: dict[KeyPath, int] = {}

    def place(path: KeyPath) -> tuple[str, int | None]:
        lines.update(lines or line_numbers(text))
        return dotted(path), nearest_line(lines, path)

    with told_in(file, model, guide, wrong, place):
        return checked_table(toml_table(text, file, wrong), model, context)


def toml_table(text: str, file: str, wrong: type[DocumentError]) -> dict[str, Any]:
    """The table that a TOML text is; what is none is told with its line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise wrong([_syntax(error, text, file)]) from None
    except RecursionError:
        deep = Problem(file, "", "the TOML is nested too deeply", "no document needs that")
        raise wrong([deep]) from None


def checked_table(
    table: dict[str, Any], model: type[Checked], context: Mapping[str, Any] | None = None
) -> Checked:
    """A table as what its model says; pydantic tells what is wrong with it."""
    return model.model_validate_json(json_of(table), strict=True, context=context)


@contextmanager
def told_in(
    file: str,
    model: type[BaseModel],
    guide: Guide,
    wrong: type[DocumentError],
    place: Callable[[KeyPath], tuple[str, int | None]],
) -> Iterator[None]:
    """Tell what pydantic finds in the words of the document: each problem with its place and its remedy."""
    try:
        yield
    except ValidationError as error:
        raise wrong(problems_of(error, model, place, file, guide)) from None


def json_of(table: Any) -> str:
    """A table of TOML as JSON; dates and times become text."""
    return json.dumps(table, default=_json_form)


def _syntax(error: tomllib.TOMLDecodeError, text: str, file: str) -> Problem:
    what, _, place = str(error).rpartition(" (at ")
    numbers = [int(word.strip(",)")) for word in place.split() if word.strip(",)").isdigit()]
    line, column = numbers if len(numbers) == 2 else (text.count("\n") + 1, None)
    said = what[:1].lower() + what[1:] if what else str(error)
    return Problem(file, "", f"this is not TOML: {said}", "correct the line", line, column)


def _json_form(value: Any) -> str:
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    raise TypeError(type(value).__name__)


def toml_of(table: dict[str, Any], order: Iterable[str]) -> str:
    """A table as TOML text that reads back to the same table.

    Args:
        table: Tables, lists, texts, numbers, truth values and dates; what is absent or empty is left out.
        order: The order of its keys.
    """
    plain: dict[str, Any] = _plain(table)
    ordered = {name: plain[name] for name in order if name in plain}
    # A text of several lines stands in several lines, unless a reader would take its ends of lines for others.
    return tomli_w.dumps(ordered, multiline_strings=not _returns(ordered), indent=2)


def _plain(value: Any) -> Any:
    """Only tables, lists, text, numbers, truth values and dates; what is absent or empty is left out."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, dict):
        made = {str(_plain(key)): _plain(item) for key, item in value.items()}
        return {key: item for key, item in made.items() if item is not None and item not in ("", [], {})}
    if isinstance(value, list | tuple):
        if any(item is None for item in value):
            raise SettingsError("a list with a gap has no form in TOML", remedy="export to a Bundle instead")
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _returns(value: Any) -> bool:
    """Whether a carriage return stands in any text."""
    if isinstance(value, dict):
        return any(map(_returns, value.values()))
    return any(map(_returns, value)) if isinstance(value, list) else isinstance(value, str) and "\r" in value


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
