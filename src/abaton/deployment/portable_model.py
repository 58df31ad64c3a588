"""Portable form of a study's model: columns, imputation, scaling and dense layers as arrays.

Every export format is written from this form and predicts what `Run.predict` predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abaton.anonymity.settings import BinHierarchy
from abaton.errors import SettingsError
from abaton.features import SplineBasis, expand_splines
from abaton.federation import Run
from abaton.learners import PersonalLayersModel
from abaton.study import study_from_toml


@dataclass(frozen=True, slots=True, eq=False)
class PortableLayer:
    """Dense layer: weights with one row per output, and the bias."""

    weight: NDArray[np.floating[Any]]
    bias: NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class PortableModel:
    """Model of tabular data that predicts without the framework that trained it.

    Attributes:
        columns: Input columns, in order.
        bin_width: Bin width of columns that were generalised for k-anonymity, 0 for others. A value counts as the
            midpoint of its bin.
        bin_origin: Origin of the bins.
        fill_value: Replacement of a missing value; NaN where a value is required.
        mean: Mean subtracted from each column.
        std: Standard deviation by which each column is divided.
        layers: Dense layers with ReLU between them.
        classes: Class names; empty for regression.
        label: Mean and standard deviation of the outcome; (0, 1) for classification.
        metadata: Provenance as JSON values: run, study, digests.
        splines: Spline of each column, or None; empty without splines. The first layer reads the spline's columns.
    """

    columns: tuple[str, ...]
    bin_width: NDArray[np.float64]
    bin_origin: NDArray[np.float64]
    fill_value: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    layers: tuple[PortableLayer, ...]
    classes: tuple[str, ...]
    label: tuple[float, float]
    metadata: Mapping[str, Any]
    splines: tuple[SplineBasis | None, ...] = ()

    def predict(self, x: ArrayLike) -> NDArray[np.float32]:
        """Return class probabilities, or values, of the portable model; NaN for rows without a required value.

        Args:
            x: One row per patient, columns in order, NaN where a value is missing.
        """
        rows = np.atleast_2d(np.asarray(x, np.float64))
        if rows.shape[1] != len(self.columns):
            raise SettingsError(
                f"the rows have {rows.shape[1]} columns, the model reads {len(self.columns)}",
                where="predict",
                remedy=f"give {', '.join(self.columns)}, in this order",
            )
        if self.bin_width.any():
            bin_width = np.where(self.bin_width > 0, self.bin_width, 1.0)
            midpoints = (np.floor((rows - self.bin_origin) / bin_width) + 0.5) * bin_width + self.bin_origin
            rows = np.where(self.bin_width > 0, midpoints, rows)
        filled = np.where(np.isnan(rows), self.fill_value, rows)
        activations = expand_splines((filled - self.mean) / self.std, self.splines).astype(np.float32)
        for i, layer in enumerate(self.layers):
            activations = (np.maximum(activations, 0) if i else activations) @ layer.weight.T + layer.bias
        if not self.classes:
            mean, std = self.label
            return np.asarray(activations[:, 0] * std + mean, np.float32)
        exponentials = np.exp(activations - activations.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True), np.float32)


def to_portable_model(run: Run) -> PortableModel:
    """Return the community model of a study run in portable form.

    Raises:
        SettingsError: The run has no model yet, is not a study run, or the model has other than dense layers.
    """
    row = run.row
    deployment = row.recipe["deployment"]
    if "columns" not in deployment:
        raise SettingsError(
            f"run '{run.name}' is not a study run: its columns have no description",
            where="model export",
            remedy="use run.model in Python",
        )
    if getattr(run.model_definition, "task", "") == "survival":
        raise SettingsError(
            "survival models cannot be exported yet",
            where="model export",
            remedy="use run.predict in Python",
        )
    if isinstance(run.model_definition, PersonalLayersModel):
        raise SettingsError(
            "the model has personal layers, which stay at the sites",
            where="model export",
            remedy="use the model at a site",
        )
    columns = tuple(deployment["columns"])
    scales = [deployment["scale"].get(name) for name in columns]
    versions = run.versions
    if not versions:
        raise SettingsError(
            f"run '{run.name}' has no model yet", where="model export", remedy="wait for its first version"
        )
    spline_rows = deployment.get("splines", {})
    is_scaled = [
        bool(scale and scale[2] and name not in spline_rows)
        for name, scale in zip(columns, scales, strict=True)
    ]
    ranges = dict(_bins(run, columns, deployment.get("ranges", ())))
    return PortableModel(
        columns=columns,
        bin_width=np.array([ranges.get(name, (0.0, 0.0))[0] for name in columns]),
        bin_origin=np.array([ranges.get(name, (0.0, 0.0))[1] for name in columns]),
        fill_value=np.array([np.nan if scale is None else scale[0] for scale in scales]),
        mean=np.array([scale[0] if flag else 0.0 for scale, flag in zip(scales, is_scaled, strict=True)]),
        std=np.array([scale[1] if flag else 1.0 for scale, flag in zip(scales, is_scaled, strict=True)]),
        layers=tuple(_layers(run.model, len(deployment["classes"]))),
        classes=tuple(deployment["classes"]),
        label=(deployment["label"][0], deployment["label"][1]),
        metadata={
            "run": run.name,
            "study": row.recipe["study"]["id"],
            "document": row.recipe["study"]["hash"],
            "version": versions[-1].version,
            "digest": versions[-1].digest,
            "software": dict(row.recipe["software_versions"]),
        },
        splines=tuple(
            SplineBasis.from_row(spline_rows[name]) if name in spline_rows else None for name in columns
        )
        if spline_rows
        else (),
    )


def _bins(
    run: Run, columns: Sequence[str], levels: Sequence[int]
) -> Iterable[tuple[str, tuple[float, float]]]:
    """Yield bin width and origin of the portable model's columns that were generalised for k-anonymity."""
    if not any(levels):
        return
    anonymity = study_from_toml(run.row.recipe["settings"]["study"]).privacy.anonymity
    assert anonymity is not None
    for quasi, level in zip(anonymity.quasi_identifiers, levels, strict=True):
        shape = quasi.hierarchy
        if not level:
            continue
        if not isinstance(shape, BinHierarchy) or level > len(shape.bins) or quasi.column not in columns:
            raise SettingsError(
                f"the generalisation of column '{quasi.column}' cannot be exported",
                where="model export",
                remedy="use run.predict in Python",
            )
        yield quasi.column, (float(shape.bins[level - 1]), float(shape.origin))


