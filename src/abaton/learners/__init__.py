"""Learners and evaluators: local training on one site's data.

Networks are loaded when they are first used: `from abaton.learners import mlp` imports PyTorch, `import abaton`
does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.learners.learner import Epoch, Learner, Update, Watch, cycle_ends
from abaton.learners.parallel_trainer import Crew, CrewError
from abaton.learners.personal_layers import Personal
from abaton.learners.process_pool import Job
from abaton.learners.site_policy import AdmitsAll, Reply, Request, Signed, SitePolicy
from abaton.metrics.predictions import Score
from abaton.models.base import Examples, Lesson, Model, Trained, train_model

if TYPE_CHECKING:
    from abaton.models.sklearn_model import SklearnModel
    from abaton.models.torch_model import TorchModel
    from abaton.models.zoo import cifar10_cnn, logistic, mlp, resnet50, shakespeare, sstc_cnn, time_to_event

__all__ = [
    "AdmitsAll",
    "Crew",
    "CrewError",
    "Epoch",
    "Examples",
    "Job",
    "Learner",
    "Lesson",
    "Model",
    "Personal",
    "Reply",
    "Request",
    "Score",
    "Signed",
    "SitePolicy",
    "SklearnModel",
    "TorchModel",
    "Trained",
    "Update",
    "Watch",
    "cifar10_cnn",
    "cycle_ends",
    "logistic",
    "mlp",
    "resnet50",
    "shakespeare",
    "sstc_cnn",
    "time_to_event",
    "train_model",
]

_HEAVY = {
    "SklearnModel": "abaton.models.sklearn_model",
    "TorchModel": "abaton.models.torch_model",
    **dict.fromkeys(
        ("cifar10_cnn", "logistic", "mlp", "resnet50", "shakespeare", "sstc_cnn", "time_to_event"),
        "abaton.models.zoo",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(import_module(_HEAVY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
