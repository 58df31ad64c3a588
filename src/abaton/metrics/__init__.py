"""Performance metrics, computed from counts that add up over sites."""

from abaton.metrics.predictions import ModelScore

__all__ = ["ModelScore"]
