"""Features: arrays for training from the columns of views, one row per subject.

The specification needs pydantic; numpy is loaded when a table is built.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.features.data_quality import DataQualityIssue, DataQualityReport, MissingReason, suppress_count
from abaton.features.specification import (
    Aggregation,
    Category,
    FeatureSpec,
    FollowUpSpec,
    Imputation,
    IndexDate,
    InputKind,
    InputSpec,
    LabelKind,
    LabelSpec,
    ResolvedFeatureSpec,
    RowFilter,
    ViewColumn,
)

if TYPE_CHECKING:
    from abaton.features.anonymisation import anonymise_table, combination_histogram, recode_new_rows
    from abaton.features.builder import FeatureResult, build_features, build_features_by_subject
    from abaton.features.scaling import (
        ColumnMoments,
        ColumnStatistics,
        ScaledTable,
        column_statistics,
        pool_statistics,
        scale_table,
    )
    from abaton.features.splines import SplineBasis, expand_splines
    from abaton.features.table import (
        FeatureColumn,
        FeatureTable,
        feature_columns,
        group_names,
        model_columns,
        row_groups,
    )

__all__ = [
    "Aggregation",
    "Category",
    "ColumnMoments",
    "ColumnStatistics",
    "DataQualityIssue",
    "DataQualityReport",
    "FeatureColumn",
    "FeatureResult",
    "FeatureSpec",
    "FeatureTable",
    "FollowUpSpec",
    "Imputation",
    "IndexDate",
    "InputKind",
    "InputSpec",
    "LabelKind",
    "LabelSpec",
    "MissingReason",
    "ResolvedFeatureSpec",
    "RowFilter",
    "ScaledTable",
    "SplineBasis",
    "ViewColumn",
    "anonymise_table",
    "build_features",
    "build_features_by_subject",
    "column_statistics",
    "combination_histogram",
    "expand_splines",
    "feature_columns",
    "group_names",
    "model_columns",
    "pool_statistics",
    "recode_new_rows",
    "row_groups",
    "scale_table",
    "suppress_count",
]

_LAZY_NAMES = {
    "anonymisation": ("anonymise_table", "combination_histogram", "recode_new_rows"),
    "builder": ("FeatureResult", "build_features", "build_features_by_subject"),
    "scaling": (
        *("ColumnMoments", "ColumnStatistics", "ScaledTable"),
        *("column_statistics", "pool_statistics", "scale_table"),
    ),
    "splines": ("SplineBasis", "expand_splines"),
    "table": (
        *("FeatureColumn", "FeatureTable"),
        *("feature_columns", "group_names", "model_columns", "row_groups"),
    ),
}
_LAZY = {name: f"abaton.features.{module}" for module, names in _LAZY_NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
