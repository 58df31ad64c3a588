"""Shorthand of study documents: one line per input, from which data requirements, views and features are derived."""

from abaton.study.shorthand.codes import DEFAULT_VIEWS, SYSTEMS
from abaton.study.shorthand.derived_features import standard_views
from abaton.study.shorthand.expansion import ExpandedStudy, expand_shorthand
from abaton.study.shorthand.schema import SHORTHAND_KEYS, ShorthandSections

__all__ = [
    "DEFAULT_VIEWS",
    "SHORTHAND_KEYS",
    "SYSTEMS",
    "ExpandedStudy",
    "ShorthandSections",
    "expand_shorthand",
    "standard_views",
]
