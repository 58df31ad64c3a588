"""What each site brings to a federation: its rows, and in a simulation the machine it works on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from abaton.codecs import Pipeline
from abaton.engines import Profile
from abaton.federation.fingerprint import described
from abaton.learners import Examples, Learner, Model
from abaton.learning.validation import stratified


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
