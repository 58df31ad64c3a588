"""Features: from the columns of views to arrays that a model can be trained on, one row per subject.

The plan needs pydantic; numpy is loaded when a table is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.features.data_quality import Finding, Reason, Report, masked
from abaton.features.specification import (
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
    from abaton.features.anonymisation import hidden, histogram, in_ranges
    from abaton.features.builder import Featurised, featurise, featurise_people
    from abaton.features.scaling import Moments, Scaled, Statistics, pooled, scaled, statistics
    from abaton.features.table import Column, Table, columns, group_names, groups

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
    **dict.fromkeys(("hidden", "histogram", "in_ranges"), "abaton.features.anonymisation"),
    **dict.fromkeys(("Featurised", "featurise", "featurise_people"), "abaton.features.builder"),
    **dict.fromkeys(
        ("Moments", "Scaled", "Statistics", "pooled", "scaled", "statistics"),
        "abaton.features.scaling",
    ),
    **dict.fromkeys(
        ("Column", "Table", "columns", "group_names", "groups"), "abaton.features.table"
    ),
}


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(_HEAVY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
