"""Personal layers: tensors that are trained at each site and never sent.

Other packages see the shared part only: its layout, payloads and community model do not contain personal tensors,
so a personal value cannot be sent by mistake. A site's personal values are part of the learner's local state.
An evaluator scores another learner's shared part together with its own site's personal layers, as the site
would use it. Without a site, for example on pooled data, the initial personal values are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from abaton.errors import SettingsError
from abaton.layout import Layout, Tensor, Vector
from abaton.metrics.predictions import ModelScore
from abaton.models.base import Examples, Model, ParallelMode, TrainingPlan, TrainingResult
from abaton.training import TrainSettings

_PREFIX = "personal/"


class PersonalLayersModel(Model):
    """Model with personal tensors, which stay at each site.

    Args:
        model: The full model.
        tensors: Patterns of the names of personal tensors: `head.*`, `*.bias`; or roles: `role:norm` and
            `role:statistic` together are FedBN (Li et al., 2021).
        seed: Seed of the initial personal values.

    >>> from abaton.models import mlp
    >>> model = PersonalLayersModel(mlp(features=3, hidden=(4,)), ["2.*"])
    >>> [tensor.name for tensor in model.layout], [tensor.name for tensor in model.personal]
    (['0.weight', '0.bias'], ['2.weight', '2.bias'])
    """

    def __init__(self, model: Model, tensors: Sequence[str], seed: int = 0) -> None:
        self.model, self.patterns = model, tuple(tensors)
        full_layout = model.layout
        self.personal = tuple(t for t in full_layout if any(_matches(t, p) for p in self.patterns))
        self._check_patterns(full_layout)
        self.layout = Layout(t for t in full_layout if t not in self.personal)
        is_shared = np.ones(full_layout.size, dtype=bool)
        for tensor in self.personal:
            is_shared[full_layout.slice(tensor.name)] = False
        self._shared = np.flatnonzero(is_shared)
        self._initial = model.initial(seed)

    @property
    def is_stateful(self) -> bool:
        """True, because a site stores its personal layers."""
        return True

    def initial(self, seed: int) -> Vector:
        """Return the initial shared parameters of a model with personal layers."""
        return self._shared_part(self.model.initial(seed))

    def parallel_mode(self, data: Examples) -> ParallelMode:
        """Return the parallel mode of the full model that contains the personal layers."""
        return self.model.parallel_mode(data)

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """Return the number of batches of the full model that contains the personal layers."""
        return self.model.steps(examples, settings)

    def epochs(self, vector: Vector, data: Examples, plan: TrainingPlan) -> Iterator[TrainingResult]:
        """Train epoch by epoch and yield the shared part, with the personal layers as local state."""
        full_model, inner_plan = (
            self._join(vector, plan.local),
            replace(plan, local=_without_personal(plan.local)),
        )
        for trained in self.model.epochs(full_model, data, inner_plan):
            personal = {
                _PREFIX + t.name: self.model.layout.view(trained.vector, t.name).copy() for t in self.personal
            }
            yield TrainingResult(
                self._shared_part(trained.vector), trained.steps, trained.loss, {**trained.local, **personal}
            )

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> ModelScore:
        """Score the shared part together with the site's personal layers."""
        return self.model.score(self._join(vector, local), data, _without_personal(local))

    def _join(self, shared: Vector, local: Mapping[str, Vector] | None) -> Vector:
        full_model = self._initial.copy()
        full_model[self._shared] = self.layout.check(shared, label="the shared part of the model")
        for tensor in self.personal:
            if local and _PREFIX + tensor.name in local:
                self.model.layout.view(full_model, tensor.name)[...] = local[_PREFIX + tensor.name]
        return full_model

    def _shared_part(self, full_model: Vector) -> Vector:
        shared: Vector = full_model[self._shared]
        return shared

    def _check_patterns(self, full_layout: Layout) -> None:
        names = ", ".join(t.name for t in list(full_layout)[:8])
        for pattern in self.patterns:
            if not any(_matches(t, pattern) for t in full_layout):
                raise SettingsError(
                    f"no tensor of the model matches '{pattern}'",
                    where="personal layers",
                    remedy=f"use names of its tensors: {names}",
                )
        if not self.personal or len(self.personal) == len(full_layout):
            extent = "every tensor" if self.personal else "no tensor"
            raise SettingsError(
                f"{extent} of the model is personal",
                where="personal layers",
                remedy="name some of its tensors, not all",
            )


def _matches(tensor: Tensor, pattern: str) -> bool:
    """Return whether a tensor is personal by a pattern of its name, or by `role:` and its role."""
    return pattern == f"role:{tensor.role}" or fnmatchcase(tensor.name, pattern)


def _without_personal(local: Mapping[str, Vector] | None) -> dict[str, Vector]:
    return {name: values for name, values in (local or {}).items() if not name.startswith(_PREFIX)}
