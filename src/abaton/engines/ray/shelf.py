"""What lies in Ray's object store: model and codec, rows and versions once each, however many tasks use them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from abaton.engines.ray.work import Arrays, pack
from abaton.errors import SettingsError
from abaton.learning import Learner
from abaton.vectors import Vector

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

    def means(self, learner: Learner) -> Any:
        """What a learner trains and how its updates travel; learners that are alike share it.

        Raises:
            SettingsError: Ray cannot move them.
        """
        name = type(learner), id(learner.model), id(learner.codec)  # the learner is held beside them
        if name not in self._means:
            try:
                self._means[name] = learner, self._put((learner.elsewhere(), learner.model, learner.codec))
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

    def clear(self) -> None:
        """Let go of everything."""
        self._means.clear()
        self._rows.clear()
        self._models.clear()


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)
