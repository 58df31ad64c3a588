"""Anonymity of the whole: how well each person hides in a table, and how to make them hide better.

Settings need pydantic only; everything that counts is loaded when first asked for, so that reading a
study document needs neither numpy nor polars.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.records.anonymity.document import read_settings, settings_from, table_from
from abaton.records.anonymity.settings import (
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
    from abaton.records.anonymity.encoding import encode as encode
    from abaton.records.anonymity.outcome import Outcome as Outcome
    from abaton.records.anonymity.outcome import examine as examine
    from abaton.records.anonymity.releases import release as release

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
    "release",
    "settings_from",
    "table_from",
]

_LATER = {
    "Anonymised": "anonymising",
    "Outcome": "outcome",
    "anonymise": "anonymising",
    "encode": "encoding",
    "examine": "outcome",
    "release": "releases",
}


def __getattr__(name: str) -> Any:
    """Load the counting parts when they are first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
