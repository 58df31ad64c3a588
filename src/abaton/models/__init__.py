"""Model interface and implementations.

Networks are loaded when they are first used: `from abaton.models import mlp` imports PyTorch, `import abaton` does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.models.base import Examples, Model, TrainingPlan, TrainingResult, train_model

if TYPE_CHECKING:
    from abaton.models.sklearn_model import SklearnModel
    from abaton.models.torch_model import TorchModel
    from abaton.models.zoo import cifar10_cnn, logistic, mlp, resnet50, shakespeare, sstc_cnn, time_to_event

__all__ = [
    "Examples",
    "Model",
    "SklearnModel",
    "TorchModel",
    "TrainingPlan",
    "TrainingResult",
    "cifar10_cnn",
    "logistic",
    "mlp",
    "resnet50",
    "shakespeare",
    "sstc_cnn",
    "time_to_event",
    "train_model",
]

_LAZY = {
    "SklearnModel": "abaton.models.sklearn_model",
    "TorchModel": "abaton.models.torch_model",
    **dict.fromkeys(
        ("cifar10_cnn", "logistic", "mlp", "resnet50", "shakespeare", "sstc_cnn", "time_to_event"),
        "abaton.models.zoo",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
