"""Anonymity of the whole: how well each person hides in a table, and how to make them hide better.

Settings are standard library only; everything that counts is loaded when first asked for, so that reading a
study document needs neither numpy nor polars.
"""

from __future__ import annotations

from abaton.records.anonymity.document import read_settings, settings_from
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

__all__ = [
    "AnonymitySettings",
    "BandHierarchy",
    "BinHierarchy",
    "Closeness",
    "DateHierarchy",
    "Diversity",
    "FileHierarchy",
    "FlatHierarchy",
    "PrefixHierarchy",
    "QuasiIdentifier",
    "Sensitive",
    "TableHierarchy",
    "read_settings",
    "settings_from",
]
