"""What goes down for a task: a whole model, or what makes it of a version that is held at the other end.

In a run whose way down is compressed everybody holds the same bits of a version, so a version can be named by its
number. Both ends keep the same few versions by the same rule (`Held`), so the controller's side knows, without being
told, which differences a process lacks. A model of another learner goes as its author's update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from abaton.codecs import Difference, Key, follow, lacking
from abaton.controller.aggregation import local_model
from abaton.engines.base import Task, Way
from abaton.errors import PayloadError
from abaton.kernels import Vector
from abaton.learners import Learner
from abaton.training import round_key

_EVALUATOR, _TRAINER = 4, 1  # versions that are held; training never goes back to an older one
_FAR = 64  # versions behind the newest that nobody is asked for any more
T = TypeVar("T")


class Held(Generic[T]):
    """A few versions that somebody holds, each with what is known of it.

    An evaluator is asked for models of older versions, too. So an old one stays, from which differences lead to those
    between: what is let go of is the version that lies closest between two others.

    >>> held = Held[str]()
    >>> for version in (10, 40, 70, 74, 60): held.put(version, f"number {version}")
    >>> sorted(held), held[60], 70 in held
    ([10, 40, 60, 74], 'number 60', False)
    >>> held.put(80, "number 80")
    >>> sorted(held)
    [40, 60, 74, 80]
    """

    def __init__(self, *, evaluates: bool = True) -> None:
        self._most, self._known = _EVALUATOR if evaluates else _TRAINER, dict[int, T]()

    def put(self, version: int, what: T) -> None:
        """Hold a version, and let go of another if there are too many."""
        self._known[version] = what
        if len(self._known) <= self._most:
            return
        held = sorted(self._known)
        between = {held[i]: held[i + 1] - held[i - 1] for i in range(1, len(held) - 1)}
        is_far = held[-1] - held[0] > _FAR
        del self._known[held[0] if is_far or not between else min(between, key=between.__getitem__)]

    def __getitem__(self, version: int) -> T:
        return self._known[version]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __contains__(self, version: object) -> bool:
        return version in self._known


@dataclass(frozen=True, slots=True, eq=False)
class Freight:
    """What goes down for one task.

    Attributes:
        whole: a model that is sent as it is: the task's own, or the version that the rest builds upon.
        base: the version that is held already, and that the rest builds upon.
        steps: the differences from then on.
        way: what the task's model is made of; nothing in a run whose way down is not compressed.
    """

    whole: Vector | None
    base: int | None = None
    steps: tuple[Difference, ...] = ()
    way: Way | None = None

    @property
    def size(self) -> int:
        """How many bytes it has."""
        whole = 0 if self.whole is None else self.whole.nbytes
        return whole + sum(len(step.data) for step in self.steps) + len(self.way.payload if self.way else b"")

    def packed(self) -> tuple[dict[str, Any], bytes]:
        """As plain values and bytes."""
        whole = b"" if self.whole is None else np.ascontiguousarray(self.whole, dtype="<f4").tobytes()
        about: dict[str, Any] = {"whole": len(whole)}
        if self.way is None:
            return about, whole
        about |= {
            "version": self.way.version,
            "base": self.base,
            "steps": [[step.version, len(step.data)] for step in self.steps],
            "author": self.way.author,
        }
        return about, b"".join([whole, *(step.data for step in self.steps), self.way.payload])


def load(task: Task, held: Held[None]) -> Freight:
    """What to send to somebody who holds some versions; from then on the task's version is held, too."""
    way = task.way
    if way is None:
        return Freight(task.model)
    steps = lacking(way.lately, held, way.version)
    held.put(way.version, None)
    if steps is None:
        return Freight(way.start, way=way)
    return Freight(None, way.version - len(steps), steps, way)


def unload(learner: Learner, held: Held[Vector], about: Mapping[str, Any], data: bytes) -> Vector:
    """The model that was sent; the version that it is made of is held from then on.

    Args:
        learner: who it was sent to; it knows the codecs and the run's seed.
        held: the versions that are held here.
        about: the plain values that `Freight.packed` made.
        data: the bytes.
    """
    taken = memoryview(data)
    whole, rest = taken[: about["whole"]], taken[about["whole"] :]
    if "version" not in about:
        return np.frombuffer(whole, dtype="<f4")
    steps = []
    for version, length in about["steps"]:
        steps.append(Difference(version, bytes(rest[:length])))
        rest = rest[length:]
    start = held[about["base"]] if about["base"] is not None else np.frombuffer(whole, dtype="<f4")
    start = moved(learner, start, steps)
    held.put(about["version"], start)
    return authored(learner, start, about["version"], about["author"], bytes(rest))


def moved(learner: Learner, start: Vector, steps: list[Difference] | tuple[Difference, ...]) -> Vector:
    """A version after some differences."""
    if not steps:
        return start
    if learner.downlink is None:
        raise PayloadError("a difference came, but this run has no codec for the way down", where="downlink")
    return follow(
        learner.downlink, learner.model.layout, start, steps, lambda version: round_key(learner.seed, version)
    )


def authored(learner: Learner, start: Vector, version: int, author: str, payload: bytes) -> Vector:
    """The model that a learner made of a version; the version itself if nobody made anything of it."""
    if not author:
        return start
    key = Key(round_key(learner.seed, version), author)
    return local_model(learner.codec, learner.model.layout, start, payload, key)
