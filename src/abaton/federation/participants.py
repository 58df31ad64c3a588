"""Participants of a federation: their examples and simulated machines, and checks that a model can read them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import CodecPipeline
from abaton.engines import MachineProfile
from abaton.errors import SettingsError
from abaton.federation.run_manifest import describe_model
from abaton.learners import Learner
from abaton.models import Examples, Model
from abaton.models.sampling import stratified_split


@dataclass(frozen=True, slots=True)
class LearnerContext:
    """Arguments of a site's learner besides its examples.

    Attributes:
        name: Name of the site.
        run: Name of the run.
        model: Model that all learners train.
        codec: Codec of updates.
        seed: Seed of the run.
        secret: Secret of the site for this run.
    """

    name: str
    run: str
    model: Model
    codec: CodecPipeline
    seed: int
    secret: bytes


class Participant(Protocol):
    """Site of a federation."""

    @property
    def profile(self) -> MachineProfile:
        """Machine profile of a participant for the virtual clock."""

    @property
    def has_withdrawals(self) -> bool:
        """Whether subjects of a participant have withdrawn since the run started, so that it has fewer rows."""

    def data_digest(self, secret: bytes) -> str:
        """Return a digest of a participant's data, keyed so that others cannot test guessed values."""

    def learner(self, context: LearnerContext) -> Learner:
        """Return the participant's learner and evaluator in a run."""


@dataclass(frozen=True, slots=True)
class LocalSite:
    """Site whose examples are in this process.

    Attributes:
        train: Training examples.
        validation: Validation examples of its evaluator, if any.
        profile: Machine profile for the virtual clock.
        model: Model that it trains instead of the federation's; for simulated Byzantine learners.
    """

    train: Examples
    validation: Examples | None = None
    profile: MachineProfile = field(default_factory=MachineProfile)
    model: Model | None = None

    @property
    def has_withdrawals(self) -> bool:
        """Return False: a participant's rows in memory do not change."""
        return False

    def data_digest(self, secret: bytes) -> str:
        """Return a keyed digest of all rows of a participant in memory, in order, and of its own model."""
        digest = hashlib.blake2b(key=hashlib.blake2b(secret).digest(), digest_size=16)
        for examples in (self.train, self.validation):
            for values in () if examples is None else (examples.x, examples.y, examples.weights):
                if values is None:
                    continue
                values = np.ascontiguousarray(values)
                digest.update(f"{values.dtype.str} {values.shape}\x1f".encode())
                digest.update(values.data)
        if self.model is not None:
            digest.update(describe_model(self.model).encode())
        return digest.hexdigest()

    def learner(self, context: LearnerContext) -> Learner:
        """Return the learner of a participant with examples in memory."""
        model = self.model or context.model
        return Learner(
            context.name,
            model,
            self.train,
            context.codec,
            context.seed,
            self.validation,
            secret=context.secret,
        )

    def with_validation(self, fraction: float, name: str, seed: int) -> LocalSite:
        """Return the participant with a stratified validation set, which depends only on the seed and the name."""
        rng = np.random.default_rng([seed, *name.encode()])
        y = self.train.y
        labels = y if y.dtype.kind in "iu" and y.ndim == 1 else np.zeros(len(y), np.int64)
        splits = stratified_split(labels, np.arange(len(y)), rng=rng, fraction=fraction, learner=name)
        train, validation = (self.train.select(rows) for rows in splits)
        return LocalSite(train, validation, self.profile, self.model)


def to_participant(site: Examples | Participant) -> Participant:
    """Return a site's examples as a participant of a federation."""
    return LocalSite(site) if isinstance(site, Examples) else site


def machine_profiles(sites: Mapping[str, Participant]) -> dict[str, MachineProfile]:
    """Return the machine profile of each participant."""
    return {name: site.profile for name, site in sites.items()}


Shape = tuple[int, ...]


def check_readable(model: Model, examples: Iterable[tuple[str, Examples]]) -> None:
    """Check that a model can read all participants' examples and that labels are among its classes.

    One example of each shape is scored.

    Args:
        model: Model to train.
        examples: Pairs of owner and examples.

    Raises:
        SettingsError: The model cannot read the examples of an owner.
    """
    classes: dict[tuple[Shape, Shape], int | None] = {}
    for where, subset in examples:
        x, y = np.asarray(subset.x), np.asarray(subset.y)
        if not len(subset) or y.dtype.kind not in "iu":
            continue
        shapes = x.shape[1:], y.shape[1:]
        if shapes not in classes:
            classes[shapes] = _class_count(model, x[:1], y[:1], where)
        count = classes[shapes]
        if count is not None and (y.min() < 0 or y.max() >= count):
            raise SettingsError(
                "a label is not one of the model's classes",
                where=where,
                remedy=f"number the classes from 0 to {count - 1}",
            )


def _class_count(model: Model, x: NDArray[Any], y: NDArray[Any], where: str) -> int | None:
    """Return the number of classes that a model predicts for a participant's example; None for regression."""
    try:
        predictions = model.score(model.initial(0), Examples(x, np.zeros_like(y))).predictions
    except (RuntimeError, ValueError, IndexError) as error:
        raise SettingsError(
            f"the model cannot read examples of the shape {x.shape[1:]}",
            where=where,
            remedy="use a model for examples of this shape, or other examples",
        ) from error
    return predictions.shape[1] if predictions.ndim > 1 else None


def example_shape(examples: Iterable[Examples]) -> dict[str, list[int]]:
    """Return the shape of the participants' examples, if all have the same; stored with a run for deployment."""
    shapes = {np.asarray(subset.x).shape[1:] for subset in examples if len(subset)}
    return {"shape": list(shapes.pop())} if len(shapes) == 1 else {}


def check_shape(rows: NDArray[Any], deployment: Mapping[str, Any]) -> NDArray[Any]:
    """Return the rows, or raise a `SettingsError` if their shape differs from the participants' examples.

    >>> check_shape(np.zeros((2, 3)), {"shape": [4]})
    Traceback (most recent call last):
    abaton.errors.SettingsError: the rows have the shape (3,), the model reads (4,) (predict): ...
    """
    expected = tuple(deployment["shape"]) if "shape" in deployment else None
    if expected is not None and rows.shape[1:] != expected:
        raise SettingsError(
            f"the rows have the shape {rows.shape[1:]}, the model reads {expected}",
            where="predict",
            remedy=f"give an array of the shape {('rows', *expected)}".replace("'", ""),
        )
    return rows
