"""A model of how long it takes until something happens: the chance in each of some equal intervals of the follow-up.

People leave before it happens, and what is known of them is that it had not happened by then. A model gives the chance
that it happens in an interval to somebody to whom it has not happened yet (a discrete-time hazard: Cox 1972, section 6;
Gensheimer and Narasimhan 2019 for networks). Somebody with an event counts up to its interval, somebody without one for
those of which at least half was seen.
"""

from __future__ import annotations

import torch
from torch import nn

_START = -3.0  # the log odds of an interval before any training: most of them pass without an event


class Hazards(nn.Linear):
    """The log odds of each interval: one line through the inputs, the same for all, and a height for each interval."""

    def __init__(self, features: int, intervals: int) -> None:
        super().__init__(features, 1)
        self.bias = nn.Parameter(torch.full((intervals,), _START))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """For each person a row, for each interval a column."""
        return nn.functional.linear(x, self.weight) + self.bias


def hazard_loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Minus the mean log likelihood of what was seen of each person.

    Args:
        output: The log odds of each interval.
        y: When it was, or until when it had not been, as a share of the follow-up; and 1 or 0.
    """
    intervals = output.shape[1]
    time, happened = y[:, :1] * intervals, y[:, 1:] > 0
    begin = torch.arange(intervals, dtype=y.dtype)
    at = torch.clamp(torch.ceil(time) - 1, 0, intervals - 1)
    passed = torch.where(happened, begin < at, begin + 0.5 <= time)
    lost = torch.where(passed, nn.functional.softplus(output), 0.0)
    lost = lost + torch.where(happened & (begin == at), nn.functional.softplus(-output), 0.0)
    return lost.sum(1).mean()


def event_chance(output: torch.Tensor) -> torch.Tensor:
    """The chance of each person that it happens by the end of the follow-up."""
    return -torch.expm1(-nn.functional.softplus(output).sum(1))
