"""The controller: events in, instructions out, no clock, socket, thread or file."""

from abaton.control.messages import (
    Arrived,
    Commit,
    Event,
    Failed,
    Instruction,
    Joined,
    Left,
    Publish,
    Stop,
    Train,
    TrainSettings,
    from_row,
    to_row,
)
from abaton.control.rules import Rules
from abaton.control.state import State
from abaton.control.step import step

__all__ = [
    "Arrived",
    "Commit",
    "Event",
    "Failed",
    "Instruction",
    "Joined",
    "Left",
    "Publish",
    "Rules",
    "State",
    "Stop",
    "Train",
    "TrainSettings",
    "from_row",
    "step",
    "to_row",
]