def _layers(model: Any, classes: int) -> Iterable[PortableLayer]:
    """Return the dense layers of a PyTorch module or scikit-learn estimator in portable form."""
    if hasattr(model, "coefs_"):
        return _layers_of_estimator([np.transpose(w) for w in model.coefs_], model.intercepts_, classes)
    if hasattr(model, "coef_"):
        return _layers_of_estimator([np.atleast_2d(model.coef_)], [np.atleast_1d(model.intercept_)], classes)
    return _layers_of_module(model)


def _layers_of_estimator(
    weights: Sequence[Any], biases: Sequence[Any], classes: int
) -> Iterable[PortableLayer]:
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if i == len(weights) - 1 and classes == 2 and len(bias) == 1:
            # The one output of a binary estimator is the log odds of the second class.
            weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
        yield PortableLayer(np.asarray(weight, np.float32), np.asarray(bias, np.float32))


def _layers_of_module(model: Any) -> Iterable[PortableLayer]:
    from torch import nn

    modules = list(model) if isinstance(model, nn.Sequential) else [model]
    for i, module in enumerate(modules):
        if not isinstance(module, nn.ReLU if i % 2 else nn.Linear):
            raise SettingsError(
                f"the model has a {type(module).__name__} module; only dense layers can be exported",
                where="model export",
                remedy="use run.model in Python",
            )
        if isinstance(module, nn.Linear):
            yield PortableLayer(module.weight.detach().numpy().copy(), module.bias.detach().numpy().copy())
