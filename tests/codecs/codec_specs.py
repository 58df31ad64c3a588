"""Specs and layouts with which every codec is tested; a new codec of the registry is included."""

from __future__ import annotations

import numpy as np

from abaton.codecs.registry import CODECS
from abaton.layout import Layout, Tensor, TensorRole

# Settings to test for each codec; a codec that is missing here has none.
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
    "tcdq": ["bits=0.3", "bits=1", "bits=2", "bits=4", "bits=6", "bits=2, states=8", "bits=2, states=256"],
}
SPECS = [
    f"{name}({settings})" if settings else name for name in CODECS for settings in SETTINGS.get(name, [""])
]

MIXED = Layout(
    [
        Tensor("conv1.weight", (4, 1, 5, 5), TensorRole.CONV),
        Tensor("conv1.bias", (4,), TensorRole.BIAS),
        Tensor("conv2.weight", (6, 4, 5, 5), TensorRole.CONV),
        Tensor("conv3.weight", (5, 6, 3, 3), TensorRole.CONV),
        Tensor("point.weight", (3, 5, 1, 1), TensorRole.CONV),
        Tensor("norm.weight", (7,), TensorRole.NORM),
        Tensor("empty.weight", (0, 4), TensorRole.DENSE),
        Tensor("dense.weight", (11, 13), TensorRole.DENSE),
        Tensor("one.weight", (1, 1), TensorRole.DENSE),
        Tensor("words.weight", (9, 4), TensorRole.EMBEDDING),
    ]
)
LAYOUTS = {
    "mixed": MIXED,
    "nothing": Layout([]),
    "one": Layout([Tensor("w", (1,), TensorRole.DENSE)]),
    "bias only": Layout([Tensor("b", (3,), TensorRole.BIAS)]),
    "odd": Layout([Tensor("w", (37, 29), TensorRole.DENSE)]),
}


def updates(layout: Layout) -> dict[str, np.ndarray]:
    """Return typical and unusual updates."""
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
