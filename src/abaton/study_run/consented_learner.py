"""Learner that checks consents before each task and drops the rows of withdrawn subjects.

Its state between tasks (error feedback, momentum, personal layers) contains traces of withdrawn subjects, so it is
reset when rows are dropped.

It accepts only a :class:`~abaton.features.ScaledTable`, which can only be built from de-identified records: the type
checker refuses anything else, so the learner holds no more data than the study needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import CodecPipeline
from abaton.errors import RefusedError
from abaton.features import ScaledTable
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.metrics.counts import Counts
from abaton.models import Examples, Model
from abaton.study_run.consent_roster import ConsentRoster


@dataclass(frozen=True, slots=True)
class SubjectRows:
    """Training and validation rows of a site."""

    train: ScaledTable
    validation: ScaledTable


def select_rows(table: ScaledTable, rows: NDArray[np.bool_] | NDArray[np.int64]) -> ScaledTable:
    """Return the selected rows of a consented learner's table."""
    names = np.array(table.subjects, object)[rows]
    weights = None if table.weights is None else table.weights[rows]
    return replace(table, x=table.x[rows], y=table.y[rows], subjects=tuple(names.tolist()), weights=weights)


def to_examples(table: ScaledTable) -> Examples:
    """Return table rows as examples of a consented learner: values and weights, without subject keys."""
    return Examples(table.x, table.y, table.weights)


class ConsentedLearner(Learner):
    """Learner and evaluator of a site in a study.

    Args:
        name: The site's id.
        model: The model to train.
        rows: The site's rows.
        codec: Encodes updates.
        seed: The run's seed.
        roster: The subjects that may be used.
        min_cell_count: Smallest number of subjects to train on.
        max_batch_size: Largest batch size that the site allows, if limited.
        secret: Seeds the noise of differential privacy and the order of the rows.

    Attributes:
        released_count: Converts a number of training subjects to the number that is released.
        releases_labels: Whether numbers of validation rows by class are released, small ones suppressed.
    """

    has_secret_order = True

    def __init__(
        self,
        name: str,
        model: Model,
        rows: SubjectRows,
        codec: CodecPipeline,
        seed: int,
        *,
        roster: ConsentRoster,
        min_cell_count: int,
        max_batch_size: int | None,
        secret: bytes,
    ) -> None:
        train, validation = to_examples(rows.train), to_examples(rows.validation)
        super().__init__(
            name, model, train, codec, seed, validation, secret=secret, max_batch_size=max_batch_size
        )
        self._rows, self._roster, self._min_cell_count = rows, roster, min_cell_count
        self.released_count: Callable[[int], int] = int
        self.releases_labels = True

    @property
    def validation_patient_ids(self) -> list[str]:
        """Patient id of each of the consented learner's validation rows."""
        return [self._roster.patient_ids[subject] for subject in self._rows.validation.subjects]

    def training_patient_ids(self, *, use_validation_data: bool) -> list[str]:
        """Return the patient ids of the consented learner's training rows, with validation rows if they are used."""
        validation = self._rows.validation.subjects if use_validation_data else ()
        return [self._roster.patient_ids[subject] for subject in (*self._rows.train.subjects, *validation)]

    def predict_validation(self, model: Vector) -> NDArray[Any]:
        """Return a model's predictions for the consented learner's validation rows."""
        assert self.validation is not None
        return self.model.score(model, self.validation, self._local).predictions

    def validation_losses(self, model: Vector) -> NDArray[np.float64]:
        """Return a model's loss for each of the consented learner's validation rows."""
        assert self.validation is not None
        x, y = self.validation.x, self.validation.y
        rows = [Examples(x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
        return np.array([self.model.score(model, row, self._local).loss for row in rows], np.float64)

    @property
    def declared_examples(self) -> int:
        """Number of consented training subjects, as it is released."""
        return self.released_count(len(self.examples))

    @property
    def labels(self) -> Counts:
        """Consented validation rows of each class, 0 for classes below `min_cell_count`; empty with noise."""
        if not self.releases_labels:
            return ()
        return tuple(int(count) if count >= self._min_cell_count else 0 for count in super().labels)

    def on_task_start(self, timestamp: float, version: int | None = None) -> None:
        """Check the consents of the learner's subjects; drop the rows of withdrawn subjects from memory.

        Raises:
            RefusedError: Too few subjects remain, or the site's working hours forbid work now.
        """
        self._roster.file.config.limits.check_hours(self._roster.wall_clock(timestamp))
        rows = self._rows
        if version is None:
            eligible = self._roster.eligible_at(rows.validation.subjects, timestamp)
            self._retain_rows(replace(rows, validation=_select_subjects(rows.validation, eligible)))
            return
        subjects = (*rows.train.subjects, *rows.validation.subjects)
        eligible, self.cohort = self._roster.take_snapshot_for_round(subjects, timestamp, version)
        self._retain_rows(
            SubjectRows(_select_subjects(rows.train, eligible), _select_subjects(rows.validation, eligible))
        )
        if len(self.examples) < self._min_cell_count:
            raise RefusedError(
                f"fewer than {self._min_cell_count} subjects remain to train on",
                where=f"site '{self.name}'",
                remedy="end the site's participation in this run",
            )

    def _retain_rows(self, rows: SubjectRows) -> None:
        """Retain these rows of consented subjects only; reset the learner's state if training rows were dropped."""
        if len(rows.train.subjects) < len(self._rows.train.subjects):
            cohort = self.cohort
            self.reset_state()
            self.cohort = cohort
        self._rows = rows
        self.examples, self.validation = to_examples(rows.train), to_examples(rows.validation)


def _select_subjects(table: ScaledTable, eligible: frozenset[str]) -> ScaledTable:
    if all(subject in eligible for subject in table.subjects):
        return table
    return select_rows(table, np.array([subject in eligible for subject in table.subjects], dtype=bool))
