"""The short study: an input is one line, and what may be known, views and features are derived from it."""

from abaton.study.short.codes import HOMES, SYSTEMS
from abaton.study.shorthand.schema import SHORT_KEYS, ShortParts
from abaton.study.short.expanding import Expanded, expanded
from abaton.study.short.views import standard_views

__all__ = ["HOMES", "SHORT_KEYS", "SYSTEMS", "Expanded", "ShortParts", "expanded", "standard_views"]
