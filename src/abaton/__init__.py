"""Abaton takes a health study from consent to community model.

Everything here is loaded when it is first used: `import abaton` loads nothing else.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # importing `typing` would take longer than everything else here
if TYPE_CHECKING:
    from abaton.controller import POLICIES, Rules, TrainSettings, policy
    from abaton.engines import Profile
    from abaton.federation import Federation, Holding, Run, StudyOptions, run_study
    from abaton.learners import Examples, Model, SklearnModel, TorchModel, logistic, mlp
    from abaton.records import anonymise, deidentify, view
    from abaton.store import Store
    from abaton.study import Study, load_study

__all__ = [
    "POLICIES",
    "Examples",
    "Federation",
    "Holding",
    "Model",
    "Profile",
    "Rules",
    "Run",
    "SklearnModel",
    "Store",
    "Study",
    "StudyOptions",
    "TorchModel",
    "TrainSettings",
    "__version__",
    "anonymise",
    "deidentify",
    "load_study",
    "logistic",
    "mlp",
    "policy",
    "run_study",
    "view",
]

_ROOMS = {
    "controller": ("POLICIES", "Rules", "TrainSettings", "policy"),
    "engines": ("Profile",),
    "federation": ("Federation", "Holding", "Run", "StudyOptions", "run_study"),
    "learners": ("Examples", "Model", "SklearnModel", "TorchModel", "logistic", "mlp"),
    "records": ("anonymise", "deidentify", "view"),
    "store": ("Store",),
    "study": ("Study", "load_study"),
}
_WHERE = {name: room for room, names in _ROOMS.items() for name in names}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _WHERE:
            return getattr(import_module(f"abaton.{_WHERE[name]}"), name)
        raise AttributeError(f"module 'abaton' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
