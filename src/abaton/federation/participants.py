"""What each site brings to a federation: its rows, and in a simulation the machine it works on.

Whether a model can read the examples that sites bring: their shape, and labels that are its classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import Pipeline
from abaton.engines import Profile
from abaton.errors import SettingsError
from abaton.federation.run_manifest import described
from abaton.learners import Examples, Learner, Model
from abaton.models.sampling import stratified


@dataclass(frozen=True, slots=True)
class Making:
    """What a site's learner is made with, besides the site's own rows.

    Attributes:
        name: The site.
        run: The run.
        model: What all learners train.
        codec: How updates travel.
        seed: The run's.
        secret: The site's own for this run.
    """

    name: str
    run: str
    model: Model
    codec: Pipeline
    seed: int
    secret: bytes


class Participant(Protocol):
    """A site as a federation sees it."""

    @property
    def profile(self) -> Profile:
        """How fast its machine is, under the virtual clock."""

    @property
    def lessened(self) -> bool:
        """Whether people have left since the run was begun: the site holds less than it did then."""

    def fingerprint(self, secret: bytes) -> str:
        """A digest of its data under a secret of the site: equal data, equal digest, and nobody else can try."""

    def learner(self, making: Making) -> Learner:
        """Its learner and evaluator in a run."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A site's rows in this process.

    Attributes:
        train: What its learner trains on.
        validation: What its evaluator scores models on, if it has set something aside.
        profile: How fast its machine is, under the virtual clock.
        model: What it trains instead of the others' model: for learners that do what they should not.
    """

    train: Examples
    validation: Examples | None = None
    profile: Profile = field(default_factory=Profile)
    model: Model | None = None

    @property
    def lessened(self) -> bool:
        """Nobody leaves rows in memory."""
        return False

    def fingerprint(self, secret: bytes) -> str:
        """A digest of all rows, in their order, and of a model of the site's own."""
        made = hashlib.blake2b(key=hashlib.blake2b(secret).digest(), digest_size=16)
        for part in (self.train, self.validation):
            for values in () if part is None else (part.x, part.y):
                values = np.ascontiguousarray(values)
                made.update(f"{values.dtype.str} {values.shape}\x1f".encode())
                made.update(values.data)
        if self.model is not None:
            made.update(described(self.model).encode())
        return made.hexdigest()

    def learner(self, making: Making) -> Learner:
        """A learner of these rows."""
        model = self.model or making.model
        return Learner(
            making.name, model, self.train, making.codec, making.seed, self.validation, secret=making.secret
        )

    def set_aside(self, share: float, name: str, seed: int) -> Holding:
        """The same rows, some of them kept for validation: class by class, the same ones for the same seed."""
        rng = np.random.default_rng([seed, *name.encode()])
        y = self.train.y
        labels = y if y.dtype.kind in "iu" and y.ndim == 1 else np.zeros(len(y), np.int64)
        parts = stratified(labels, np.arange(len(y)), rng=rng, share=share, learner=name)
        train, held = (Examples(self.train.x[rows], y[rows]) for rows in parts)
        return Holding(train, held, self.profile, self.model)


def holding(given: Examples | Participant) -> Participant:
    """What was given for a site, as a participant."""
    return Holding(given) if isinstance(given, Examples) else given


def profiles_of(sites: Mapping[str, Participant]) -> dict[str, Profile]:
    """How fast each site's machine is."""
    return {name: site.profile for name, site in sites.items()}


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
