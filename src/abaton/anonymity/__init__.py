"""Anonymity of the whole: how well each person hides in a table, and how to make them hide better.

Settings need pydantic only; everything that counts is loaded when first asked for, so that reading a
study document needs neither numpy nor polars.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from abaton.anonymity.settings_reader import read_settings, settings_from, table_from

if TYPE_CHECKING:
    from abaton.anonymity.api import Anonymised as Anonymised
    from abaton.anonymity.api import Outcome as Outcome
    from abaton.anonymity.api import anonymise as anonymise
    from abaton.anonymity.api import examine as examine
    from abaton.anonymity.release import make_release as make_release
    from abaton.anonymity.table_encoding import encode as encode

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
    "make_release",
    "read_settings",
    "settings_from",
    "table_from",
]

_LATER = {
    "Anonymised": "abaton.anonymity.api",
    "Outcome": "abaton.anonymity.api",
    "anonymise": "abaton.anonymity.api",
    "encode": "abaton.anonymity.table_encoding",
    "examine": "abaton.anonymity.api",
    "make_release": "abaton.anonymity.release",
}


def __getattr__(name: str) -> Any:
    """Load the counting parts when they are first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
