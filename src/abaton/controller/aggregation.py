"""The community model: what the learners' updates add up to.

Three ways of mixing. `Mean`: the version before, plus the weighted mean of the updates of one mix (synchronous,
buffered). `Newest`: the weighted mean of the newest model of every learner, exchanged in one
pass over the parameters at each commit (Metis' cached community model). `Pulled`: every commit pulls the model towards
it (FedAsync).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import Accumulator, Key, Pipeline
from abaton.controller.model_cache import Shelf
from abaton.controller.robust_aggregation import Blend, Memory, Optimiser, Plain, Reach, Robust
from abaton.controller.strategies import Rules
from abaton.errors import AbatonError
from abaton.kernels import Layout, Vector
from abaton.training import TrainSettings

# The sum of all shares' bounds lies between these, in units of the scale: above, it could overflow 64 bits; below, the
# mix would lose digits that float32 has.
_MOST, _AIM, _LEAST = 2.0**62, 2.0**52, 2.0**40
_NOTHING = 1e-30  # a weight at or below this counts as none
_WHOLE = 1 << 160  # weights are summed as whole numbers of this unit: exact, in any order, in constant time


_NEWEST = "newest/"  # what a learner's newest model is called when it is saved

Saved = tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]


class CommunityModel(Protocol):
    """The newest version, and what has been committed since."""

    layout: Layout
    codec: Pipeline
    vector: Vector
    reach: Reach

    def commit(self, weight: float, start: Vector, payload: bytes, key: Key) -> None:
        """Let an update, made from a start vector, enter the mix."""

    def retire(self, learner: str) -> None:
        """Take a learner's share out of the mix."""

    def publish(self) -> Vector:
        """Make the mix the newest version; the vectors of older versions stay as they were."""

    def save(self) -> Saved:
        """Plain values and vectors that `load` makes the same model of; asked for between two events."""

    def load(self, saved: Saved) -> None:
        """Take over what `save` gave."""


def community_model(
    rules: Rules, layout: Layout, codec: Pipeline, initial: Vector, shelf: Shelf | None = None
) -> CommunityModel:
    """The community model that the rules ask for; the shelf is where each learner's newest model lies, if kept."""
    layout.check(initial, whose="the initial model")
    if rules.privacy is not None:
        rules.privacy.check(codec)
    mixes, reach = rules.pacing.mixes, Reach(rules.longest, layout.size, rules.training)
    if mixes != "newest":
        return Mean(
            layout, codec, initial, rules.server, rules.robust, reach, discounted=mixes == "discounted"
        )
    if isinstance(rules.mixing, Blend):
        return Pulled(layout, codec, initial, rules.mixing.alpha, reach)
    return Newest(layout, codec, initial, rules.server, shelf, reach)


def local_model(codec: Pipeline, layout: Layout, start: Vector, payload: bytes, key: Key) -> Vector:
    """The model that a learner sent as a difference to where it started."""
    made = start + codec.decode(payload, layout, key)
    return layout.check(made, whose=f"the model of learner '{key.learner}'")


def bounded_model(mix: CommunityModel, start: Vector, payload: bytes, key: Key) -> Vector:
    """The model that a learner sent, moved no further from where it started than it may reach."""
    update = mix.codec.decode(payload, mix.layout, key)
    share = mix.reach.share(key.learner, length_of(update))
    made = start + (update if share == 1.0 else np.float32(share) * update)
    return mix.layout.check(made, whose=f"the model of learner '{key.learner}'")


def length_of(update: Vector) -> float:
    """The Euclidean length of an update; one whose squares are too large for a float32 is measured exactly."""
    with np.errstate(over="ignore"):
        squares = float(np.dot(update, update))
    if not math.isfinite(squares):
        wide = update.astype(np.float64)
        squares = float(np.dot(wide, wide))
    return math.sqrt(squares)


def _no_bound() -> Reach:
    return Reach(0.0, 1, TrainSettings())


