"""What carries messages and time between the controller and the learners."""

from abaton.engines.checkpoint import Checkpoints
from abaton.engines.contract import Engine, EvaluateTask, Task, TrainTask
from abaton.engines.drive import Driver, Outcome
from abaton.engines.living import Run, live, local, on_ray, status_of, virtual
from abaton.engines.local import LocalEngine
from abaton.engines.ray import RayEngine, Remake
from abaton.engines.replay import Replayed, Resumed
from abaton.engines.virtual import Profile, VirtualEngine

__all__ = [
    "Checkpoints",
    "Driver",
    "Engine",
    "EvaluateTask",
    "LocalEngine",
    "Outcome",
    "Profile",
    "RayEngine",
    "Remake",
    "Replayed",
    "Resumed",
    "Run",
    "Task",
    "TrainTask",
    "VirtualEngine",
    "live",
    "local",
    "on_ray",
    "status_of",
    "virtual",
]
