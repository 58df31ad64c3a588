"""Running weighted average of learners' updates.

`RoundMeanModel` adds the weighted mean of a round's or a buffer's updates to the previous version. `LatestMeanModel` is
the weighted mean of every learner's latest model, exchanged in one pass over the parameters at each commit (Metis'
cached community model). `FedAsyncModel` moves towards each committed model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import Accumulator, CodecKey, CodecPipeline
from abaton.controller.model_cache import ModelCache
from abaton.controller.robust_aggregation import (
    MAX_NORM_RATIO,
    FedAsyncContribution,
    RobustAggregator,
    UpdateNormBound,
)
from abaton.controller.server_optimiser import OptimiserState, ServerOptimiser, ServerSgd
from abaton.controller.strategies import Strategy
from abaton.errors import AbatonError
from abaton.layout import Layout, Vector
from abaton.training import TrainSettings

# Range of the sum of all bounds, in units of the scale: above, it could overflow 64 bits; below, the mean would lose
# digits that float32 has.
_MAX_SUM, _TARGET_SUM, _MIN_SUM = 2.0**62, 2.0**52, 2.0**40
_MIN_WEIGHT = 1e-30  # a weight at or below this counts as 0
_UNITS = 1 << 160  # weights are summed as integers in units of 2^-160: exact, in any order, in constant time

_LATEST = "latest/"  # prefix of a learner's latest model in a checkpoint

Saved = tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]


class CommunityModel(Protocol):
    """Latest version of the community model, and the updates committed since."""

    layout: Layout
    codec: CodecPipeline
    vector: Vector
    norm_bound: UpdateNormBound

    def commit(self, weight: float, start: Vector, payload: bytes, key: CodecKey) -> None:
        """Aggregate an update that started from a vector into the community model (interface)."""

    def remove_learner(self, learner: str) -> None:
        """Remove a learner's contribution from the community model's aggregation (interface)."""

    def publish(self) -> Vector:
        """Return the aggregate as the community model's latest version; older vectors are not modified."""

    def save(self) -> Saved:
        """Return the aggregation's state as JSON values and arrays for `load`; called between two events."""

    def load(self, saved: Saved) -> None:
        """Restore the state of the community model's aggregation that `save` returned (interface)."""


def community_model(
    strategy: Strategy,
    layout: Layout,
    codec: CodecPipeline,
    initial: Vector,
    model_cache: ModelCache | None = None,
) -> CommunityModel:
    """Return the aggregation of a strategy; `model_cache` stores each learner's latest model where needed."""
    layout.check(initial, label="the initial model")
    if strategy.privacy is not None:
        strategy.privacy.check(codec)
    aggregation, norm_bound = (
        strategy.scheduler.aggregation,
        UpdateNormBound(
            MAX_NORM_RATIO if strategy.is_capped else 0.0, layout.trained.size, strategy.training
        ),
    )
    if aggregation != "latest":
        return RoundMeanModel(
            layout,
            codec,
            initial,
            strategy.server_optimiser,
            strategy.robust_aggregation,
            norm_bound,
            discounted=aggregation == "discounted",
        )
    if isinstance(strategy.contribution_rule, FedAsyncContribution):
        return FedAsyncModel(layout, codec, initial, strategy.contribution_rule.alpha, norm_bound)
    return LatestMeanModel(layout, codec, initial, strategy.server_optimiser, model_cache, norm_bound)


def local_model(codec: CodecPipeline, layout: Layout, start: Vector, payload: bytes, key: CodecKey) -> Vector:
    """Return the model of a learner to aggregate, from its start vector and its encoded update."""
    model = start + codec.decode(payload, layout, key)
    return layout.check(model, label=f"the model of learner '{key.learner}'")