class Mean:
    """The version before, plus the mean of some updates, added while still encoded where it can be.

    Updates of a mix that start from one version share the randomness of its codec, and a sum. A robust mix needs to see
    the updates side by side, so they are decoded for it.
    """

    def __init__(
        self,
        layout: Layout,
        codec: Pipeline,
        initial: Vector,
        server: Optimiser = Plain(),  # noqa: B008 - frozen and without state
        robust: Robust | None = None,
        reach: Reach | None = None,
        *,
        discounted: bool = False,
    ) -> None:
        self.layout, self.codec, self.vector, self.reach = layout, codec, initial, reach or _no_bound()
        self.server, self.robust, self.discounted = server, robust, discounted
        self._memory = server.start(layout.size)
        self._sums: dict[bytes, Accumulator] = {}
        self._totals: dict[bytes, float] = {}
        self._weights: list[float] = []
        self._rows: list[Vector] = []
        self._shortened: list[tuple[float, Vector]] = []

    def commit(self, weight: float, start: Vector, payload: bytes, key: Key) -> None:
        """Add an update to the next mix."""
        share, update = 1.0, None
        if self.robust is not None or self.reach.factor:
            update = self.codec.decode(payload, self.layout, key)
            self.layout.check(update, whose=f"the update of learner '{key.learner}'")
            share = self.reach.share(key.learner, length_of(update))
        if self.robust is not None:
            assert update is not None
            self._rows.append(update if share == 1.0 else np.float32(share) * update)
        elif share < 1.0:
            assert update is not None
            self._shortened.append((weight, np.float32(share) * update))
        else:
            if key.round not in self._sums:
                self._sums[key.round] = self.codec.accumulator(self.layout, key.round)
            self._sums[key.round].add(payload, weight, key.learner)
            self._totals[key.round] = self._totals.get(key.round, 0.0) + weight
        self._weights.append(weight)

    def retire(self, learner: str) -> None:
        """Nothing to do: a round's mix holds only that round's updates."""

    def publish(self) -> Vector:
        """The next version."""
        change = self._change()
        if change is not None:
            taken, self._memory = self.server.apply(change, self._memory)
            self.vector = self.layout.check(self.vector + taken, whose="the community model")
        return self.vector

    def save(self) -> Saved:
        """The newest version and the optimiser's memory; a round's sum never outlasts an event."""
        return {"reach": self.reach.save()}, {"vector": self.vector, **_memory_arrays(self._memory)}

    def load(self, saved: Saved) -> None:
        """Take over what was saved."""
        about, arrays = saved
        self.reach.load(about["reach"])
        self.vector, self._memory = arrays["vector"], _memory_of(arrays)

    def _change(self) -> Vector | None:
        """The mean of what was committed; nothing if nothing has any weight."""
        total, change = sum(self._weights), None
        if total > 0 and self.robust is not None:
            change = self.robust.mix(np.stack(self._rows), np.array(self._weights))
        elif total > 0:
            change = self._mean(total)
        if change is not None and self.discounted and total < len(self._weights):
            change = change * np.float32(total / len(self._weights))
        self._sums, self._totals, self._weights, self._rows, self._shortened = {}, {}, [], [], []
        return change

    def _mean(self, total: float) -> Vector:
        if len(self._sums) == 1 and not self._shortened:
            return next(iter(self._sums.values())).mean()
        shares = [
            weight / total * self._sums[start].mean().astype(np.float64)
            for start, weight in self._totals.items()
            if weight > 0
        ]
        shares += [weight / total * update.astype(np.float64) for weight, update in self._shortened]
        return np.asarray(sum(shares), np.float32)


