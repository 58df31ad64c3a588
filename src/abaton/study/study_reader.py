"""Reading a study document: ``study.toml`` or an InteropEHRate Bundle, told apart by what is in the file.

What is wrong with a study document, and where its keys are explained.

A study as ``study.toml``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError

from abaton.documents.line_numbers import KeyPath, line_numbers, nearest_line
from abaton.documents.problems import DocumentError, Guide, Problem, dotted, problems_of
from abaton.documents.toml_reader import (
    LARGEST,
    checked_table,
    json_of,
    read_document,
    text_of,
    told_in,
    toml_of,
    toml_table,
)
from abaton.errors import SettingsError
from abaton.strict_json import parse
from abaton.study.document import Study
from abaton.study.fhir_bundle import read_bundle
from abaton.study.shorthand import SHORT_KEYS, ShortParts, expanded
from abaton.study.shorthand.expansion import Derived, explained

STUDY_GUIDE = Guide("abaton study new", "docs/study-document.md", SHORT_KEYS)


class StudyError(DocumentError):
    """A study document that cannot be used, with every problem found in it."""

    @classmethod
    def all_told(cls, file: str) -> str:
        """How to see every problem of a study document."""
        return f": abaton study check {file}"


@dataclass(frozen=True, slots=True)
class StudyReading:
    """A study as read from a file, what was derived, and what of the file a study document does not carry."""

    study: Study
    passed_over: tuple[str, ...] = ()
    derived: tuple[Derived, ...] = ()


def study_from_toml(text: str, file: str = "study.toml", *, load: bool = False) -> Study:
    """Check the text of a ``study.toml``; with `load`, its own parts are loaded and checked, too.

    Raises:
        StudyError: With every problem that was found, each with its line.
    """
    return read_toml(text, file, load=load).study


def read_toml(text: str, file: str = "study.toml", *, load: bool = False) -> StudyReading:
    """Check the text of a ``study.toml`` and tell what was derived from its short parts."""
    lines: dict[KeyPath, int] = {}

    def line(path: KeyPath) -> int:
        lines.update(lines or line_numbers(text))
        return nearest_line(lines, path)

    table = toml_table(text, file, StudyError)
    with told_in(file, ShortParts, STUDY_GUIDE, StudyError, lambda path: (dotted(path), line(path))):
        made = expanded(table, json_of)

    def place(path: KeyPath) -> tuple[str, int | None]:
        written = made.origin(path)
        return dotted(written), line(written)

    with told_in(file, Study, STUDY_GUIDE, StudyError, place):
        study = checked_table(made.table, Study, {"load": load})
    return StudyReading(study, derived=tuple(explained(study, made, line)))


def write_toml(study: Study) -> str:
    """The study as TOML text that reads back to the same study.

    What stands at its default is left out, except in identity and de-identification.
    """
    table = study.model_dump(exclude_defaults=True)
    whole = study.model_dump(include={"study", "deidentification"})
    return toml_of({**table, **whole}, Study.model_fields)


def load_study(file: File, *, load: bool = False) -> Study:
    """Read and check a study document.

    A FHIR ResearchStudy on its own is completed with the resources it points to, from the files beside it.

    Args:
        file: The document.
        load: Whether code of the packages that the study names may be run to check its own parts: where the run is
            controlled, never where the records are.

    Raises:
        StudyError: With every problem that was found, each with its place and its remedy.
    """
    return read_study(file, load=load).study


def read_study(file: File, *, load: bool = False) -> StudyReading:
    """Read and check a study document, and tell what of the file was passed over."""
    name, raw = str(file), read_document(file, StudyError)
    head = raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if head == b"<":
        raise StudyError([Problem(name, "", "FHIR in XML is not read", "convert it to FHIR JSON")])
    text = text_of(raw, name, StudyError)
    if head == b"{" or file.suffix == ".json":
        return _from_json(text, name, file.parent, load=load)
    return read_toml(text, name, load=load)


def study_from_json(text: str, file: str = "study.json") -> Study:
    """Check the text of an InteropEHRate Bundle.

    Raises:
        StudyError: With every problem that was found, each with its FHIR path, or its line if it is not JSON.
    """
    return _from_json(text, file, None).study


def _from_json(text: str, file: str, beside: File | None, *, load: bool = False) -> StudyReading:
    try:
        content = parse(text, file)
    except DocumentError as error:
        raise StudyError(error.problems) from None
    neighbours = _neighbours(beside) if beside and content.get("resourceType") == "ResearchStudy" else []
    table, report = read_bundle(content, neighbours)
    if report.complaints:
        raise StudyError([Problem(file, path, what, remedy) for path, what, remedy in report.complaints])
    origins = report.origins

    def place(path: KeyPath) -> tuple[str, int | None]:
        for end in range(len(path), 0, -1):
            if path[:end] in origins:
                return dotted((origins[path[:end]], *path[end:])), None
        return dotted(path), None

    try:
        study = Study.model_validate_json(json.dumps(table), strict=True, context={"load": load})
    except ValidationError as error:
        raise StudyError(problems_of(error, Study, place, file, STUDY_GUIDE)) from None
    return StudyReading(study, passed_over=tuple(report.passed_over))


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
