"""The short study: an input is one line, and what may be known, views and features are derived from it."""

from abaton.study.shorthand.codes import HOMES, SYSTEMS
from abaton.study.shorthand.derived_features import standard_views
from abaton.study.shorthand.expansion import Expanded, expanded
from abaton.study.shorthand.schema import SHORT_KEYS, ShortParts

__all__ = ["HOMES", "SHORT_KEYS", "SYSTEMS", "Expanded", "ShortParts", "expanded", "standard_views"]
