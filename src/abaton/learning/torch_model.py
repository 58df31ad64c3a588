"""PyTorch modules whose parameters are views of one flat vector: reading or writing a model copies nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import nn

from abaton.control.messages import TrainSettings
from abaton.errors import SettingsError
from abaton.learning.model import Examples, Score, Trained, batches, require_examples
from abaton.vectors import Layout, Role, Tensor, Vector

Task = Literal["classes", "value"]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SCORE_BATCH = 1024


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small models train fastest, and come out the same, on one thread; parallel work is done over learners."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's own generator with this seed, and afterwards as it was."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


class TorchModel:
    """Any module made by a factory, laid over a flat vector.

    The factory is called once for each working copy; all random numbers of its initial weights come from `initial`'s
    seed. Targets: `classes` for labels 0, 1, …; `value` for a regression.

    >>> model = TorchModel(lambda: nn.Linear(4, 2))
    >>> [(t.name, t.shape, str(t.role)) for t in model.layout]
    [('weight', (2, 4), 'dense'), ('bias', (2,), 'bias')]
    """

    def __init__(self, factory: Callable[[], nn.Module], *, task: Task = "classes") -> None:
        if task not in ("classes", "value"):
            raise SettingsError(f"the task is '{task}'", where="model", remedy="use 'classes' or 'value'")
        self.factory, self.task = factory, task
        self._module = factory()
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        foreign = [name for name, p in self._module.named_parameters() if p.dtype != torch.float32]
        if foreign:
            raise SettingsError(
                f"parameter '{foreign[0]}' is not float32", where="model", remedy="use float32 parameters"
            )
        self.layout = layout_of(self._module)
        self._flat = torch.zeros(self.layout.size)
        self._gradient = torch.zeros(self.layout.size)
        self._fresh_local = {name: b.detach().clone() for name, b in self._module.named_buffers()}
        _lay_over(self._parameters, self._flat, self._gradient)
        # Convolutions run about a quarter faster this way on a processor; the vector's order stays as it is.
        self._images = any(isinstance(m, nn.Conv2d) for m in self._module.modules())

    def initial(self, seed: int) -> Vector:
        """The module's own initial weights, drawn with this seed."""
        with _seeded(seed):
            parts = [p.detach().reshape(-1) for p in self.factory().parameters() if p.requires_grad]
        vector: Vector = torch.cat(parts).numpy() if parts else self.layout.zeros()
        return vector

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """How many batches training on so many examples takes."""
        return batches(examples, settings)

    @_one_thread()
    def train(
        self,
        vector: Vector,
        data: Examples,
        settings: TrainSettings,
        shuffle: np.random.Generator,
        local: Mapping[str, Vector] | None = None,
    ) -> Trained:
        """Train by stochastic gradient descent with momentum (Metis, Eq. 2) on shuffled batches."""
        require_examples(data)
        self._load(vector, local)
        self._module.train()
        x, y = self._inputs(data), self._targets(data)
        velocity = torch.zeros_like(self._flat) if settings.momentum else None
        count, total, loss_sum = 0, len(data), 0.0
        with _seeded(int(shuffle.integers(2**63))):  # dropout layers draw from torch's own generator
            for _ in range(settings.epochs):
                loss_sum = 0.0
                order = torch.from_numpy(shuffle.permutation(total))
                for rows in torch.split(order, settings.batch_size):
                    loss_sum += self._descend(x[rows], y[rows], settings, velocity) * len(rows)
                    count += 1
        kept = {name: b.detach().float().numpy().copy() for name, b in self._module.named_buffers()}
        return Trained(self._flat.numpy().copy(), count, loss_sum / total, kept)

    @_one_thread()
    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        """Probabilities per class (or predicted values) and the mean loss."""
        require_examples(data)
        self._load(vector, local)
        self._module.eval()
        outputs, loss = [], 0.0
        with torch.inference_mode():
            for x, y in zip(
                torch.split(self._inputs(data), _SCORE_BATCH),
                torch.split(self._targets(data), _SCORE_BATCH),
                strict=True,
            ):
                output = self._module(x)
                loss += float(self._loss(output, y)) * len(x)
                outputs.append(output.softmax(1) if self.task == "classes" else output.reshape(len(x)))
        return Score(loss / len(data), torch.cat(outputs).numpy())

    def _descend(
        self, x: torch.Tensor, y: torch.Tensor, settings: TrainSettings, velocity: torch.Tensor | None
    ) -> float:
        self._gradient.zero_()
        loss = self._loss(self._module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        direction = self._gradient
        if velocity is not None:
            direction = velocity.mul_(settings.momentum).add_(self._gradient)
        with torch.no_grad():
            self._flat.add_(direction, alpha=-settings.learning_rate)
        return float(loss.detach())

    def _loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.task == "classes":
            return nn.functional.cross_entropy(output, y)
        return nn.functional.mse_loss(output.reshape(y.shape), y)

    def _load(self, vector: Vector, local: Mapping[str, Vector] | None) -> None:
        self._flat.copy_(torch.from_numpy(self.layout.check(vector, whose="the model")))
        for name, buffer in self._module.named_buffers():
            buffer.copy_(
                torch.from_numpy(local[name]) if local and name in local else self._fresh_local[name]
            )

    def _inputs(self, data: Examples) -> torch.Tensor:
        x = torch.from_numpy(np.ascontiguousarray(data.x))
        return x.contiguous(memory_format=torch.channels_last) if self._images and x.ndim == 4 else x

    def _targets(self, data: Examples) -> torch.Tensor:
        kind = np.int64 if self.task == "classes" else np.float32
        return torch.from_numpy(np.ascontiguousarray(data.y, dtype=kind))


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module's trainable parameters, in the module's own order."""
    owner = {id(p): (m, name) for m in module.modules() for name, p in m.named_parameters(recurse=False)}
    return Layout(
        Tensor(name, tuple(p.shape), _role(*owner[id(p)], p.ndim))
        for name, p in module.named_parameters()
        if p.requires_grad
    )


def _role(module: nn.Module, name: str, dimensions: int) -> Role:
    if isinstance(module, _NORMS):
        return Role.NORM
    if dimensions == 1 and "bias" in name:
        return Role.BIAS
    if isinstance(module, nn.Embedding):
        return Role.EMBEDDING
    if isinstance(module, _CONVS):
        return Role.CONV
    if isinstance(module, nn.Linear | nn.RNNBase) and dimensions == 2:
        return Role.DENSE
    return Role.OTHER


def _lay_over(parameters: list[nn.Parameter], flat: torch.Tensor, gradient: torch.Tensor) -> None:
    """Make each parameter, and its gradient, a view of its part of the flat vectors."""
    for parameter, values, slopes in zip(
        parameters, _parts(parameters, flat), _parts(parameters, gradient), strict=True
    ):
        parameter.data = values
        parameter.grad = slopes


def _parts(parameters: list[nn.Parameter], flat: torch.Tensor) -> Iterator[torch.Tensor]:
    end = 0
    for parameter in parameters:
        start, end = end, end + parameter.numel()
        yield flat[start:end].view(parameter.shape)
