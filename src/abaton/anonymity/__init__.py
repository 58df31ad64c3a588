"""Anonymity of the whole: how well each person hides in a table, and how to make them hide better.

Settings need pydantic only; everything that counts is loaded when first asked for, so that reading a
study document needs neither numpy nor polars.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.anonymity.settings_reader import read_settings, settings_from, table_from
from abaton.anonymity.settings import (
    AnonymitySettings,
    BandHierarchy,
    BinHierarchy,
    Closeness,
    DateHierarchy,
    Diversity,
    FileHierarchy,
    FlatHierarchy,
    PrefixHierarchy,
    QuasiIdentifier,
    Sensitive,
    TableHierarchy,
)

if TYPE_CHECKING:
    from abaton.records.anonymity.anonymising import Anonymised as Anonymised
    from abaton.records.anonymity.anonymising import anonymise as anonymise
    from abaton.anonymity.table_encoding import encode as encode
    from abaton.records.anonymity.outcome import Outcome as Outcome
    from abaton.records.anonymity.outcome import examine as examine
    from abaton.anonymity.release import make_release as make_release

__all__ = [
    "Anonymised",
    "AnonymitySettings",
    "BandHierarchy",
    "BinHierarchy",
    "Closeness",
    "DateHierarchy",
    "Diversity",
    "FileHierarchy",
    "FlatHierarchy",
    "Outcome",
    "PrefixHierarchy",
    "QuasiIdentifier",
    "Sensitive",
    "TableHierarchy",
    "anonymise",
    "encode",
    "examine",
    "read_settings",
    "make_release",
    "settings_from",
    "table_from",
]

_LATER = {
    "Anonymised": "abaton.records.anonymity.anonymising",
    "Outcome": "abaton.records.anonymity.outcome",
    "anonymise": "abaton.records.anonymity.anonymising",
    "encode": "abaton.anonymity.table_encoding",
    "examine": "abaton.records.anonymity.outcome",
    "make_release": "abaton.anonymity.release",
}


def __getattr__(name: str) -> Any:
    """Load the counting parts when they are first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
