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
    Noted,
    Publish,
    Retire,
    Scored,
    Stop,
    Tick,
    Train,
    TrainSettings,
    Wake,
    from_row,
    settings_from,
    to_row,
)
from abaton.control.policies import POLICIES, policy
from abaton.control.privacy import SPENT, Privacy
from abaton.control.robust import Krum, Median, NormBound, Trimmed
from abaton.control.rules import Asynchronous, Blend, Latest, Rules, SemiSynchronous, Synchronous
from abaton.control.server import Adam, Momentum, Plain
from abaton.control.shelf import Shelf
from abaton.control.state import State
from abaton.control.step import step
from abaton.control.weighting import ByExamples, ByStaleness, ByValidation

__all__ = [
    "POLICIES",
    "SPENT",
    "Adam",
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
    "Krum",
    "Latest",
    "Left",
    "Median",
    "Momentum",
    "NormBound",
    "Noted",
    "Plain",
    "Privacy",
    "Publish",
    "Retire",
    "Rules",
    "Scored",
    "SemiSynchronous",
    "Shelf",
    "State",
    "Stop",
    "Synchronous",
    "Thresholds",
    "Tick",
    "Train",
    "TrainSettings",
    "Trimmed",
    "Wake",
    "community_model",
    "from_row",
    "policy",
    "settings_from",
    "step",
    "to_row",
]
