"""A study's model without the programs that trained it: its columns, how they are filled and scaled, its layers.

Everything that is written to a file is made from this one form, and computes what `Run.predict` computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abaton.errors import SettingsError
from abaton.federation import Run
from abaton.learners import Personal
from abaton.anonymity.settings import BinHierarchy
from abaton.study import study_from_toml


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One dense layer: what it multiplies by, one row for each output, and what it adds."""

    weight: NDArray[np.floating[Any]]
    bias: NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class UsableModel:
    """A model of a table, ready to be asked about new people.

    Attributes:
        columns: What it reads, in order.
        width: How wide the ranges are in which people were hidden among others, 0 where a number stays as it is. A
            number counts as the middle of its range.
        origin: Where the ranges begin.
        fill: What stands for a value that is missing; NaN where a value must be there.
        mean: What is taken off each column.
        deviation: What each column is divided by then.
        layers: Dense layers, with `max(0, x)` between them.
        classes: The names of the classes; none for a model of values.
        label: Mean and deviation of the values that were learned; (0, 1) for classes.
        about: Where it comes from: run, study, digests. Plain values.
    """

    columns: tuple[str, ...]
    width: NDArray[np.float64]
    origin: NDArray[np.float64]
    fill: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    layers: tuple[Layer, ...]
    classes: tuple[str, ...]
    label: tuple[float, float]
    about: Mapping[str, Any]

    def predict(self, x: ArrayLike) -> NDArray[np.float32]:
        """Chances of each class, or values; NaN for a row in which a value is missing that must be there.

        Args:
            x: One row for each person, with the columns in order and NaN where a value is missing.
        """
        rows = np.atleast_2d(np.asarray(x, np.float64))
        if rows.shape[1] != len(self.columns):
            raise SettingsError(
                f"the rows have {rows.shape[1]} columns, the model reads {len(self.columns)}",
                where="predict",
                remedy=f"give {', '.join(self.columns)}, in this order",
            )
        if self.width.any():
            wide = np.where(self.width > 0, self.width, 1.0)
            middles = (np.floor((rows - self.origin) / wide) + 0.5) * wide + self.origin
            rows = np.where(self.width > 0, middles, rows)
        filled = np.where(np.isnan(rows), self.fill, rows)
        made = ((filled - self.mean) / self.deviation).astype(np.float32)
        for i, layer in enumerate(self.layers):
            made = (np.maximum(made, 0) if i else made) @ layer.weight.T + layer.bias
        if not self.classes:
            mean, deviation = self.label
            return np.asarray(made[:, 0] * deviation + mean, np.float32)
        raised = np.exp(made - made.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True), np.float32)


def usable(run: Run) -> UsableModel:
    """The community model of a study's run, apart from the programs that trained it.

    Raises:
        SettingsError: The run has no model yet, is no study's, or its network is none of dense layers.
    """
    row = run.row
    use = row.recipe["use"]
    if "columns" not in use:
        raise SettingsError(
            f"run '{run.name}' is no study's: what its columns mean is not known",
            where="model export",
            remedy="use run.model in Python",
        )
    if getattr(run.trained, "task", "") == "time":
        raise SettingsError(
            "a model of times until something happens has no form outside Abaton yet",
            where="model export",
            remedy="use run.predict in Python",
        )
    if isinstance(run.trained, Personal):
        raise SettingsError(
            "the model has personal layers, which are at the sites",
            where="model export",
            remedy="use it there",
        )
    columns = tuple(use["columns"])
    scales = [use["scale"].get(name) for name in columns]
    versions = run.versions
    if not versions:
        raise SettingsError(f"run '{run.name}' has no model yet", where="model export", remedy="wait for it")
    ranges = dict(_ranges(run, columns, use.get("ranges", ())))
    return UsableModel(
        columns=columns,
        width=np.array([ranges.get(name, (0.0, 0.0))[0] for name in columns]),
        origin=np.array([ranges.get(name, (0.0, 0.0))[1] for name in columns]),
        fill=np.array([np.nan if each is None else each[0] for each in scales]),
        mean=np.array([each[0] if each and each[2] else 0.0 for each in scales]),
        deviation=np.array([each[1] if each and each[2] else 1.0 for each in scales]),
        layers=tuple(_layers(run.model, len(use["classes"]))),
        classes=tuple(use["classes"]),
        label=(use["label"][0], use["label"][1]),
        about={
            "run": run.name,
            "study": row.recipe["study"]["id"],
            "document": row.recipe["study"]["hash"],
            "version": versions[-1].version,
            "digest": versions[-1].digest,
            "software": dict(row.recipe["versions"]),
        },
    )


def _ranges(
    run: Run, columns: Sequence[str], levels: Sequence[int]
) -> Iterable[tuple[str, tuple[float, float]]]:
    """Width and origin of the ranges of each column in which people were hidden among others."""
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
                f"'{quasi.column}' was coarsened in a way that has no form outside Abaton",
                where="model export",
                remedy="use run.predict in Python",
            )
        yield quasi.column, (float(shape.bins[level - 1]), float(shape.origin))


def _layers(model: Any, classes: int) -> Iterable[Layer]:
    """The dense layers of a PyTorch module or an estimator of scikit-learn."""
    if hasattr(model, "coefs_"):
        return _estimators([np.transpose(w) for w in model.coefs_], model.intercepts_, classes)
    if hasattr(model, "coef_"):
        return _estimators([np.atleast_2d(model.coef_)], [np.atleast_1d(model.intercept_)], classes)
    return _modules(model)


def _estimators(weights: Sequence[Any], biases: Sequence[Any], classes: int) -> Iterable[Layer]:
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if i == len(weights) - 1 and classes == 2 and len(bias) == 1:
            # One output for two classes is the second's lead over the first.
            weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
        yield Layer(np.asarray(weight, np.float32), np.asarray(bias, np.float32))


def _modules(model: Any) -> Iterable[Layer]:
    from torch import nn

    modules = list(model) if isinstance(model, nn.Sequential) else [model]
    for i, module in enumerate(modules):
        if not isinstance(module, nn.ReLU if i % 2 else nn.Linear):
            raise SettingsError(
                f"the network has a {type(module).__name__}, and only dense layers can be exported",
                where="model export",
                remedy="use run.model in Python",
            )
        if isinstance(module, nn.Linear):
            yield Layer(module.weight.detach().numpy().copy(), module.bias.detach().numpy().copy())
