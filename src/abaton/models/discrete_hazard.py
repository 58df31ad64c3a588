"""Discrete-time survival model: the hazard in each of several equal intervals of the follow-up.

Subjects may be censored before an event. The model predicts the hazard, the probability of an event in an interval for
subjects without an earlier event (Cox 1972, section 6; Gensheimer and Narasimhan 2019 for networks). A subject with an
event counts up to its interval, a censored subject for the intervals of which at least half was observed.
"""

from __future__ import annotations

import torch
from torch import nn

_INITIAL_LOG_ODDS = -3.0  # of an interval before training: most intervals have no event


class DiscreteHazardNetwork(nn.Linear):
    """Log odds of each interval: one linear function of the inputs for all intervals, and an intercept for each."""

    def __init__(self, features: int, intervals: int) -> None:
        super().__init__(features, 1)
        self.bias = nn.Parameter(torch.full((intervals,), _INITIAL_LOG_ODDS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the log odds of the hazard, one row per subject and one column per interval."""
        return nn.functional.linear(x, self.weight) + self.bias


def hazard_loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean negative log likelihood of the subjects' follow-up under the discrete hazards.

    Args:
        output: Log odds of each interval.
        y: Time of the event or of censoring as a fraction of the follow-up; and 1 for an event, else 0.
    """
    intervals = output.shape[1]
    time, has_event = y[:, :1] * intervals, y[:, 1:] > 0
    interval_start = torch.arange(intervals, dtype=y.dtype)
    event_interval = torch.clamp(torch.ceil(time) - 1, 0, intervals - 1)
    is_survived = torch.where(has_event, interval_start < event_interval, interval_start + 0.5 <= time)
    log_loss = torch.where(is_survived, nn.functional.softplus(output), 0.0)
    log_loss = log_loss + torch.where(
        has_event & (interval_start == event_interval), nn.functional.softplus(-output), 0.0
    )
    return log_loss.sum(1).mean()


def event_probability(output: torch.Tensor) -> torch.Tensor:
    """Return each subject's probability of an event by the end of the follow-up, from the hazards."""
    return -torch.expm1(-nn.functional.softplus(output).sum(1))
