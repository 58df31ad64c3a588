"""What carries messages and time between the controller and the learners."""

from abaton.engines.base import Engine, EvaluateTask, Task, TrainTask
from abaton.engines.checkpoint import EVERY, Checkpoints
from abaton.engines.launcher import (
    MEMORY,
    Ended,
    Running,
    forget,
    live,
    local,
    on_ray,
    recall,
    status_of,
    virtual,
)
from abaton.engines.local_engine import LocalEngine
from abaton.engines.ray import RayEngine
from abaton.engines.replay import Replayed, Resumed
from abaton.engines.runner import Driver, Outcome
from abaton.engines.virtual_engine import Profile, VirtualEngine

__all__ = [
    "EVERY",
    "MEMORY",
    "Checkpoints",
    "Driver",
    "Ended",
    "Engine",
    "EvaluateTask",
    "LocalEngine",
    "Outcome",
    "Profile",
    "RayEngine",
    "Replayed",
    "Resumed",
    "Running",
    "Task",
    "TrainTask",
    "VirtualEngine",
    "forget",
    "live",
    "local",
    "on_ray",
    "recall",
    "status_of",
    "virtual",
]