class Newest:
    """The weighted mean of every learner's newest model, in time that does not depend on the number of learners.

    The sum is kept in 64-bit whole numbers. Its scale is chosen from the models' norms and weights so that it can
    neither overflow nor lose digits; when they leave that range, the sum is built again from the newest models with a
    new scale. Under one scale the mix has the same bits in any order of the same commits.
    """

    def __init__(
        self,
        layout: Layout,
        codec: Pipeline,
        initial: Vector,
        server: Optimiser = Plain(),  # noqa: B008 - frozen and without state
        shelf: Shelf | None = None,
        reach: Reach | None = None,
    ) -> None:
        self.layout, self.codec, self.vector, self.server = layout, codec, initial, server
        self.reach = reach or _no_bound()
        self._memory = server.start(layout.size)
        self._mixed: Vector | None = None
        self._total = np.zeros(layout.size, dtype=np.int64)
        self._kept = Shelf(layout.size) if shelf is None else shelf
        self._weights: dict[str, float] = {}
        self._bounds: dict[str, float] = {}
        self._weight_sum = self._bound_sum = 0
        self._scale = 1.0

    def commit(self, weight: float, start: Vector, payload: bytes, key: Key) -> None:
        """Exchange the learner's old share for its new one."""
        model = bounded_model(self, start, payload, key)
        if not (math.isfinite(weight) and weight >= 0):
            raise AbatonError(
                f"the weight of learner '{key.learner}' is {weight}", remedy="check the weighting"
            )
        self.replace(key.learner, model, weight)

    def replace(self, learner: str, model: Vector, weight: float) -> None:
        """Let a model take the place of the learner's former one."""
        weight = weight if weight > _NOTHING else 0.0
        self._set_bound(learner, weight * 1.01 * length_of(model))
        self._fit(replaced=learner)
        self._exchange(learner, model, weight)

    def retire(self, learner: str) -> None:
        """Take a learner's share out, exactly as it was put in."""
        if learner in self._kept:
            self._exchange(learner, self._kept.get(learner), 0.0)
            self._kept.drop(learner)
            del self._weights[learner]
            self._set_bound(learner, 0.0)
            scale = self._scale
            self._fit()
            if (
                self._mixed is not None and self._scale != scale
            ):  # it had only the digits that the old scale left
                self._mixed = (self._total * self._inverse()).astype(np.float32)

    def publish(self) -> Vector:
        """The next version."""
        if self._mixed is not None:
            if isinstance(self.server, Plain):
                self.vector = self._mixed
            else:
                taken, self._memory = self.server.apply(self._mixed - self.vector, self._memory)
                self.vector = self.layout.check(self.vector + taken, whose="the community model")
            self._mixed = None
        return self.vector

    def save(self) -> Saved:
        """The exact sum with everything it is made of."""
        about = {
            "weights": self._weights,
            "bounds": self._bounds,
            "sums": [str(self._weight_sum), str(self._bound_sum)],
            "scale": self._scale,
            "reach": self.reach.save(),
        }
        arrays: dict[str, NDArray[Any]] = {"vector": self.vector, "total": self._total}
        if self._mixed is not None:
            arrays["mixed"] = self._mixed
        return about, _WithNewest({**arrays, **_memory_arrays(self._memory)}, self._kept)

    def load(self, saved: Saved) -> None:
        """Take over what was saved; the sum goes on with the same bits."""
        about, arrays = saved
        self.vector, self._total, self._mixed = arrays["vector"], arrays["total"].copy(), arrays.get("mixed")
        self._memory = _memory_of(arrays)
        self.reach.load(about["reach"])
        self._weights, self._bounds = dict(about["weights"]), dict(about["bounds"])
        self._scale = about["scale"]
        self._weight_sum, self._bound_sum = map(int, about["sums"])
        for learner in self._weights:
            self._kept.put(learner, arrays[f"{_NEWEST}{learner}"])

    def _exchange(self, learner: str, model: Vector, weight: float) -> None:
        from abaton.kernels.vector_ops import exchange

        before = self._weights.get(learner, 0.0)
        kept = self._kept.get(learner) if learner in self._kept else np.zeros_like(model)
        self._weights[learner] = weight
        self._weight_sum += _whole(weight) - _whole(before)
        mixed = np.empty_like(self.vector)
        shares = weight * self._scale, before * self._scale
        exchange(self._total, model, kept, *shares, self._inverse(), mixed)
        self._kept.put(learner, kept)
        self._mixed = mixed if self._weight_sum else None  # without any weight the model stays as it is

    def _inverse(self) -> float:
        return 1 / self._scale / (self._weight_sum / _WHOLE) if self._weight_sum else 0.0

    def _set_bound(self, learner: str, bound: float) -> None:
        self._bound_sum += _whole(bound) - _whole(self._bounds.pop(learner, 0.0))
        if bound:
            self._bounds[learner] = bound

    def _fit(self, replaced: str | None = None) -> None:
        """Choose another scale if the sum of the shares' bounds has outgrown, or fallen far below, the present one."""
        bound = self._bound_sum / _WHOLE
        if _LEAST <= bound * self._scale < _MOST or not bound:
            return
        self._scale = 2.0 ** math.floor(math.log2(_AIM / bound))
        self._total[:] = 0
        if (
            replaced is not None and replaced in self._kept
        ):  # its old share would not fit the new scale, and is about to go
            self._kept.drop(replaced)
            self._weight_sum -= _whole(self._weights.pop(replaced))
        for learner in self._kept:
            share = self._weights[learner] * self._scale
            self._total += np.rint(share * self._kept.get(learner).astype(np.float64)).astype(np.int64)


class _WithNewest(Mapping[str, NDArray[Any]]):
    """Vectors, and each learner's newest model as it lies on the shelf: a copy of all may not fit in memory."""

    def __init__(self, vectors: Mapping[str, NDArray[Any]], shelf: Shelf) -> None:
        self._vectors, self._shelf = vectors, shelf

    def __getitem__(self, name: str) -> NDArray[Any]:
        learner = name.removeprefix(_NEWEST)
        return self._vectors[name] if learner == name else self._shelf.get(learner)

    def __iter__(self) -> Iterator[str]:
        yield from self._vectors
        yield from (_NEWEST + learner for learner in self._shelf)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _memory_arrays(memory: Memory) -> dict[str, NDArray[Any]]:
    return {f"memory/{place}": values for place, values in enumerate(memory)}


def _memory_of(arrays: Mapping[str, NDArray[Any]]) -> Memory:
    names = (f"memory/{place}" for place in range(len(arrays)))
    return tuple(arrays[name] for name in names if name in arrays)


def _whole(number: float) -> int:
    return int(number * float(_WHOLE))


class Pulled:
    """The community model pulled towards each commit by alpha times its weight."""

    def __init__(
        self, layout: Layout, codec: Pipeline, initial: Vector, alpha: float, reach: Reach | None = None
    ) -> None:
        self.layout, self.codec, self.vector, self.alpha = layout, codec, initial, alpha
        self.reach = reach or _no_bound()

    def commit(self, weight: float, start: Vector, payload: bytes, key: Key) -> None:
        """Pull the community model towards the learner's model."""
        model = bounded_model(self, start, payload, key)
        share = np.float32(min(1.0, self.alpha * weight))
        self.vector = self.vector + share * (model - self.vector)

    def retire(self, learner: str) -> None:
        """Nothing to do: nobody's share is kept apart."""

    def publish(self) -> Vector:
        """The next version."""
        return self.layout.check(self.vector, whose="the community model")

    def save(self) -> Saved:
        """The newest version."""
        return {"reach": self.reach.save()}, {"vector": self.vector}

    def load(self, saved: Saved) -> None:
        """Take over what was saved."""
        self.reach.load(saved[0]["reach"])
        self.vector = saved[1]["vector"]
