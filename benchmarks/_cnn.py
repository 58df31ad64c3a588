"""The CNN of the SSTC paper, trained by non-IID learners on handwritten characters of 62 classes.

The pictures are the 28x28 sets of ``../shared/data`` (Chars74K pen strokes by writer, and scanned hands);
they are not FEMNIST, and no number made here may be called so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from abaton.codecs import Key, parse
from abaton.errors import SettingsError
from abaton.vectors import Layout, Role, Tensor
from abaton.vectors.layout import Vector

VISION = Path(__file__).resolve().parents[2] / "shared" / "data" / "vision"
CLASSES = 62


def model() -> nn.Sequential:
    """Two 5x5 convolutions (32 and 64 filters) with pooling, 512 units, 62 outputs: 1,690,046 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 64, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def layout_of(net: nn.Sequential) -> Layout:
    """The layout of the CNN's parameters."""
    roles = {4: Role.CONV, 2: Role.DENSE, 1: Role.BIAS}
    return Layout(Tensor(n, tuple(p.shape), roles[p.dim()]) for n, p in net.named_parameters())


@dataclass(frozen=True)
class Pictures:
    """Training pictures by learner, and a test set of hands that no learner has seen."""

    learners: list[tuple[torch.Tensor, torch.Tensor]]
    test: tuple[torch.Tensor, torch.Tensor]


def pictures(*, learners: int, per_learner: int, seed: int) -> Pictures:
    """Each learner holds one writer's strokes and a skewed share of the scans (Dirichlet over classes)."""
    if not VISION.is_dir():
        raise SettingsError(
            "the data folder '../shared/data' is not there", remedy="put it beside the checkout"
        )
    rng = np.random.default_rng(seed)
    with np.load(VISION / "chars74k_hnd62_by_writer.npz") as file:
        strokes = file["x"], file["y"], file["writer"] if "writer" in file.files else file["client"]
    with np.load(VISION / "hand62_scans.npz") as file:
        scans = file["x"], file["y"]
    order = rng.permutation(len(scans[1]))
    test, pool = order[:1240], order[1240:]
    writers = np.unique(strokes[2])
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    for writer in writers[:learners]:
        mine = strokes[2] == writer
        share = rng.dirichlet(np.full(CLASSES, 0.3))
        chance = share[scans[1][pool]]
        drawn = rng.choice(pool, per_learner, replace=False, p=chance / chance.sum())
        parts.append(
            _tensors(
                np.concatenate([strokes[0][mine], scans[0][drawn]]),
                np.concatenate([strokes[1][mine], scans[1][drawn]]),
            )
        )
    held = np.isin(strokes[2], writers[-10:])
    return Pictures(
        parts,
        _tensors(
            np.concatenate([strokes[0][held], scans[0][test]]),
            np.concatenate([strokes[1][held], scans[1][test]]),
        ),
    )


def _tensors(x: NDArray[np.uint8], y: NDArray[np.integer]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(x.astype(np.float32) / 255).unsqueeze(1), torch.from_numpy(y.astype(np.int64))


def train(start: Vector, data: tuple[torch.Tensor, torch.Tensor], *, epochs: int, seed: int) -> Vector:
    """One learner's update: plain SGD with the paper's batch size 16 and learning rate 0.1."""
    net = model()
    write(net, start)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = data
    for _ in range(epochs):
        for batch in torch.randperm(len(y), generator=generator).split(16):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimiser.step()
    return read(net) - start


def read(net: nn.Sequential) -> Vector:
    """The CNN's parameters as one vector."""
    flat: Vector = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy()
    return flat


def write(net: nn.Sequential, vector: Vector) -> None:
    """Set the CNN's parameters."""
    torch.nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), net.parameters())


def accuracy(vector: Vector, data: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The share of pictures that are named rightly."""
    net = model()
    write(net, vector)
    with torch.inference_mode():
        right = sum(
            int((net(x).argmax(1) == y).sum())
            for x, y in zip(data[0].split(256), data[1].split(256), strict=True)
        )
    return right / len(data[1])


def first(seed: int) -> Vector:
    """The model before the first round."""
    torch.manual_seed(seed)
    return read(model())


@dataclass(frozen=True)
class Point:
    """Where a federation stands after a round."""

    round: int
    accuracy: float
    sent: int  # bytes that all learners have sent so far


def rounds(
    data: Pictures, line: str, *, count: int, epochs: int, seed: int
) -> Iterator[tuple[Vector, list[Vector], int]]:
    """After each round: the community model, every learner's update, and the bytes they sent."""
    pipeline, net = parse(line), model()
    layout, vector = layout_of(net), first(seed)
    memories = [pipeline.start(layout) for _ in data.learners]
    for number in range(count):
        round_key = f"seed {seed} round {number}".encode()
        total, updates, sent = pipeline.accumulator(layout, round_key), [], 0
        for i, part in enumerate(data.learners):
            update = train(vector, part, epochs=epochs, seed=seed + 1000 * number + i)
            payload, memories[i] = pipeline.encode(
                update, layout, Key(round_key, f"learner {i}"), memories[i]
            )
            total.add(payload, len(part[1]), f"learner {i}")
            updates.append(update)
            sent += len(payload)
        vector = vector + total.mean()
        yield vector, updates, sent


def curve(data: Pictures, line: str, *, count: int, epochs: int, seed: int) -> list[Point]:
    """Test accuracy against bytes sent, round by round."""
    points, sent = [], 0
    for number, (vector, _, more) in enumerate(rounds(data, line, count=count, epochs=epochs, seed=seed), 1):
        sent += more
        points.append(Point(number, accuracy(vector, data.test), sent))
    return points
