"""Partition of a labelled data set over learners: the data environments of the Metis paper.

A partition has row indices, not data. Invariants: (1) every row is used at most once; (2) learners are in
descending order of size, except for natural partitions; (3) sizes and numbers of classes are exactly those
requested, or a `SettingsError` is raised; (4) a learner's rows are in order of class, as in the original
experiments: the shuffle of training decides how they are mixed, with a large effect (see docs/lab.md).

The data is brought into the learners' order once; each learner's examples are views of one array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.lab.allocation import allocate_classes
from abaton.lab.skew import Counts, parse_classes, partition_sizes
from abaton.models import Examples
from abaton.models.sampling import check_fraction, stratified_split

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Row indices of each learner.

    Attributes:
        learners: the learners' names.
        rows: for each learner, its row indices.
        classes: the names of the classes, in the order of the columns of `counts`.
        counts: rows of each class, per learner.
        form: description of the partition.
    """

    learners: tuple[str, ...]
    rows: tuple[Rows, ...]
    classes: tuple[str, ...]
    counts: Counts
    form: str

    def __post_init__(self) -> None:
        used = np.concatenate([np.empty(0, np.int64), *self.rows])
        fits = (
            len(set(self.learners)) == len(self.learners) == len(self.rows)
            and self.counts.shape == (len(self.learners), len(self.classes))
            and self.counts.min(initial=0) >= 0
            and self.counts.sum(1).tolist() == [len(rows) for rows in self.rows]
            and len(np.unique(used)) == len(used)
            and used.min(initial=0) >= 0
        )
        if not fits:
            raise SettingsError(
                "a partition has a row twice, or counts that differ from its rows",
                where="partition",
                remedy="create it again with 'abaton lab partition'",
            )

    def __len__(self) -> int:
        return len(self.learners)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def sizes(self) -> Counts:
        """Return the number of rows of each learner in the partition."""
        sizes: Counts = self.counts.sum(1)
        return sizes

    def by_size(self) -> tuple[str, ...]:
        """Return the names of the partition's learners, the largest first; ties keep their order."""
        return tuple(self.learners[k] for k in np.argsort(-self.sizes, kind="stable"))

    @property
    def digest(self) -> str:
        """Return a digest of the partition: learners, rows and classes."""
        digest = hashlib.sha256("\x1f".join((*self.learners, "", *self.classes)).encode())
        for rows, counts in zip(self.rows, self.counts, strict=True):
            digest.update(np.int64(len(rows)).tobytes() + rows.astype("<i8").tobytes())
            digest.update(counts.astype("<i8").tobytes())
        return digest.hexdigest()

    def table(self) -> list[dict[str, Any]]:
        """Return the partition as one row per learner: name, examples, and examples of each class."""
        return [
            {
                "learner": name,
                "examples": int(counts.sum()),
                "classes": int((counts > 0).sum()),
                "counts": {self.classes[j]: int(counts[j]) for j in np.flatnonzero(counts)},
            }
            for name, counts in zip(self.learners, self.counts, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the partition as JSON values; `Partition.from_json` restores it."""
        return {
            "form": self.form,
            "classes": list(self.classes),
            "learners": [
                {"name": name, "counts": counts.tolist(), "rows": rows.tolist()}
                for name, counts, rows in zip(self.learners, self.counts, self.rows, strict=True)
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Partition:
        """Return the partition that `to_json` wrote."""
        try:
            learners, classes = data["learners"], tuple(str(name) for name in data["classes"])
            counts = np.array([row["counts"] for row in learners], dtype=np.int64)
            return cls(
                tuple(str(row["name"]) for row in learners),
                tuple(_integers(row["rows"]) for row in learners),
                classes,
                counts.reshape(len(learners), len(classes)),
                str(data["form"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SettingsError(
                "this is not a partition",
                where="partition",
                remedy="create it again with 'abaton lab partition --json'",
            ) from error


def partition_data(
    labels: NDArray[Any],
    *,
    learners: int,
    rng: np.random.Generator,
    sizes_as: str = "uniform",
    classes_as: str = "IID",
    rows: int | None = None,
) -> Partition:
    """Partition the rows of a labelled data set over learners.

    Args:
        labels: the class of each row.
        learners: number of learners.
        rng: random generator; the same generator gives the same partition.
        sizes_as: uniform, skewed, power-law or power-law-true (see `abaton.lab.skew`).
        classes_as: IID, Non-IID(x), Non-IID(8x1,4x1,3x8) or Dirichlet(alpha) (see `abaton.lab.skew`).
        rows: maximum number of rows; all if not given.

    >>> made = partition_data(np.arange(1000) % 10, learners=10, rng=np.random.default_rng(1990),
    ...                  sizes_as="power-law", classes_as="Non-IID(3x8)")
    >>> made.sizes.tolist(), (made.counts > 0).sum(1).tolist()
    ([339, 226, 151, 100, 67, 45, 30, 20, 13, 9], [8, 4, 3, 3, 3, 3, 3, 3, 3, 3])
    """
    names, codes, supply = _encode_classes(labels)
    if rows is not None and not 0 < rows <= len(codes):
        raise SettingsError(
            f"rows is {rows}, but the data has {len(codes)}",
            where="partition",
            remedy=f"use a number from 1 to {len(codes)}",
        )
    amounts = partition_sizes(sizes_as, learners, len(codes) if rows is None else rows)
    power_law = sizes_as.strip().lower().startswith("power-law")
    form = parse_classes(classes_as, learners=learners, classes=len(names), power_law=power_law)
    counts = allocate_classes(amounts, form, supply, rng)
    width = len(str(learners))
    return Partition(
        tuple(f"learner-{k + 1:0{width}}" for k in range(learners)),
        _rows_by_counts(counts, codes, rng),
        names,
        counts,
        f"{sizes_as} sizes, {form}",
    )


def by_group(
    labels: NDArray[Any],
    groups: NDArray[Any],
    *,
    minimum: int = 1,
    learners: int | None = None,
    rng: np.random.Generator | None = None,
) -> Partition:
    """Return the natural partition: each writer, hospital or role is a learner.

    Args:
        labels: the class of each row.
        groups: the writer, hospital or role of each row.
        minimum: groups with fewer rows are dropped.
        learners: number of groups, sampled with `rng`; all if not given.
        rng: required if `learners` is given.

    >>> by_group(np.array([0, 1, 1]), np.array(["kos", "athens", "kos"])).learners
    ('athens', 'kos')
    """
    names, codes, _ = _encode_classes(labels)
    if len(groups) != len(codes):
        raise SettingsError(
            f"there are {len(codes)} labels but {len(groups)} groups",
            where="partition",
            remedy="give each row exactly one group",
        )
    group_names, group_codes, count = np.unique(groups, return_inverse=True, return_counts=True)
    selected = np.flatnonzero(count >= minimum)
    if len(selected) < max(2, learners or 0):
        raise SettingsError(
            f"only {len(selected)} of {len(group_names)} groups have {minimum} or more examples",
            where="partition",
            remedy=f"ask for fewer learners than {learners}" if learners else "lower the minimum",
        )
    if learners is not None:
        if learners < 2 or rng is None:
            raise SettingsError(
                f"learners is {learners}", where="partition", remedy="use 2 or more, and give a generator"
            )
        selected = np.sort(rng.choice(selected, learners, replace=False))
    order = np.argsort(group_codes, kind="stable")
    parts = np.split(order, np.cumsum(count)[:-1])
    rows = tuple(parts[g].astype(np.int64) for g in selected)
    counts = np.stack([np.bincount(codes[part], minlength=len(names)) for part in rows])
    return Partition(tuple(str(group_names[g]) for g in selected), rows, names, counts, "natural groups")


def _rows_by_counts(counts: Counts, codes: Rows, rng: np.random.Generator) -> tuple[Rows, ...]:
    """Partition the rows of each class in random order by the counts; a learner's rows are in order of class."""
    parts: list[list[Rows]] = [[] for _ in counts]
    for j in range(counts.shape[1]):
        shuffled = rng.permutation(np.flatnonzero(codes == j))
        ends = np.cumsum(counts[:, j])
        for k in np.flatnonzero(counts[:, j]):
            parts[k].append(np.sort(shuffled[ends[k] - counts[k, j] : ends[k]]))
    return tuple(np.concatenate(part).astype(np.int64) for part in parts)


def _encode_classes(labels: NDArray[Any]) -> tuple[tuple[str, ...], Rows, Counts]:
    if labels.ndim != 1 or not len(labels) or labels.dtype.kind == "f":
        raise SettingsError(
            f"labels have shape {labels.shape} and type {labels.dtype}",
            where="partition",
            remedy="give one integer or name for each row",
        )
    classes, codes, supply = np.unique(labels, return_inverse=True, return_counts=True)
    return tuple(str(name) for name in classes), codes.astype(np.int64), supply.astype(np.int64)


def _integers(values: Sequence[int]) -> Rows:
    if not all(type(value) is int for value in values):
        raise ValueError("rows are not integers")
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LearnerSplit:
    """Training and validation examples of a learner; the latter may be empty."""

    train: Examples
    validation: Examples


def split_learners(
    data: Examples,
    labels: NDArray[np.int64],
    partition: Partition,
    *,
    validation: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Mapping[str, LearnerSplit]:
    """Return each learner's part of the partition as training and validation examples, views of one array.

    Args:
        data: the training examples of a data set.
        labels: the class of each of them (`DataSet.labels`).
        partition: row indices of each learner.
        validation: validation fraction, stratified by class; 0 for none, 0.05 in the paper.
        rng: random generator of the validation set; required if there is one.
    """
    if validation:
        check_fraction(validation)
    top = max((int(rows.max(initial=-1)) for rows in partition.rows), default=-1)
    if top >= len(data):
        raise SettingsError(
            f"the partition has row {top}, but the data has {len(data)} rows",
            where="partition",
            remedy="use the data set of the partition",
        )
    parts: list[NDArray[np.int64]] = []
    for name, rows in zip(partition.learners, partition.rows, strict=True):
        if not validation:
            parts += [rows, rows[:0]]
        elif rng is None:
            raise SettingsError("a split needs a generator", where="validation", remedy="give rng")
        else:
            parts += stratified_split(labels, rows, rng=rng, fraction=validation, learner=name)
    order = np.concatenate(parts)
    x, y = np.asarray(data.x)[order], np.asarray(data.y)[order]
    ends = np.cumsum([0, *map(len, parts)])
    pieces = [Examples(x[i:j], y[i:j]) for i, j in pairwise(ends)]
    return {
        name: LearnerSplit(train, validation_rows)
        for name, train, validation_rows in zip(partition.learners, pieces[::2], pieces[1::2], strict=True)
    }
