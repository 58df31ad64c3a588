"""Reading and writing of study documents: ``study.toml`` or an InteropEHRate Bundle, detected by content."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError

from abaton.documents.line_numbers import KeyPath, key_lines, nearest_line
from abaton.documents.problems import (
    DocumentError,
    DocumentHelp,
    DocumentProblem,
    format_key_path,
    join_key_path,
    to_problems,
)
from abaton.documents.toml_reader import (
    decode_text,
    parse_toml,
    read_document,
    to_json,
    to_toml,
    translate_errors,
    validate_table,
)
from abaton.errors import SettingsError
from abaton.strict_json import StrictJsonError, parse_json_object
from abaton.strict_toml import MAX_DOCUMENT_BYTES
from abaton.study.document import Study
from abaton.study.fhir_bundle import read_bundle
from abaton.study.shorthand import SHORTHAND_KEYS, ShorthandSections, expand_shorthand
from abaton.study.shorthand.expansion import DerivedSection, derived_sections

STUDY_GUIDE = DocumentHelp("abaton study new", "docs/study-document.md", SHORTHAND_KEYS)


class StudyError(DocumentError):
    """Invalid study document, with every problem found in it."""

    @classmethod
    def show_all_hint(cls, file: str) -> str:
        """Return how to list all problems of a study document."""
        return f": abaton study check {file}"


@dataclass(frozen=True, slots=True)
class StudyFile:
    """Study read from a file, its derived sections, and the elements that were not imported."""

    study: Study
    ignored_keys: tuple[str, ...] = ()
    derived: tuple[DerivedSection, ...] = ()


def study_from_toml(text: str, file: str = "study.toml", *, load: bool = False) -> Study:
    """Read a study from the text of a ``study.toml``; with `load`, plugins are loaded and checked too.

    Raises:
        StudyError: With every problem and its line.
    """
    return read_toml(text, file, load=load).study


def read_toml(text: str, file: str = "study.toml", *, load: bool = False) -> StudyFile:
    """Read a study from the text of a ``study.toml``; also return what its shorthand derived."""
    lines: dict[KeyPath, int] = {}

    def line(path: KeyPath) -> int:
        lines.update(lines or key_lines(text))
        return nearest_line(lines, path)

    table = parse_toml(text, file, StudyError)
    with translate_errors(
        file, ShorthandSections, STUDY_GUIDE, StudyError, lambda path: (format_key_path(path), line(path))
    ):
        expanded = expand_shorthand(table, to_json)

    def locate(path: KeyPath) -> tuple[str, int | None]:
        written = expanded.origin(path)
        return format_key_path(written), line(written)

    with translate_errors(file, Study, STUDY_GUIDE, StudyError, locate):
        study = validate_table(expanded.table, Study, {"load": load})
    return StudyFile(study, derived=tuple(derived_sections(study, expanded, line)))


def write_toml(study: Study) -> str:
    """Convert a study to the TOML text that reads back to the same study.

    Defaults are omitted, except in the identification and de-identification sections.
    """
    table = study.model_dump(exclude_defaults=True)
    complete = study.model_dump(include={"study", "deidentification"})
    return to_toml({**table, **complete}, Study.model_fields)


def load_study(file: File, *, load: bool = False) -> Study:
    """Read and validate a study document's file, TOML or FHIR JSON.

    A lone FHIR ResearchStudy is completed with the resources it references, from neighbouring files.

    Args:
        file: The document.
        load: Whether plugin code may run to check plugins: only where the run is controlled, never at a site.

    Raises:
        StudyError: With every problem, its location and remedy.
    """
    return read_study(file, load=load).study


def read_study(file: File, *, load: bool = False) -> StudyFile:
    """Read and validate a study document's file; also return the elements that were not imported."""
    name, raw = str(file), read_document(file, StudyError)
    first_byte = raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first_byte == b"<":
        raise StudyError([DocumentProblem(name, "", "FHIR XML is not supported", "convert it to FHIR JSON")])
    text = decode_text(raw, name, StudyError)
    if first_byte == b"{" or file.suffix == ".json":
        return _read_json(text, name, file.parent, load=load)
    return read_toml(text, name, load=load)


def study_from_json(text: str, file: str = "study.json") -> Study:
    """Read a study from the text of an InteropEHRate Bundle (FHIR JSON).

    Raises:
        StudyError: With every problem and its FHIR path, or its line if the text is not JSON.
    """
    return _read_json(text, file, None).study


def _read_json(text: str, file: str, folder: File | None, *, load: bool = False) -> StudyFile:
    try:
        content = parse_json_object(text, file)
    except StrictJsonError as error:
        problem = DocumentProblem(file, "", error.what, error.remedy, error.line, error.column)
        raise StudyError([problem]) from None
    neighbours = _neighbours(folder) if folder and content.get("resourceType") == "ResearchStudy" else []
    table, report = read_bundle(content, neighbours)
    if report.problems:
        raise StudyError(
            [DocumentProblem(file, path, what, remedy) for path, what, remedy in report.problems]
        )
    origins = report.origins

    def locate(path: KeyPath) -> tuple[str, int | None]:
        for end in range(len(path), 0, -1):
            if path[:end] in origins:
                return join_key_path(origins[path[:end]], path[end:]), None
        return format_key_path(path), None

    try:
        study = Study.model_validate_json(json.dumps(table), strict=True, context={"load": load})
    except ValidationError as error:
        raise StudyError(to_problems(error, Study, locate, file, STUDY_GUIDE)) from None
    return StudyFile(study, ignored_keys=tuple(report.ignored_keys))


def _neighbours(folder: File) -> list[dict[str, Any]]:
    """Return the resources in JSON files beside a study's file, to complete it; other files are ignored."""
    resources = []
    for path in sorted(folder.glob("*.json")):
        try:
            if path.stat().st_size <= MAX_DOCUMENT_BYTES:
                resources.append(parse_json_object(path.read_text("utf-8"), str(path)))
        except (SettingsError, OSError, UnicodeDecodeError):
            continue
    return resources
