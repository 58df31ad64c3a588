"""What a person reads before saying yes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from abaton.documents.fields import Part, Text


class Statement(StrEnum):
    """What a person must have been told before consenting."""

    EXPORTS_STAY = "exports-stay"
    MODELS_STAY = "models-stay"
    MODELS_ARE_SEEN = "models-are-seen"


WORDING = {
    Statement.EXPORTS_STAY: (
        "Anonymised data that has already left the site cannot be traced to you, and so it cannot be called "
        "back if you withdraw."
    ),
    Statement.MODELS_STAY: (
        "A model that was finished before you withdraw has learned from your data and cannot be called back; "
        "no later round of training uses your data."
    ),
    Statement.MODELS_ARE_SEEN: (
        "To judge its quality, the model trained on your site's data is shown to the other sites of the "
        "study, not only to the research centre."
    ),
}
"""The wording that Abaton proposes for each statement; a study may use its own words."""


def to_be_told(*, records: bool, updates: bool, anonymised: bool) -> tuple[Statement, ...]:
    """What people must be told, given what leaves the sites and whether it can be called back."""
    told = [Statement.EXPORTS_STAY] if records and anonymised else []
    return (*told, *([Statement.MODELS_STAY, Statement.MODELS_ARE_SEEN] if updates else []))


class Consent(Part):
    """What a person reads before saying yes. Every statement that applies to the study must be there."""

    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] = "en"
    text: Text
    statements: dict[Statement, Text] = Field(default_factory=dict)
