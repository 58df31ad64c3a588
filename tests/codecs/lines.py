"""Codec lines and layouts that every codec is tried on: a new codec joins by being in the registry."""

from __future__ import annotations

import numpy as np

from abaton.codecs.registry import CODECS
from abaton.kernels import Layout, Role, Tensor

# Settings to try for each codec; a codec that is not named here is tried as it is.
SETTINGS = {
    "stc": [
        f"sparsity=0.05, scope={scope}, coding={coding}, biases={biases}"
        for scope in ("global", "tensor")
        for coding in ("golomb", "context")
        for biases in ("fp16", "raw", "sparse")
    ],
    "sstc": [
        f"sparsity=0.05, kernels=0.25, coding={coding}, biases={biases}"
        for coding in ("fixed", "trit", "context")
        for biases in ("fp16", "raw")
    ],
    **{
        name: [f"bits={b}" for b in (1, 2, 3, 4)]
        for name in ("quicfl", "eden", "hadamard", "kashin", "qsgd", "ecdq")
    },
}
LINES = [
    f"{name}({settings})" if settings else name for name in CODECS for settings in SETTINGS.get(name, [""])
]

MIXED = Layout(
    [
        Tensor("conv1.weight", (4, 1, 5, 5), Role.CONV),
        Tensor("conv1.bias", (4,), Role.BIAS),
        Tensor("conv2.weight", (6, 4, 5, 5), Role.CONV),
        Tensor("conv3.weight", (5, 6, 3, 3), Role.CONV),
        Tensor("point.weight", (3, 5, 1, 1), Role.CONV),
        Tensor("norm.weight", (7,), Role.NORM),
        Tensor("empty.weight", (0, 4), Role.DENSE),
        Tensor("dense.weight", (11, 13), Role.DENSE),
        Tensor("one.weight", (1, 1), Role.DENSE),
        Tensor("words.weight", (9, 4), Role.EMBEDDING),
    ]
)
LAYOUTS = {
    "mixed": MIXED,
    "nothing": Layout([]),
    "one": Layout([Tensor("w", (1,), Role.DENSE)]),
    "bias only": Layout([Tensor("b", (3,), Role.BIAS)]),
    "odd": Layout([Tensor("w", (37, 29), Role.DENSE)]),
}


def updates(layout: Layout) -> dict[str, np.ndarray]:
    """Usual and unusual updates."""
    rng = np.random.default_rng(7)
    normal = rng.standard_normal(layout.size).astype(np.float32)
    lone = layout.zeros()
    lone[: layout.size // 2 + 1] = 0
    if layout.size:
        lone[layout.size // 2] = -3
    return {
        "normal": normal,
        "lognormal": np.exp(normal) * np.sign(rng.standard_normal(layout.size)).astype(np.float32),
        "zeros": layout.zeros(),
        "ties": rng.integers(-2, 3, layout.size).astype(np.float32),
        "one value": lone,
        "tiny": (normal * 1e-30).astype(np.float32),
        "subnormal": (normal * 1e-42).astype(np.float32),
        "huge": (normal * 1e30).astype(np.float32),
    }
