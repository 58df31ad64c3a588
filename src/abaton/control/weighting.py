"""How much a learner's update counts in the mix."""

from __future__ import annotations

from abaton.control.messages import Arrived


def by_examples(update: Arrived) -> float:
    """Weigh an update by the number of examples it was trained on (FedAvg)."""
    return float(update.examples)
