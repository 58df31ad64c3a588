"""Figures: pure functions from rows to pictures, which need no network to be looked at."""

from abaton.report.partition import partition_figure

__all__ = ["partition_figure"]
