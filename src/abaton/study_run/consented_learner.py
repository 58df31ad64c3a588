"""A learner that is bound to consents: before each task it asks who is still in, and lets the others' rows go.

What it kept from task to task (error feedback, momentum, layers of its own) held traces of whoever has left, so it
begins anew then.

It is made of a :class:`~abaton.features.Scaled` table alone, which nothing but de-identified records can
become: a type checker refuses anything else, so no more than the study needs can reach its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import Pipeline
from abaton.disclosure.rounding import coarse_labels
from abaton.errors import Refused
from abaton.features import Scaled
from abaton.learners import Examples, Learner, Model
from abaton.metrics.counts import Counts
from abaton.study_run.consent_roster import Roll


@dataclass(frozen=True, slots=True)
class Rows:
    """A site's rows for training and for validation."""

    train: Scaled
    validation: Scaled


def some(table: Scaled, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Scaled:
    """Some rows of a table."""
    names = np.array(table.subjects, object)[rows]
    return replace(table, x=table.x[rows], y=table.y[rows], subjects=tuple(names.tolist()))


def examples(table: Scaled) -> Examples:
    """The rows as a learner takes them: numbers only, nobody's name."""
    return Examples(table.x, table.y)


class ConsentedLearner(Learner):
    """A site's learner and evaluator.

    Args:
        name: The site's id.
        model: What is trained.
        rows: The site's rows.
        codec: How updates travel.
        seed: The run's.
        roll: Who may be used.
        floor: The smallest number of subjects that are trained on.
        batch: The largest batch that the site allows, if it limits it.
        secret: What feeds the noise for privacy, and decides in which order rows are trained on.

    Attributes:
        tells: Turns a number of people into what may be told of it.
    """

    own_order = True

    def __init__(
        self,
        name: str,
        model: Model,
        rows: Rows,
        codec: Pipeline,
        seed: int,
        *,
        roll: Roll,
        floor: int,
        batch: int | None,
        secret: bytes,
    ) -> None:
        train, held = examples(rows.train), examples(rows.validation)
        super().__init__(name, model, train, codec, seed, held, secret=secret, batch=batch)
        self._rows, self._roll, self._floor = rows, roll, floor
        self.tells: Callable[[int], int] = int

    @property
    def validation_people(self) -> frozenset[str]:
        """Whose rows others' models are scored on, by the Patient's id."""
        people = self._roll.people
        return frozenset(people[subject] for subject in self._rows.validation.subjects)

    @property
    def declared(self) -> int:
        """How many people are trained on, as it was told before unless many have changed."""
        return self.tells(len(self.examples))

    @property
    def labels(self) -> Counts:
        """How many validation rows of each class there are, without the classes that are too small to be told."""
        return coarse_labels(super().labels, self._floor)

    def begin(self, at: float, version: int | None = None) -> None:
        """Ask who is still in; the rows of the others leave the learner's memory.

        Raises:
            Refused: Fewer are left than the smallest number that is trained on, or the machine may not work now.
        """
        self._roll.file.document.limits.check_hours(self._roll.moment(at))
        rows = self._rows
        if version is None:
            inside = self._roll.inside(rows.validation.subjects, at)
            self._keep(replace(rows, validation=_of(rows.validation, inside)))
            return
        everybody = (*rows.train.subjects, *rows.validation.subjects)
        inside, self.cohort = self._roll.taken(everybody, at, version)
        self._keep(Rows(_of(rows.train, inside), _of(rows.validation, inside)))
        if len(self.examples) < self._floor:
            raise Refused(
                f"fewer than {self._floor} subjects are left to train on",
                where=f"site '{self.name}'",
                remedy="the site cannot take part any more",
            )

    def _keep(self, rows: Rows) -> None:
        """Have these rows and no others; what was learned from those who have left does not go on with the rest."""
        if len(rows.train.subjects) < len(self._rows.train.subjects):
            cohort = self.cohort
            self.forget()
            self.cohort = cohort
        self._rows = rows
        self.examples, self.validation = examples(rows.train), examples(rows.validation)


def _of(table: Scaled, inside: frozenset[str]) -> Scaled:
    if all(subject in inside for subject in table.subjects):
        return table
    return some(table, np.array([subject in inside for subject in table.subjects], dtype=bool))
