"""Export a run's model: the file's ending says which form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from abaton.errors import SettingsError
from abaton.federation import Run
from abaton.deployment.sklearn_export import write_estimator
from abaton.results.graph import write_graph
from abaton.deployment.portable_model import UsableModel, usable
from abaton.results.weights import write_weights

FORMS: Mapping[str, Callable[[UsableModel, Path], None]] = {
    ".onnx": write_graph,
    ".safetensors": write_weights,
    ".skops": write_estimator,
}
"""How a model is written, by the file's ending."""


def export(run: Run, out: Path) -> UsableModel:
    """Write a run's model to a file: ONNX, weights, or an estimator of scikit-learn, by the file's ending.

    Raises:
        SettingsError: There is no such form, the file cannot be written, or the model cannot be exported.
    """
    if out.suffix not in FORMS:
        raise SettingsError(
            f"there is no form '{out.suffix}' of a model",
            where=str(out),
            remedy=f"end it in {', '.join(FORMS)}",
        )
    made = usable(run)
    try:
        FORMS[out.suffix](made, out)
    except OSError as error:
        raise SettingsError(
            "the file cannot be written", where=str(out), remedy=error.strerror or "choose another place"
        ) from None
    return made