def clip_update(community: CommunityModel, start: Vector, payload: bytes, key: CodecKey) -> Vector:
    """Return the model of a learner to aggregate, with its update clipped to the norm bound."""
    update = community.codec.decode(payload, community.layout, key)
    factor = community.norm_bound.clip_factor(key.learner, trained_norm(community.layout, update))
    model = start + (update if factor == 1.0 else np.float32(factor) * update)
    return community.layout.check(model, label=f"the model of learner '{key.learner}'")


def trained_norm(layout: Layout, update: Vector) -> float:
    """Return the norm of an update's trained tensors, by which the aggregation limits the whole update."""
    return update_norm(update[: layout.trained.size])


def update_norm(update: Vector) -> float:
    """Return the Euclidean norm of an update before its aggregation, in float64 if float32 overflows."""
    with np.errstate(over="ignore"):
        squared_norm = float(np.dot(update, update))
    if not math.isfinite(squared_norm):
        update64 = update.astype(np.float64)
        squared_norm = float(np.dot(update64, update64))
    return math.sqrt(squared_norm)


def _no_bound() -> UpdateNormBound:
    return UpdateNormBound(0.0, 1, TrainSettings())


class RoundMeanModel:
    """Previous version plus the mean of updates, which are summed while encoded where the codec supports it.

    Updates that start from the same version share the codec's randomness and an accumulator. Robust aggregation needs
    the decoded updates.
    """

    def __init__(
        self,
        layout: Layout,
        codec: CodecPipeline,
        initial: Vector,
        server_optimiser: ServerOptimiser = ServerSgd(),  # noqa: B008 - frozen and without state
        robust_aggregation: RobustAggregator | None = None,
        norm_bound: UpdateNormBound | None = None,
        *,
        discounted: bool = False,
    ) -> None:
        self.layout, self.codec, self.vector, self.norm_bound = (
            layout,
            codec,
            initial,
            norm_bound or _no_bound(),
        )
        self.server_optimiser, self.robust_aggregation = server_optimiser, robust_aggregation
        self.discounted = discounted
        self._optimiser_state = server_optimiser.start(layout.size)
        self._sums: dict[bytes, Accumulator] = {}
        self._totals: dict[bytes, float] = {}
        self._weights: list[float] = []
        self._rows: list[Vector] = []
        self._clipped: list[tuple[float, Vector]] = []
        self._shifts: list[tuple[float, Vector]] = []

    def commit(self, weight: float, start: Vector, payload: bytes, key: CodecKey) -> None:
        """Add an update to the aggregation of the round or buffer."""
        factor, update = 1.0, None
        if self.robust_aggregation is not None or self.norm_bound.max_norm_ratio:
            update = self.codec.decode(payload, self.layout, key)
            self.layout.check(update, label=f"the update of learner '{key.learner}'")
            factor = self.norm_bound.clip_factor(key.learner, trained_norm(self.layout, update))
            if self._has_moved(start):
                update = update + self._statistics_shift(start)
        if self.robust_aggregation is not None:
            assert update is not None
            self._rows.append(update if factor == 1.0 else np.float32(factor) * update)
        elif factor < 1.0:
            assert update is not None
            self._clipped.append((weight, np.float32(factor) * update))
        else:
            if key.round not in self._sums:
                self._sums[key.round] = self.codec.accumulator(self.layout, key.round)
            self._sums[key.round].add(payload, weight, key.learner)
            self._totals[key.round] = self._totals.get(key.round, 0.0) + weight
            if weight > 0 and self._has_moved(start):
                self._shifts.append((weight, self._statistics_shift(start)))
        self._weights.append(weight)

    def remove_learner(self, learner: str) -> None:
        """Do nothing: only updates of the current round are in the aggregated mean."""

    def publish(self) -> Vector:
        """Return the next version: the previous one plus the aggregated change of the round."""
        change = self._change()
        if change is not None:
            step, self._optimiser_state = _server_step(
                self.layout, self.server_optimiser, change, self._optimiser_state
            )
            self.vector = self.layout.check(self.vector + step, label="the community model")
        return self.vector

    def _has_moved(self, start: Vector) -> bool:
        """Return whether the aggregate's statistics differ from those that an update started from."""
        statistics = slice(self.layout.trained.size, self.layout.update_size)
        return start is not self.vector and not np.array_equal(start[statistics], self.vector[statistics])

    def _statistics_shift(self, start: Vector) -> Vector:
        """Return the change of an update that makes it relative to the aggregate's statistics.

        Statistics are values, not gradients: the sum of two changes from an older version may give a negative variance.
        """
        shift, statistics = self.layout.zeros(), slice(self.layout.trained.size, self.layout.update_size)
        shift[statistics] = start[statistics] - self.vector[statistics]
        return shift

    def save(self) -> Saved:
        """Return the aggregate's latest version and the server optimiser's state; no round's sum outlasts an event."""
        return {"norm_bound": self.norm_bound.save()}, {
            "vector": self.vector,
            **_state_arrays(self._optimiser_state),
        }

    def load(self, saved: Saved) -> None:
        """Restore the latest version of the round mean and the server optimiser's state."""
        values, arrays = saved
        self.norm_bound.load(values["norm_bound"])
        self.vector, self._optimiser_state = arrays["vector"], _state_from_arrays(arrays)

    def _change(self) -> Vector | None:
        """Return the aggregated change of the round; None if the sum of weights is 0."""
        total, change = sum(self._weights), None
        if total > 0 and self.robust_aggregation is not None:
            change = self.robust_aggregation.aggregate(np.stack(self._rows), np.array(self._weights))
        elif total > 0:
            change = self._mean(total)
        if change is not None and self.discounted and total < len(self._weights):
            change = change * np.float32(total / len(self._weights))
        self._sums, self._totals, self._weights, self._rows, self._clipped = {}, {}, [], [], []
        self._shifts = []
        return change

    def _mean(self, total_weight: float) -> Vector:
        if len(self._sums) == 1 and not self._clipped and not self._shifts:
            return next(iter(self._sums.values())).mean()
        terms = [
            weight / total_weight * self._sums[start].mean().astype(np.float64)
            for start, weight in self._totals.items()
            if weight > 0
        ]
        terms += [
            weight / total_weight * update.astype(np.float64)
            for weight, update in self._clipped + self._shifts
        ]
        return np.asarray(sum(terms), np.float32)


