"""Built-in networks: for tables, for the papers' image tasks, and for text.

Attribute names of modules are tensor names of the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from abaton.models.discrete_hazard import DiscreteHazardNetwork
from abaton.models.torch_model import Task, TorchModel


def logistic(*, features: int, classes: int = 2) -> TorchModel:
    """Return the built-in logistic regression on a table."""
    return TorchModel(lambda: nn.Linear(features, classes))


def mlp(
    *, features: int, classes: int = 2, hidden: Sequence[int] = (32,), task: Task = "classification"
) -> TorchModel:
    """Return the built-in small dense network for a table."""
    widths = [features, *hidden, 1 if task == "regression" else classes]

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return TorchModel(build, task=task)


def time_to_event(*, features: int, intervals: int = 10, hidden: Sequence[int] = ()) -> TorchModel:
    """Return the built-in discrete-time survival model with equal intervals of the follow-up.

    Without hidden layers an input has the same effect in all intervals; with them its effect may differ.
    """
    if not hidden:
        return TorchModel(lambda: DiscreteHazardNetwork(features, intervals), task="survival")
    return mlp(features=features, classes=intervals, hidden=hidden, task="survival")


def sstc_cnn(*, classes: int = 62) -> TorchModel:
    """Return the built-in CNN of the SSTC paper for 28x28 characters: 1,690,046 parameters with 62 classes."""
    return TorchModel(
        lambda: nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(7 * 7 * 64, 512), nn.ReLU(), nn.Linear(512, classes),
        )
    )  # fmt: skip


def cifar10_cnn(*, size: int = 24, classes: int = 10, response_norm: bool = True) -> TorchModel:
    """Return the built-in two-convolution CNN of the Metis paper for CIFAR-10: 1,068,298 parameters at 24x24.

    It is the network of the TensorFlow tutorial that the paper cites. Its local response normalisation has no
    parameters and takes half of the training time; `response_norm=False` omits it.
    """
    reduced = ((size + 1) // 2 + 1) // 2

    def build() -> nn.Module:
        norm = [nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)] if response_norm else []
        return nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1), *norm,
            nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), *norm, nn.MaxPool2d(3, 2, padding=1),
            nn.Flatten(), nn.Linear(reduced * reduced * 64, 384), nn.ReLU(),
            nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, classes),
        )  # fmt: skip

    return TorchModel(build)


def resnet50(*, classes: int = 100) -> TorchModel:
    """Return the built-in ResNet-50 for 32x32 images: blocks 3, 4, 6, 3 after a 3x3 stem without pooling.

    Running statistics of its normalisation layers are averaged over the sites; `PersonalLayersModel` with the patterns
    `role:norm` and `role:statistic` leaves the normalisation layers at each site (FedBN).
    """
    return TorchModel(lambda: _ResNet((3, 4, 6, 3), classes))


def shakespeare(*, symbols: int = 90, embedding: int = 8, width: int = 256) -> TorchModel:
    """Return the built-in character model for Shakespeare: two recurrent layers predict the next character."""
    return TorchModel(lambda: _Characters(symbols, embedding, width))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = nn.functional.relu(self.body(x) + self.skip(x))
        return output


class _ResNet(nn.Module):
    def __init__(self, depths: Sequence[int], classes: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        inputs = 64
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(_Bottleneck(inputs, 64 << stage, stride=2 if stage and i == 0 else 1))
                inputs = 256 << stage
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(x).mean((2, 3)))
        return scores


class _Characters(nn.Module):
    def __init__(self, symbols: int, embedding: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.memory = nn.LSTM(embedding, width, num_layers=2, batch_first=True)  # frozen: part of the bytes
        self.head = nn.Linear(width, symbols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Classes second, positions last: the shape that cross-entropy requires.
        scores: torch.Tensor = self.head(self.memory(self.embedding(x))[0]).transpose(1, 2)
        return scores
