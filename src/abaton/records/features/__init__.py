"""Features: from the columns of views to arrays that a model can be trained on, one row per subject.

The plan needs pydantic; numpy is loaded when a table is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.records.features.findings import Finding, Reason, Report, masked
from abaton.records.features.plan import (
    Category,
    Features,
    FollowUp,
    IndexDate,
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
    from abaton.records.features.hiding import hidden, histogram, in_ranges
    from abaton.records.features.making import Featurised, featurise, featurise_people
    from abaton.records.features.scaling import Moments, Scaled, Statistics, pooled, scaled, statistics
    from abaton.records.features.tables import Column, Table, columns, group_names, groups

__all__ = [
    "Category",
    "Column",
    "Features",
    "Featurised",
    "Finding",
    "FollowUp",
    "IndexDate",
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
    "featurise_people",
    "group_names",
    "groups",
    "hidden",
    "histogram",
    "in_ranges",
    "masked",
    "pooled",
    "scaled",
    "statistics",
]

_HEAVY = {
    **dict.fromkeys(("hidden", "histogram", "in_ranges"), "abaton.records.features.hiding"),
    **dict.fromkeys(("Featurised", "featurise", "featurise_people"), "abaton.records.features.making"),
    **dict.fromkeys(
        ("Moments", "Scaled", "Statistics", "pooled", "scaled", "statistics"),
        "abaton.records.features.scaling",
    ),
    **dict.fromkeys(
        ("Column", "Table", "columns", "group_names", "groups"), "abaton.records.features.tables"
    ),
}


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(_HEAVY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