class LatestMeanModel:
    """Weighted mean of every learner's latest model, in time independent of the number of learners.

    The sum is stored as 64-bit integers. Its scale is chosen from the models' norms and weights so that it neither
    overflows nor loses digits; outside that range the sum is computed again from the latest models with a new scale.
    With one scale the mean has the same bits for any order of the same commits.
    """

    def __init__(
        self,
        layout: Layout,
        codec: CodecPipeline,
        initial: Vector,
        server_optimiser: ServerOptimiser = ServerSgd(),  # noqa: B008 - frozen and without state
        model_cache: ModelCache | None = None,
        norm_bound: UpdateNormBound | None = None,
    ) -> None:
        self.layout, self.codec, self.vector = layout, codec, initial
        self.server_optimiser = server_optimiser
        self.norm_bound = norm_bound or _no_bound()
        self._optimiser_state = server_optimiser.start(layout.size)
        self._mean: Vector | None = None
        self._total = np.zeros(layout.size, dtype=np.int64)
        self._models = ModelCache(layout.size) if model_cache is None else model_cache
        self._weights: dict[str, float] = {}
        self._bounds: dict[str, float] = {}
        self._weight_sum = self._bound_sum = 0
        self._scale = 1.0

    def commit(self, weight: float, start: Vector, payload: bytes, key: CodecKey) -> None:
        """Replace the learner's previous model in the aggregated mean of all latest models."""
        model = clip_update(self, start, payload, key)
        if not (math.isfinite(weight) and weight >= 0):
            raise AbatonError(
                f"the weight of learner '{key.learner}' is {weight}",
                remedy="use a weighting that is finite and >= 0",
            )
        self.replace(key.learner, model, weight)

    def replace(self, learner: str, model: Vector, weight: float) -> None:
        """Replace the learner's previous model in the aggregation's weighted sum."""
        weight = weight if weight > _MIN_WEIGHT else 0.0
        self._set_bound(learner, weight * 1.01 * update_norm(model))
        self._fit(replaced=learner)
        self._exchange(learner, model, weight)

    def remove_learner(self, learner: str) -> None:
        """Subtract a learner's latest model from the aggregated sum exactly as it was added."""
        if learner in self._models:
            self._exchange(learner, self._models.get(learner), 0.0)
            self._models.drop(learner)
            del self._weights[learner]
            self._set_bound(learner, 0.0)
            scale = self._scale
            self._fit()
            # After a change of scale the mean has more digits than before.
            if self._mean is not None and self._scale != scale:
                self._mean = (self._total * self._inverse()).astype(np.float32)

    def publish(self) -> Vector:
        """Return the next version, aggregated from every learner's latest model."""
        if self._mean is not None:
            if frozen := self.layout.size - self.layout.update_size:  # the mean of equal values may round
                self._mean = np.concatenate([self._mean[:-frozen], self.vector[-frozen:]])
            if isinstance(self.server_optimiser, ServerSgd):
                self.vector = self._mean
            else:
                change = self._mean - self.vector
                step, self._optimiser_state = _server_step(
                    self.layout, self.server_optimiser, change, self._optimiser_state
                )
                self.vector = self.layout.check(self.vector + step, label="the community model")
            self._mean = None
        return self.vector

    def save(self) -> Saved:
        """Return the exact aggregated sum, the weights and every learner's latest model."""
        values = {
            "weights": self._weights,
            "bounds": self._bounds,
            "sums": [str(self._weight_sum), str(self._bound_sum)],
            "scale": self._scale,
            "norm_bound": self.norm_bound.save(),
        }
        arrays: dict[str, NDArray[Any]] = {"vector": self.vector, "total": self._total}
        if self._mean is not None:
            arrays["mean"] = self._mean
        return values, _ArraysWithLatest({**arrays, **_state_arrays(self._optimiser_state)}, self._models)

    def load(self, saved: Saved) -> None:
        """Restore the aggregated sum and the learners' latest models with the same bits."""
        values, arrays = saved
        self.vector, self._total, self._mean = arrays["vector"], arrays["total"].copy(), arrays.get("mean")
        self._optimiser_state = _state_from_arrays(arrays)
        self.norm_bound.load(values["norm_bound"])
        self._weights, self._bounds = dict(values["weights"]), dict(values["bounds"])
        self._scale = values["scale"]
        self._weight_sum, self._bound_sum = map(int, values["sums"])
        for learner in self._weights:
            self._models.put(learner, arrays[f"{_LATEST}{learner}"])

    def _exchange(self, learner: str, model: Vector, weight: float) -> None:
        from abaton.kernels.vector_ops import exchange_weighted

        previous_weight = self._weights.get(learner, 0.0)
        previous = self._models.get(learner) if learner in self._models else np.zeros_like(model)
        self._weights[learner] = weight
        self._weight_sum += _to_units(weight) - _to_units(previous_weight)
        mean = np.empty_like(self.vector)
        factors = weight * self._scale, previous_weight * self._scale
        exchange_weighted(self._total, model, previous, *factors, self._inverse(), mean)
        self._models.put(learner, previous)
        self._mean = mean if self._weight_sum else None  # with a weight sum of 0 the model stays unchanged

    def _inverse(self) -> float:
        return 1 / self._scale / (self._weight_sum / _UNITS) if self._weight_sum else 0.0

    def _set_bound(self, learner: str, bound: float) -> None:
        self._bound_sum += _to_units(bound) - _to_units(self._bounds.pop(learner, 0.0))
        if bound:
            self._bounds[learner] = bound

    def _fit(self, replaced: str | None = None) -> None:
        """Choose another scale for the aggregated sum if its bounds are outside the range of the current one."""
        bound = self._bound_sum / _UNITS
        if _MIN_SUM <= bound * self._scale < _MAX_SUM or not bound:
            return
        self._scale = 2.0 ** math.floor(math.log2(_TARGET_SUM / bound))
        self._total[:] = 0
        # The replaced model is about to be subtracted and need not fit the new scale.
        if replaced is not None and replaced in self._models:
            self._models.drop(replaced)
            self._weight_sum -= _to_units(self._weights.pop(replaced))
        for learner in self._models:
            factor = self._weights[learner] * self._scale
            self._total += np.rint(factor * self._models.get(learner).astype(np.float64)).astype(np.int64)


