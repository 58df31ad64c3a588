"""Engines that carry tasks and events between the controller and the learners, and run loops."""

from abaton.engines.base import Engine, EvaluateTask, Task, TrainTask
from abaton.engines.checkpoint import CHECKPOINT_EVERY, Checkpoints
from abaton.engines.launcher import (
    MODEL_CACHE_BYTES,
    ClosableEngine,
    RunContext,
    delete_run_state,
    open_local_engine,
    open_ray_engine,
    open_virtual_engine,
    restore_learner_state,
    run_to_completion,
    status_of,
)
from abaton.engines.local_engine import LocalEngine
from abaton.engines.ray import RayEngine
from abaton.engines.replay import ReplayedEngine, ResumePoint
from abaton.engines.runner import RunLoop, RunOutcome
from abaton.engines.virtual_engine import MachineProfile, VirtualEngine

__all__ = [
    "CHECKPOINT_EVERY",
    "MODEL_CACHE_BYTES",
    "Checkpoints",
    "ClosableEngine",
    "Engine",
    "EvaluateTask",
    "LocalEngine",
    "MachineProfile",
    "RayEngine",
    "ReplayedEngine",
    "ResumePoint",
    "RunContext",
    "RunLoop",
    "RunOutcome",
    "Task",
    "TrainTask",
    "VirtualEngine",
    "delete_run_state",
    "open_local_engine",
    "open_ray_engine",
    "open_virtual_engine",
    "restore_learner_state",
    "run_to_completion",
    "status_of",
]
