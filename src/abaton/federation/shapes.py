"""Whether a model can read the examples that sites bring: their shape, and labels that are its classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.learners import Examples, Model

Shape = tuple[int, ...]


def check_readable(model: Model, parts: Iterable[tuple[str, Examples]]) -> None:
    """Refuse examples that a model cannot read, and labels that are none of its classes, by whose they are.

    One example of each shape is scored, to see what the model makes of it.

    Args:
        model: What is trained.
        parts: Whose examples, and the examples.

    Raises:
        SettingsError: Before anything is trained.
    """
    classes: dict[tuple[Shape, Shape], int | None] = {}
    for where, part in parts:
        x, y = np.asarray(part.x), np.asarray(part.y)
        if not len(part) or y.dtype.kind not in "iu":
            continue
        shapes = x.shape[1:], y.shape[1:]
        if shapes not in classes:
            classes[shapes] = _classes(model, x[:1], y[:1], where)
        count = classes[shapes]
        if count is not None and (y.min() < 0 or y.max() >= count):
            raise SettingsError(
                "a label is not one of the model's classes",
                where=where,
                remedy=f"number the classes from 0 to {count - 1}",
            )


def _classes(model: Model, x: NDArray[Any], y: NDArray[Any], where: str) -> int | None:
    """How many classes a model tells apart; nothing if it gives values."""
    try:
        said = model.score(model.initial(0), Examples(x, np.zeros_like(y))).predictions
    except (RuntimeError, ValueError, IndexError) as error:
        raise SettingsError(
            f"the model cannot read examples of the shape {x.shape[1:]}",
            where=where,
            remedy="give it a model for such examples, or other examples",
        ) from error
    return said.shape[1] if said.ndim > 1 else None


def shape_of(parts: Iterable[Examples]) -> dict[str, list[int]]:
    """The shape of one example, if all have the same; kept with a run, for those who use its model."""
    found = {np.asarray(part.x).shape[1:] for part in parts if len(part)}
    return {"shape": list(found.pop())} if len(found) == 1 else {}


def check_shape(rows: NDArray[Any], use: Mapping[str, Any]) -> NDArray[Any]:
    """Refuse rows of another shape than those that a model has learned from.

    >>> check_shape(np.zeros((2, 3)), {"shape": [4]})
    Traceback (most recent call last):
    abaton.errors.SettingsError: the rows have the shape (3,), the model reads (4,) (predict): ...
    """
    wanted = tuple(use["shape"]) if "shape" in use else None
    if wanted is not None and rows.shape[1:] != wanted:
        raise SettingsError(
            f"the rows have the shape {rows.shape[1:]}, the model reads {wanted}",
            where="predict",
            remedy=f"give an array of the shape {('rows', *wanted)}".replace("'", ""),
        )
    return rows
