"""Abaton: federated learning and FHIR de-identification, from consent to community model.

Names are loaded at first use: `import abaton` loads nothing else.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # importing `typing` would take longer than the rest of this module
if TYPE_CHECKING:
    from abaton.anonymity import anonymise
    from abaton.controller import STRATEGIES, Strategy, TrainSettings, strategy
    from abaton.deid import deidentify
    from abaton.deployment import export_model, load_model, predict
    from abaton.engines import MachineProfile
    from abaton.federation import Federation, LocalSite, Run
    from abaton.models import Examples, Model, SklearnModel, TorchModel, logistic, mlp
    from abaton.store import Store
    from abaton.study import Study, load_study
    from abaton.study_run import StudyOptions, run_study
    from abaton.views import view

__all__ = [
    "STRATEGIES",
    "Examples",
    "Federation",
    "LocalSite",
    "MachineProfile",
    "Model",
    "Run",
    "SklearnModel",
    "Store",
    "Strategy",
    "Study",
    "StudyOptions",
    "TorchModel",
    "TrainSettings",
    "__version__",
    "anonymise",
    "deidentify",
    "export_model",
    "load_model",
    "load_study",
    "logistic",
    "mlp",
    "predict",
    "run_study",
    "strategy",
    "view",
]

_PACKAGES = {
    "controller": ("STRATEGIES", "Strategy", "TrainSettings", "strategy"),
    "deployment": ("export_model", "load_model", "predict"),
    "engines": ("MachineProfile",),
    "federation": ("Federation", "LocalSite", "Run"),
    "models": ("Examples", "Model", "SklearnModel", "TorchModel", "logistic", "mlp"),
    "anonymity": ("anonymise",),
    "deid": ("deidentify",),
    "views": ("view",),
    "store": ("Store",),
    "study": ("Study", "load_study"),
    "study_run": ("StudyOptions", "run_study"),
}
_PACKAGE_OF = {name: package for package, names in _PACKAGES.items() for name in names}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _PACKAGE_OF:
            return getattr(import_module(f"abaton.{_PACKAGE_OF[name]}"), name)
        raise AttributeError(f"module 'abaton' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
