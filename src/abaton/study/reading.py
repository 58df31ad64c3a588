"""Reading a study document: ``study.toml`` or an InteropEHRate Bundle, told apart by what is in the file."""

from __future__ import annotations

import json
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError

from abaton.documents.line_numbers import KeyPath
from abaton.documents.problems import DocumentError, Problem, dotted, problems_of
from abaton.documents.reading import LARGEST, read_document, text_of
from abaton.strict_json import parse
from abaton.errors import SettingsError
from abaton.study.fhir_bundle import read_bundle
from abaton.study.document import Study
from abaton.study.problems import STUDY_GUIDE, StudyError
from abaton.study.toml import StudyReading, read_toml


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
