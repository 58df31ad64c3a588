"""A worker's side: one task, done by a learner that is made anew from the run's model, plain values and what it keeps.

Nothing stays in a worker that another would miss: any worker of any machine can take any task. Model and codec come by
Ray's own way of moving objects, as its functions do, once to each worker. The text of an exception never leaves it,
since it may speak of a site's data: what went wrong is told by one of a few fixed words. The site's own say, and what
its learner keeps, are where the learner lives (`engine`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton import __version__
from abaton.codecs import Difference, Pipeline, lacking
from abaton.engines.base import EvaluateTask, Task, TrainTask, word_for
from abaton.engines.model_transfer import Held, authored, moved
from abaton.engines.reply_validation import packed
from abaton.engines.task_handler import done
from abaton.kernels import Vector
from abaton.learners import Examples, Learner, Model, Reply, Watch
from abaton.training import settings_from

Arrays = dict[str, NDArray[Any]]
Answer = tuple[bytes, bytes, Arrays]
"""What a worker answers: a header (JSON), the encoded update, and what the learner keeps from now on."""

Means = tuple[type[Learner], Model, Pipeline, Pipeline | None]
"""What learners are there, what they train, and how their updates and the community model travel."""

_known: OrderedDict[str, Means] = OrderedDict()
_held: dict[str, Held[Vector]] = {}  # by run: the versions of the newest one that this worker has seen
_MOST = 4  # models that a worker remembers, since some are slow to make


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A model as what it can be made of, in a run whose way down is compressed; large parts are references.

    Attributes:
        run: names the run, so that no worker takes a version of another one for it.
        version: the version of the community model that it is, or was made from.
        start: a reference to that version.
        steps: references to the differences that lead to it, by the version that each leads to.
        author, payload: whose update makes the model of the version, if it is a learner's, and the update.
    """

    run: str
    version: int
    start: Sequence[Any]
    steps: Mapping[int, Any]
    author: str
    payload: bytes


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


def values_of(learner: Learner) -> dict[str, Any]:
    """What a learner is besides its rows, its model and its codec, as plain values."""
    return {
        "name": learner.name,
        "seed": learner.seed,
        "secret": learner.secret.hex(),
        "batch": learner.batch,
        "own_order": learner.own_order,
    }


def answer(
    asked: bytes, means: Sequence[Any], rows: Arrays, model: Vector | Sent, kept: Arrays, board: Any = None
) -> Answer:
    """Do one task.

    Args:
        asked: the task as JSON: its key, the learner's plain values, for a training its version and settings.
        means: a reference to model and codec, which is followed once by each worker.
        rows: the learner's examples.
        model: what is trained from, or scored; as it is, or as what it is made of.
        kept: what the learner keeps from task to task.
        board: where the number of committed steps is read while training, if it is needed.
    """
    told, read = json.loads(asked), 0
    try:
        learner = _learner(told["learner"], means[0], rows)
        vector, read = received(learner, model)
        task = _task(told, vector)
        learner.restore({name: np.array(values) for name, values in kept.items()})
        watch = Watch(time.monotonic, lambda: _committed(told["committed"], board))
        made = done(learner, task, watch)
        left = dict(learner.kept) if isinstance(task, TrainTask) else {}
    except Exception as error:
        made, left = Reply({"key": told["key"], "reason": word_for(error)}), {}
    return packed(Reply({**made.about, "software": __version__, "down": read})), made.payload, left


def received(learner: Learner, model: Vector | Sent) -> tuple[Vector, int]:
    """A model, and how many bytes of it were read: of a version that this worker holds, only what has changed."""
    import ray

    if not isinstance(model, Sent):
        return model, model.nbytes
    if model.run not in _held:
        _held.clear()
        _held[model.run] = Held()
    held = _held[model.run]
    steps = lacking((Difference(v, b"") for v in model.steps), held, model.version)
    if steps is None:
        start = np.array(ray.get(model.start[0]))
        read = start.nbytes
    else:
        versions = [step.version for step in steps]
        found = ray.get([model.steps[v] for v in versions])
        read = sum(map(len, found))
        lacked = [Difference(v, data) for v, data in zip(versions, found, strict=True)]
        start = moved(learner, held[model.version - len(steps)], lacked)
    held.put(model.version, start)
    made = authored(learner, start, model.version, model.author, model.payload)
    return made, read + len(model.payload)


def _task(told: Mapping[str, Any], model: Vector) -> Task:
    key, name = told["key"], told["learner"]["name"]
    if "settings" not in told:
        return EvaluateTask(key, name, model)
    return TrainTask(key, name, told["version"], model, settings_from(told["settings"]))


def _learner(values: Mapping[str, Any], means: Any, rows: Arrays) -> Learner:
    kind, model, codec, downlink = _means(means)
    train, validation = _examples(rows, "train"), _examples(rows, "validation")
    assert train is not None
    secret = bytes.fromhex(values["secret"])
    made = kind(
        values["name"], model, train, codec, values["seed"], validation, secret=secret, batch=values["batch"]
    )
    made.downlink, made.own_order = downlink, values["own_order"]
    return made


def _means(ref: Any) -> Means:
    import ray

    name = ref.hex()
    if name not in _known:
        _known[name] = ray.get(ref)
        if len(_known) > _MOST:
            _known.popitem(last=False)
    _known.move_to_end(name)
    return _known[name]


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
