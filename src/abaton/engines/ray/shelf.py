"""What lies in Ray's object store: model and codec, rows and versions once each, however many tasks use them."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from abaton.engines.contract import Way
from abaton.engines.ray.ray_worker import Arrays, Sent, pack
from abaton.errors import SettingsError
from abaton.learners import Learner
from abaton.kernels import Vector

_MODELS = 32


class Shelf:
    """References to what was put into the object store; what is let go of here is removed there.

    Args:
        put: lays something into the store and returns a reference to it.
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._means: dict[tuple[type[Learner], int, int], tuple[Learner, Any]] = {}
        self._rows: dict[str, tuple[Arrays, Any]] = {}
        self._models: OrderedDict[int, tuple[Vector, Any]] = OrderedDict()
        self._steps: dict[int, Any] = {}
        self._run = secrets.token_hex(8)

    def means(self, learner: Learner) -> Any:
        """What a learner trains and how its updates travel; learners that are alike share it.

        Raises:
            SettingsError: Ray cannot move them.
        """
        name = type(learner), id(learner.model), id(learner.codec)  # the learner is held beside them
        if name not in self._means:
            try:
                made = learner.elsewhere(), learner.model, learner.codec, learner.downlink
                self._means[name] = learner, self._put(made)
            except (TypeError, AttributeError, ValueError) as error:
                raise SettingsError(
                    f"the model {type(learner.model).__name__} or its codec cannot be sent to a cluster",
                    where="engine ray",
                    remedy="let them hold no open files, locks or threads, or use the engine 'local'",
                ) from error
        return self._means[name][1]

    def rows(self, learner: Learner) -> Any:
        """A learner's rows as they are now: after somebody has left, those with that person are removed."""
        packed = pack(learner)
        held = self._rows.get(learner.name)
        if held is None or not _same(held[0], packed):
            held = self._rows[learner.name] = packed, self._put(packed)
        return held[1]

    def model(self, vector: Vector) -> Any:
        """A model; the vectors of tasks are never changed, so the same vector is the same model."""
        name = id(vector)  # the vector is held beside it, so no other can have its name
        if name not in self._models:
            self._models[name] = vector, self._put(vector)
            if len(self._models) > _MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(name)
        return self._models[name][1]

    def sent(self, way: Way) -> Sent:
        """A model as the parts it can be made of, each in the store once: a worker reads only those that it lacks."""
        wanted = [step for step in way.lately if step.version <= way.version]
        for step in wanted:
            if step.version not in self._steps:
                self._steps[step.version] = self._put(step.data)
        steps = {step.version: self._steps[step.version] for step in wanted}
        for version in [v for v in self._steps if v < min(steps, default=v)]:
            del self._steps[version]
        return Sent(self._run, way.version, [self.model(way.start)], steps, way.author, way.payload)

    def clear(self) -> None:
        """Let go of everything."""
        self._means.clear()
        self._rows.clear()
        self._models.clear()
        self._steps.clear()


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)
