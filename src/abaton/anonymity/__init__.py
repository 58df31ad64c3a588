"""Anonymity of tables: metrics, k-anonymity, l-diversity and t-closeness, for one site and for several.

Settings need pydantic only; the other modules are imported on first use, so that reading a study document needs neither
numpy nor polars.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.anonymity.settings import (
    AnonymitySettings,
    BandHierarchy,
    BinHierarchy,
    DateHierarchy,
    FileHierarchy,
    FlatHierarchy,
    LDiversity,
    PrefixHierarchy,
    QuasiIdentifier,
    SensitiveAttribute,
    TableHierarchy,
    TCloseness,
)
from abaton.anonymity.settings_reader import read_settings, settings_from, table_from

if TYPE_CHECKING:
    from abaton.anonymity.api import AnonymisationResult as AnonymisationResult
    from abaton.anonymity.api import TableExamination as TableExamination
    from abaton.anonymity.api import anonymise as anonymise
    from abaton.anonymity.api import examine as examine
    from abaton.anonymity.release import make_release as make_release
    from abaton.anonymity.table_encoding import encode as encode

__all__ = [
    "AnonymisationResult",
    "AnonymitySettings",
    "BandHierarchy",
    "BinHierarchy",
    "DateHierarchy",
    "FileHierarchy",
    "FlatHierarchy",
    "LDiversity",
    "PrefixHierarchy",
    "QuasiIdentifier",
    "SensitiveAttribute",
    "TCloseness",
    "TableExamination",
    "TableHierarchy",
    "anonymise",
    "encode",
    "examine",
    "make_release",
    "read_settings",
    "settings_from",
    "table_from",
]

_LAZY = {
    "AnonymisationResult": "abaton.anonymity.api",
    "TableExamination": "abaton.anonymity.api",
    "anonymise": "abaton.anonymity.api",
    "encode": "abaton.anonymity.table_encoding",
    "examine": "abaton.anonymity.api",
    "make_release": "abaton.anonymity.release",
}


def __getattr__(name: str) -> Any:
    """Import a module of the anonymity package on first use of its names."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
