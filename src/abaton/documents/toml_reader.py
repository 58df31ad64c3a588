"""TOML documents: size-limited reading, validation against a model with the line of every problem, and writing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from abaton.documents.line_numbers import KeyPath, key_lines, nearest_line
from abaton.documents.problems import (
    DocumentError,
    DocumentHelp,
    DocumentProblem,
    format_key_path,
    to_problems,
)
from abaton.errors import SettingsError
from abaton.strict_toml import MAX_DOCUMENT_BYTES, StrictTomlError, parse_toml_table

DocumentModel = TypeVar("DocumentModel", bound=BaseModel)


def validate_toml(
    text: str,
    file: str,
    model: type[DocumentModel],
    guide: DocumentHelp,
    error_type: type[DocumentError],
    context: Mapping[str, Any] | None = None,
) -> DocumentModel:
    """Validate the text of a TOML document against its model.

    Args:
        text: The document.
        file: The file's name.
        model: The model of the document.
        guide: Help for its keys.
        error_type: The error that carries the problems.
        context: Validation context of the model.

    Returns:
        The validated document.
    """
    lines: dict[KeyPath, int] = {}

    def locate(path: KeyPath) -> tuple[str, int | None]:
        lines.update(lines or key_lines(text))
        return format_key_path(path), nearest_line(lines, path)

    with translate_errors(file, model, guide, error_type, locate):
        return validate_table(parse_toml(text, file, error_type), model, context)


def parse_toml(text: str, file: str, error_type: type[DocumentError]) -> dict[str, Any]:
    """Parse the TOML text of a document within its limits; raise a syntax error with its line and column."""
    try:
        return parse_toml_table(text, file)
    except StrictTomlError as error:
        problem = DocumentProblem(file, "", error.what, error.remedy, error.line, error.column)
        raise error_type([problem]) from None


def validate_table(
    table: dict[str, Any], model: type[DocumentModel], context: Mapping[str, Any] | None = None
) -> DocumentModel:
    """Validate a table read from TOML against its model; raise a pydantic error if it is invalid."""
    return model.model_validate_json(to_json(table), strict=True, context=context)


@contextmanager
def translate_errors(
    file: str,
    model: type[BaseModel],
    guide: DocumentHelp,
    error_type: type[DocumentError],
    locate: Callable[[KeyPath], tuple[str, int | None]],
) -> Iterator[None]:
    """Convert pydantic errors of a TOML reader to problems with the document's keys, lines and remedies."""
    try:
        yield
    except ValidationError as error:
        raise error_type(to_problems(error, model, locate, file, guide)) from None


def to_json(table: Any) -> str:
    """Convert a TOML table to JSON; dates and times become text."""
    return json.dumps(table, default=_json_form)


def _json_form(value: Any) -> str:
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    raise TypeError(type(value).__name__)


def to_toml(table: dict[str, Any], order: Iterable[str]) -> str:
    """Write a table as TOML text that parses to the same table.

    Args:
        table: Tables, lists, texts, numbers, booleans and dates; absent or empty values are omitted.
        order: The order of its keys.
    """
    values: dict[str, Any] = _toml_value(table)
    ordered = {name: values[name] for name in order if name in values}
    # TOML readers normalise line ends in multi-line strings, so texts with carriage returns stay on one line.
    return tomli_w.dumps(ordered, multiline_strings=not _has_carriage_return(ordered), indent=2)


def _toml_value(value: Any) -> Any:
    """Reduce a value to what TOML has: tables, lists, text, numbers, booleans, dates; empty ones are omitted."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, dict):
        converted = {str(_toml_value(key)): _toml_value(item) for key, item in value.items()}
        return {key: item for key, item in converted.items() if item is not None and item not in ("", [], {})}
    if isinstance(value, list | tuple):
        if any(item is None for item in value):
            raise SettingsError("TOML has no null in lists", remedy="export to a Bundle instead")
        return [_toml_value(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _has_carriage_return(value: Any) -> bool:
    """Return whether any text of a TOML table contains a carriage return."""
    if isinstance(value, dict):
        return any(map(_has_carriage_return, value.values()))
    return (
        any(map(_has_carriage_return, value))
        if isinstance(value, list)
        else isinstance(value, str) and "\r" in value
    )


def read_document(file: Path, error_type: type[DocumentError]) -> bytes:
    """Read the bytes of a document's file (TOML, or a study's JSON), up to the size limit.

    Args:
        file: The file.
        error_type: The error raised if the file cannot be read or is too large.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise error_type(
            [DocumentProblem(str(file), "", "the file cannot be read", error.strerror or "check the path")]
        ) from None
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise error_type([DocumentProblem(str(file), "", "the file is larger than 32 MB", "reduce its size")])
    return raw


def decode_text(raw: bytes, file: str, error_type: type[DocumentError]) -> str:
    """Decode the bytes read from a TOML or JSON document as UTF-8; raise an error with the line that is not."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise error_type(
            [DocumentProblem(file, "", "this is not UTF-8 text", "save it as UTF-8", line)]
        ) from None
