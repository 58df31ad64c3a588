"""A study as ``study.toml``."""

from __future__ import annotations

from dataclasses import dataclass

from abaton.documents.line_numbers import KeyPath, line_numbers, nearest_line
from abaton.documents.problems import dotted
from abaton.documents.toml import checked_table, json_of, told_in, toml_of, toml_table
from abaton.study.document import Study
from abaton.study.problems import STUDY_GUIDE, StudyError
from abaton.study.shorthand import ShortParts, expanded
from abaton.study.short.explaining import Derived, explained


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
