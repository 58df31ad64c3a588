"""A model as a file of weights (safetensors), which holds numbers and words and can do nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.atomic_files import replacing
from abaton.deployment.portable_model import Layer, UsableModel

FORMAT = "abaton-model-1"


def write_weights(model: UsableModel, path: Path) -> None:
    """Write a model; columns, classes and where it comes from stand beside the weights."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {
        "width": model.width,
        "origin": model.origin,
        "fill": model.fill,
        "mean": model.mean,
        "deviation": model.deviation,
    }
    for i, layer in enumerate(model.layers):
        arrays |= {f"layer{i}.weight": layer.weight, f"layer{i}.bias": layer.bias}
    told = {
        "columns": list(model.columns),
        "classes": list(model.classes),
        "label": list(model.label),
        "layers": len(model.layers),
        "about": dict(model.about),
    }
    made = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={"format": FORMAT, "model": json.dumps(told)},
    )
    with replacing(path) as begun:
        begun.write_bytes(made)


def load_model(path: Path) -> UsableModel:
    """Read a model that was exported as weights; neither PyTorch nor the run is needed to ask it.

    Raises:
        SettingsError: The file is none of these, or is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError("format")
        told = json.loads(metadata["model"])
        mean, deviation = told["label"]
        return UsableModel(
            columns=tuple(told["columns"]),
            width=arrays["width"],
            origin=arrays["origin"],
            fill=arrays["fill"],
            mean=arrays["mean"],
            deviation=arrays["deviation"],
            layers=tuple(
                Layer(arrays[f"layer{i}.weight"], arrays[f"layer{i}.bias"]) for i in range(told["layers"])
            ),
            classes=tuple(told["classes"]),
            label=(mean, deviation),
            about=told["about"],
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            "this is no model that Abaton wrote, or it is damaged",
            where=str(path),
            remedy="export it again: abaton model export RUN --out model.safetensors",
        ) from error