class _ArraysWithLatest(Mapping[str, NDArray[Any]]):
    """Arrays of a checkpoint; learners' latest models are read from the cache, since copies may not fit in memory."""

    def __init__(self, vectors: Mapping[str, NDArray[Any]], model_cache: ModelCache) -> None:
        self._vectors, self._model_cache = vectors, model_cache

    def __getitem__(self, name: str) -> NDArray[Any]:
        learner = name.removeprefix(_LATEST)
        return self._vectors[name] if learner == name else self._model_cache.get(learner)

    def __iter__(self) -> Iterator[str]:
        yield from self._vectors
        yield from (_LATEST + learner for learner in self._model_cache)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _server_step(
    layout: Layout, optimiser: ServerOptimiser, change: Vector, state: OptimiserState
) -> tuple[Vector, OptimiserState]:
    """Return the server optimiser's step on trained tensors; statistics move by the aggregated change itself."""
    step, state = optimiser.apply(change, state)
    if layout.trained is not layout:
        step = np.concatenate([step[: layout.trained.size], change[layout.trained.size :]])
    return step, state


def _state_arrays(state: OptimiserState) -> dict[str, NDArray[Any]]:
    return {f"optimiser_state/{index}": values for index, values in enumerate(state)}


def _state_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> OptimiserState:
    names = (f"optimiser_state/{index}" for index in range(len(arrays)))
    return tuple(arrays[name] for name in names if name in arrays)


