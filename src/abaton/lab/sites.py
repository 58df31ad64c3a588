"""Each learner's examples as views of one array: the data is brought into the learners' order once, and never again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.lab.partition import Partition
from abaton.learners import Examples
from abaton.learning.validation import check_share, stratified


@dataclass(frozen=True, slots=True)
class Split:
    """What a learner trains on, and what it judges models on; the latter may be empty."""

    train: Examples
    validation: Examples


def sites(
    data: Examples,
    labels: NDArray[np.int64],
    partition: Partition,
    *,
    validation: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Mapping[str, Split]:
    """Each learner's examples for training and validation, as views of one shared array.

    Args:
        data: the training examples of a data set.
        labels: the class of each of them (`DataSet.labels`).
        partition: who holds which rows.
        validation: which share each learner sets aside, class by class; 0 for none, 0.05 in the paper.
        rng: decides what is set aside; needed if anything is.
    """
    if validation:
        check_share(validation)
    top = max((int(rows.max(initial=-1)) for rows in partition.rows), default=-1)
    if top >= len(data):
        raise SettingsError(
            f"the partition speaks of row {top}, but the data has {len(data)}",
            where="partition",
            remedy="use the data set it was made for",
        )
    parts: list[NDArray[np.int64]] = []
    for name, rows in zip(partition.learners, partition.rows, strict=True):
        if not validation:
            parts += [rows, rows[:0]]
        elif rng is None:
            raise SettingsError("a split needs a generator", where="validation", remedy="give rng")
        else:
            parts += stratified(labels, rows, rng=rng, share=validation, learner=name)
    order = np.concatenate(parts)
    x, y = np.asarray(data.x)[order], np.asarray(data.y)[order]
    ends = np.cumsum([0, *map(len, parts)])
    pieces = [Examples(x[i:j], y[i:j]) for i, j in pairwise(ends)]
    return {
        name: Split(train, held)
        for name, train, held in zip(partition.learners, pieces[::2], pieces[1::2], strict=True)
    }
