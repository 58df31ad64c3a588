"""Personal layers: named tensors that are trained at each site and never leave it.

The rest of Abaton sees only the shared part: its layout, payloads and community model have no place for anything else,
so a personal value cannot be sent by mistake. A site's own values stay with what the learner keeps from task to task.
An evaluator scores another learner's shared part together with its own site's personal layers: that is how the site
would use it. Where no site is known, as for a score of the community model on pooled data, the initial values stand in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from abaton.errors import SettingsError
from abaton.kernels import Layout, Vector
from abaton.metrics.predictions import Score
from abaton.models.base import Examples, Lesson, Model, Trained, Way
from abaton.training import TrainSettings

_OWN = "personal/"


class Personal(Model):
    """A model of which some tensors stay at each site.

    Args:
        model: the whole model.
        tensors: names of the personal tensors, as patterns: `head.*`, `*.bias`.
        seed: decides the values that each site's personal tensors begin with.

    >>> from abaton.learners import mlp
    >>> model = Personal(mlp(features=3, hidden=(4,)), ["2.*"])
    >>> [tensor.name for tensor in model.layout], [tensor.name for tensor in model.personal]
    (['0.weight', '0.bias'], ['2.weight', '2.bias'])
    """

    def __init__(self, model: Model, tensors: Sequence[str], seed: int = 0) -> None:
        self.model, self.patterns = model, tuple(tensors)
        whole = model.layout
        self.personal = tuple(t for t in whole if any(fnmatchcase(t.name, p) for p in self.patterns))
        self._check(whole)
        self.layout = Layout(t for t in whole if t not in self.personal)
        shared = np.ones(whole.size, dtype=bool)
        for tensor in self.personal:
            shared[whole.slice(tensor.name)] = False
        self._shared = np.flatnonzero(shared)
        self._fresh = model.initial(seed)

    @property
    def remembers(self) -> bool:
        """A site keeps its personal layers."""
        return True

    def initial(self, seed: int) -> Vector:
        """The shared part before any training."""
        return self._part(self.model.initial(seed))

    def way(self, data: Examples) -> Way:
        """As the whole model."""
        return self.model.way(data)

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """As the whole model."""
        return self.model.steps(examples, settings)

    def epochs(self, vector: Vector, data: Examples, lesson: Lesson) -> Iterator[Trained]:
        """Train epoch by epoch; what comes out is the shared part, and the site's own layers to be kept."""
        whole, inner = self._join(vector, lesson.local), replace(lesson, local=_others(lesson.local))
        for trained in self.model.epochs(whole, data, inner):
            own = {
                _OWN + t.name: self.model.layout.view(trained.vector, t.name).copy() for t in self.personal
            }
            yield Trained(self._part(trained.vector), trained.steps, trained.loss, {**trained.local, **own})

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        """Predict with the shared part and the site's own layers."""
        return self.model.score(self._join(vector, local), data, _others(local))

    def _join(self, shared: Vector, local: Mapping[str, Vector] | None) -> Vector:
        whole = self._fresh.copy()
        whole[self._shared] = self.layout.check(shared, whose="the shared part of the model")
        for tensor in self.personal:
            if local and _OWN + tensor.name in local:
                self.model.layout.view(whole, tensor.name)[...] = local[_OWN + tensor.name]
        return whole

    def _part(self, whole: Vector) -> Vector:
        shared: Vector = whole[self._shared]
        return shared

    def _check(self, whole: Layout) -> None:
        names = ", ".join(t.name for t in list(whole)[:8])
        for pattern in self.patterns:
            if not any(fnmatchcase(t.name, pattern) for t in whole):
                raise SettingsError(
                    f"no tensor of the model fits '{pattern}'",
                    where="personal layers",
                    remedy=f"it has {names}",
                )
        if not self.personal or len(self.personal) == len(whole):
            which = "every tensor" if self.personal else "no tensor"
            raise SettingsError(
                f"{which} of the model is personal",
                where="personal layers",
                remedy="name some of its tensors, and leave some to share",
            )


def _others(local: Mapping[str, Vector] | None) -> dict[str, Vector]:
    return {name: values for name, values in (local or {}).items() if not name.startswith(_OWN)}