def _to_units(value: float) -> int:
    return int(value * float(_UNITS))


class FedAsyncModel:
    """Community model that moves towards each committed model by `alpha * weight`."""

    def __init__(
        self,
        layout: Layout,
        codec: CodecPipeline,
        initial: Vector,
        alpha: float,
        norm_bound: UpdateNormBound | None = None,
    ) -> None:
        self.layout, self.codec, self.vector, self.alpha = layout, codec, initial, alpha
        self.norm_bound = norm_bound or _no_bound()

    def commit(self, weight: float, start: Vector, payload: bytes, key: CodecKey) -> None:
        """Aggregate as FedAsync: move the community model towards the learner's model."""
        model = clip_update(self, start, payload, key)
        factor = np.float32(min(1.0, self.alpha * weight))
        self.vector = self.vector + factor * (model - self.vector)

    def remove_learner(self, learner: str) -> None:
        """Do nothing: FedAsync's aggregation does not store contributions separately."""

    def publish(self) -> Vector:
        """Return the next version of FedAsync's aggregation."""
        return self.layout.check(self.vector, label="the community model")

    def save(self) -> Saved:
        """Return the latest version of FedAsync's aggregation."""
        return {"norm_bound": self.norm_bound.save()}, {"vector": self.vector}

    def load(self, saved: Saved) -> None:
        """Restore the latest version of FedAsync's aggregation."""
        self.norm_bound.load(saved[0]["norm_bound"])
        self.vector = saved[1]["vector"]
