"""The controller: events in, instructions out, no clock, socket, thread or file."""

from abaton.control.adaptive import Thresholds
from abaton.control.community import CommunityModel, community_model
from abaton.control.messages import (
    Arrived,
    Cancel,
    Commit,
    Evaluate,
    Event,
    Failed,
    Instruction,
    Joined,
    Left,
    Publish,
    Retire,
    Scored,
    Stop,
    Tick,
    Train,
    TrainSettings,
    Wake,
    from_row,
    to_row,
)
from abaton.control.rules import POLICIES, Asynchronous, Blend, Latest, Rules, Synchronous
from abaton.control.state import State
from abaton.control.step import step
from abaton.control.weighting import ByExamples, ByStaleness, ByValidation

__all__ = [
    "POLICIES",
    "Arrived",
    "Asynchronous",
    "Blend",
    "ByExamples",
    "ByStaleness",
    "ByValidation",
    "Cancel",
    "Commit",
    "CommunityModel",
    "Evaluate",
    "Event",
    "Failed",
    "Instruction",
    "Joined",
    "Latest",
    "Left",
    "Publish",
    "Retire",
    "Rules",
    "Scored",
    "State",
    "Stop",
    "Synchronous",
    "Thresholds",
    "Tick",
    "Train",
    "TrainSettings",
    "Wake",
    "community_model",
    "from_row",
    "step",
    "to_row",
]
