"""Features: from the columns of views to arrays that a model can be trained on, one row per subject.

The plan needs the standard library only; numpy is loaded when a table is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.records.features.findings import Finding, Reason, Report, masked
from abaton.records.features.plan import (
    Category,
    Input,
    Join,
    Kind,
    Label,
    Missing,
    Outcome,
    Plan,
    Source,
    Where,
)

if TYPE_CHECKING:
    from abaton.records.features.hiding import hidden, histogram
    from abaton.records.features.making import Featurised, featurise
    from abaton.records.features.scaling import Moments, Scaled, Statistics, pooled, scaled, statistics
    from abaton.records.features.tables import Column, Table, columns, groups

__all__ = [
    "Category",
    "Column",
    "Featurised",
    "Finding",
    "Input",
    "Join",
    "Kind",
    "Label",
    "Missing",
    "Moments",
    "Outcome",
    "Plan",
    "Reason",
    "Report",
    "Scaled",
    "Source",
    "Statistics",
    "Table",
    "Where",
    "columns",
    "featurise",
    "groups",
    "hidden",
    "histogram",
    "masked",
    "pooled",
    "scaled",
    "statistics",
]

_HEAVY = {
    **dict.fromkeys(("hidden", "histogram"), "abaton.records.features.hiding"),
    **dict.fromkeys(("Featurised", "featurise"), "abaton.records.features.making"),
    **dict.fromkeys(
        ("Moments", "Scaled", "Statistics", "pooled", "scaled", "statistics"),
        "abaton.records.features.scaling",
    ),
    **dict.fromkeys(("Column", "Table", "columns", "groups"), "abaton.records.features.tables"),
}


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(_HEAVY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
