"""A worker's side: one task, done by a learner that is made anew from plain values, numbers and what it keeps.

Nothing stays in a worker that another would miss: any worker of any machine can take any task. The text of an
exception never leaves it, since it may speak of a site's data: what went wrong is told by one of a few fixed words. The
site's own say, and what its learner keeps, are where the learner lives (`engine`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton import __version__
from abaton.control import settings_from
from abaton.engines.answers import packed
from abaton.engines.contract import EvaluateTask, Task, TrainTask
from abaton.engines.reasons import word_for
from abaton.engines.worker import done
from abaton.learning import Examples, Learner, Reply, Watch
from abaton.vectors import Vector

Arrays = dict[str, NDArray[Any]]
Answer = tuple[bytes, bytes, Arrays]
"""What a worker answers: a header (JSON), the encoded update, and what the learner keeps from now on."""

Maker = Callable[[Mapping[str, Any], Examples, Examples | None], Learner]


@dataclass(frozen=True, slots=True)
class Remake:
    """How a worker makes the learners of a run: models are made by code, so they are not sent but made again there.

    Attributes:
        maker: the function that makes one, as `module:function`; called with a learner's values, its examples and
            its validation set. It should remember models that are slow to make.
        about: plain values for each learner, by name.
    """

    maker: str
    about: Mapping[str, Mapping[str, Any]]


def pack(learner: Learner) -> Arrays:
    """A learner's rows as they are laid into the object store: numbers only, nobody's name."""
    named = {"train": learner.examples, "validation": learner.validation}
    return {
        f"{part}/{axis}": values
        for part, rows in named.items()
        if rows is not None
        for axis, values in (("x", rows.x), ("y", rows.y))
    }


class Board:
    """How many steps have been committed, for learners that look at it while they train; an actor on the cluster."""

    def __init__(self) -> None:
        self._committed = 0

    def tell(self, committed: int) -> None:
        """Write a newer number."""
        self._committed = max(self._committed, committed)

    def read(self) -> int:
        """The newest number."""
        return self._committed


def answer(asked: bytes, rows: Arrays, model: Vector, kept: Arrays, board: Any = None) -> Answer:
    """Do one task.

    Args:
        asked: the task as JSON: its key, how the learner is made, for a training its version and settings.
        rows: the learner's examples.
        model: what is trained from, or scored.
        kept: what the learner keeps from task to task.
        board: where the number of committed steps is read while training, if it is needed.
    """
    told = json.loads(asked)
    try:
        learner, task = _learner(told, rows), _task(told, model)
        learner.restore({name: np.array(values) for name, values in kept.items()})
        watch = Watch(time.monotonic, lambda: _committed(told["committed"], board))
        made = done(learner, task, watch)
        left = dict(learner.kept) if isinstance(task, TrainTask) else {}
    except Exception as error:
        made, left = Reply({"key": told["key"], "reason": word_for(error)}), {}
    return packed(Reply({**made.about, "software": __version__})), made.payload, left


def _task(told: Mapping[str, Any], model: Vector) -> Task:
    key, name = told["key"], told["learner"]
    if "settings" not in told:
        return EvaluateTask(key, name, model)
    return TrainTask(key, name, told["version"], model, settings_from(told["settings"]))


def _learner(task: Mapping[str, Any], rows: Arrays) -> Learner:
    module, function = task["maker"].split(":")
    make: Maker = getattr(import_module(module), function)
    train = _examples(rows, "train")
    assert train is not None
    return make(task["about"], train, _examples(rows, "validation"))


def _examples(rows: Arrays, part: str) -> Examples | None:
    if f"{part}/x" not in rows:
        return None
    # A copy of one learner's rows: what lies in the object store cannot be written to, which PyTorch does not like.
    return Examples(np.array(rows[f"{part}/x"]), np.array(rows[f"{part}/y"]))


def _committed(known: int, board: Any) -> int:
    import ray

    if board is not None:
        with contextlib.suppress(ray.exceptions.RayError):
            return max(known, int(ray.get(board.read.remote(), timeout=5.0)))
    return known
