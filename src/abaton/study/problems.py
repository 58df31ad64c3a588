"""What is wrong with a study document, and where its keys are explained."""

from __future__ import annotations

from abaton.documents.problems import DocumentError, Guide
from abaton.study.shorthand import SHORT_KEYS

STUDY_GUIDE = Guide("abaton study new", "docs/study-document.md", SHORT_KEYS)


class StudyError(DocumentError):
    """A study document that cannot be used, with every problem found in it."""

    @classmethod
    def all_told(cls, file: str) -> str:
        """How to see every problem of a study document."""
        return f": abaton study check {file}"
