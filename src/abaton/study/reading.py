"""Reading a study document: ``study.toml`` or an InteropEHRate Bundle, told apart by what is in the file."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path as File
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from abaton.errors import SettingsError
from abaton.study.bundle import read_bundle
from abaton.study.document import Study
from abaton.study.lines import Path, line_numbers, nearest_line
from abaton.study.problems import (
    STUDY_GUIDE,
    DocumentError,
    Guide,
    Problem,
    StudyError,
    dotted,
    problems_of,
)
from abaton.study.strictjson import parse

Checked = TypeVar("Checked", bound=BaseModel)

LARGEST = 32 * 1024 * 1024  # bytes; a study with its protocol as PDF stays far below


@dataclass(frozen=True, slots=True)
class StudyReading:
    """A study as read from a file, and the parts of the file that a study document does not carry."""

    study: Study
    passed_over: tuple[str, ...] = ()


def load_study(file: File) -> Study:
    """Read and check a study document.

    A FHIR ResearchStudy on its own is completed with the resources it points to, from the files beside it.

    Raises:
        StudyError: With every problem that was found, each with its place and its remedy.
    """
    return read_study(file).study


def read_study(file: File) -> StudyReading:
    """Read and check a study document, and tell what of the file was passed over."""
    name = str(file)
    try:
        with file.open("rb") as stream:
            raw = stream.read(LARGEST + 1)
    except OSError as error:
        raise _unusable(name, "the file cannot be read", error.strerror or "check the path") from None
    if len(raw) > LARGEST:
        raise _unusable(name, "the file is too large for a study document", "32 MB is the limit")
    head = raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if head == b"<":
        raise _unusable(name, "FHIR in XML is not read", "convert it to FHIR JSON")
    text = _decoded(raw, name)
    if head == b"{" or file.suffix == ".json":
        return _from_json(text, name, file.parent)
    return StudyReading(study_from_toml(text, name))


def _unusable(file: str, what: str, remedy: str) -> StudyError:
    return StudyError([Problem(file, "", what, remedy)])


def study_from_toml(text: str, file: str = "study.toml") -> Study:
    """Check the text of a ``study.toml``.

    Raises:
        StudyError: With every problem that was found, each with its line.
    """
    return checked_toml(text, file, Study, STUDY_GUIDE, StudyError)


def checked_toml(
    text: str, file: str, model: type[Checked], guide: Guide, wrong: type[DocumentError]
) -> Checked:
    """Check the text of a TOML document against its model.

    Args:
        text: The document.
        file: How the file is called.
        model: What the document must be.
        guide: Where its keys are explained.
        wrong: The error that carries the problems.

    Returns:
        The document, complete and checked.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise wrong([_syntax(error, text, file)]) from None
    except RecursionError:
        deep = Problem(file, "", "the TOML is nested too deeply", "no document needs that")
        raise wrong([deep]) from None
    try:
        return model.model_validate_json(json.dumps(table, default=_json_form), strict=True)
    except ValidationError as error:
        lines = line_numbers(text)

        def place(path: Path) -> tuple[str, int | None]:
            return dotted(path), nearest_line(lines, path)

        raise wrong(problems_of(error, model, place, file, guide)) from None


def study_from_json(text: str, file: str = "study.json") -> Study:
    """Check the text of an InteropEHRate Bundle.

    Raises:
        StudyError: With every problem that was found, each with its FHIR path, or its line if it is not JSON.
    """
    return _from_json(text, file, None).study


def _from_json(text: str, file: str, beside: File | None) -> StudyReading:
    content = parse(text, file)
    neighbours = _neighbours(beside) if beside and content.get("resourceType") == "ResearchStudy" else []
    table, report = read_bundle(content, neighbours)
    if report.complaints:
        raise StudyError([Problem(file, path, what, remedy) for path, what, remedy in report.complaints])
    origins = report.origins

    def place(path: Path) -> tuple[str, int | None]:
        for end in range(len(path), 0, -1):
            if path[:end] in origins:
                return dotted((origins[path[:end]], *path[end:])), None
        return dotted(path), None

    try:
        study = Study.model_validate_json(json.dumps(table), strict=True)
    except ValidationError as error:
        raise StudyError(problems_of(error, Study, place, file)) from None
    return StudyReading(study, tuple(report.passed_over))


def _decoded(raw: bytes, file: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise StudyError([Problem(file, "", "this is not UTF-8 text", "save it as UTF-8", line)]) from None


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


def _neighbours(folder: File) -> list[dict[str, Any]]:
    """The resources in the JSON files of a folder; files that are something else are passed over."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            if path.stat().st_size <= LARGEST:
                found.append(parse(path.read_text("utf-8"), str(path)))
        except (SettingsError, OSError, UnicodeDecodeError):
            continue
    return found
