"""What one community model costs, with the cache and without, by the number of learners (Fig. 2 of the Metis paper).

With the cache, a commit exchanges one learner's share. Without, all learners' models are summed again: here by one
matrix product over models that already lie side by side in memory, the fastest such pass there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from abaton.benchmark import best_seconds
from abaton.codecs import parse
from abaton.controller.aggregation import Newest
from abaton.kernels import Layout, Role, Tensor

MEMORY = 3_000_000_000  # bytes that a point may take; larger ones are left out, and said to be


def resnet_parameters(depth: int, classes: int = 100) -> int:
    """How many parameters the residual network for 32x32 images of this depth (6n + 2) has.

    >>> resnet_parameters(20, classes=10), resnet_parameters(110, classes=10)
    (269722, 1727962)
    """
    total, inputs = 9 * 3 * 16 + 2 * 16, 16
    for width in (16, 32, 64):
        for _ in range((depth - 2) // 6):
            total += 9 * inputs * width + 9 * width * width + 4 * width
            inputs = width
    return total + 64 * classes + classes


NETWORKS: Mapping[str, int] = {f"ResNet-{depth}": resnet_parameters(depth) for depth in (20, 56, 110)}


def community_costs(
    learners: Sequence[int],
    networks: Mapping[str, int] = NETWORKS,
    *,
    memory: int = MEMORY,
    heard: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Milliseconds for one community model, cached and by the full pass; none where memory would not do.

    >>> [row["learners"] for row in community_costs([1, 2], {"tiny": 100})]
    [1, 2]
    """
    rows = []
    for name, size in networks.items():
        for count in learners:
            fits = 4 * size * count <= memory
            cached = 1e3 * _cached(size, count) if fits else None
            full = 1e3 * _full(size, count) if fits else None
            rows.append(
                {"network": name, "parameters": size, "learners": count, "cached": cached, "full": full}
            )
            if heard is not None:
                heard(f"{name}, {count} learners")
    return rows


def _cached(size: int, learners: int) -> float:
    layout = Layout([Tensor("weight", (size,), Role.DENSE)])
    mix = Newest(layout, parse("raw"), layout.zeros())
    models = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
    for k in range(learners):
        mix.replace(f"learner{k}", models[k % 2], 1.0 + k % 7)
    turn = [0]

    def commit() -> None:
        turn[0] += 1
        mix.replace(f"learner{turn[0] % learners}", models[turn[0] % 2], 1.0 + turn[0] % 7)
        mix.publish()

    return best_seconds(commit, repeats=20)


def _full(size: int, learners: int) -> float:
    arena = np.ones((learners, size), np.float32)
    weights, mixed = np.full(learners, 1 / learners, np.float32), np.empty(size, np.float32)
    return best_seconds(lambda: np.matmul(weights, arena, out=mixed), repeats=3 if learners >= 100 else 20)
