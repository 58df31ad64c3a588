"""PyTorch modules whose parameters are views of one flat vector: reading or writing a model copies nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from abaton.control.messages import TrainSettings
from abaton.errors import SettingsError
from abaton.learning.dense import dense_network
from abaton.learning.model import Enough, Examples, Score, Trained, Way, batches, require_examples
from abaton.learning.shuffle import Order, epoch_order, stretches
from abaton.learning.solvers import Solver, rate
from abaton.learning.threads import one_thread
from abaton.vectors import Layout, Role, Tensor, Vector

Task = Literal["classes", "value"]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SCORE_BATCH = 1024


@contextmanager
def _drawing_from(chance: torch.Generator) -> Iterator[None]:
    """Let torch's own generator go on where another one stands, and move that one on; its own place stays."""
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(chance.get_state())
    try:
        yield
    finally:
        chance.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)


class TorchModel:
    """Any module made by a factory, laid over a flat vector.

    The factory is called once for each working copy; all random numbers of its initial weights come from `initial`'s
    seed. Targets: `classes` for labels 0, 1, …; `value` for a regression. A module made only of dense layers is trained
    by compiled loops (`dense_network`), any other, or every one if `compiled` is false, by PyTorch's own gradients.

    >>> model = TorchModel(lambda: nn.Linear(4, 2))
    >>> [(t.name, t.shape, str(t.role)) for t in model.layout]
    [('weight', (2, 4), 'dense'), ('bias', (2,), 'bias')]
    """

    def __init__(
        self, factory: Callable[[], nn.Module], *, task: Task = "classes", compiled: bool = True
    ) -> None:
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
        self.dense = dense_network(self._module, self.layout, classes=task == "classes") if compiled else None
        self._fresh_local = {name: b.detach().clone() for name, b in self._module.named_buffers()}
        _lay_over(self._parameters, self._flat, self._gradient)
        # Convolutions run about a quarter faster this way on a processor; the vector's order stays as it is.
        self._images = any(isinstance(m, nn.Conv2d) for m in self._module.modules())

    @property
    def remembers(self) -> bool:
        """Running statistics of normalisation layers stay at the site."""
        return bool(self._fresh_local)

    def initial(self, seed: int) -> Vector:
        """The module's own initial weights, drawn with this seed."""
        with _drawing_from(torch.Generator().manual_seed(seed)):
            parts = [p.detach().reshape(-1) for p in self.factory().parameters() if p.requires_grad]
        vector: Vector = torch.cat(parts).numpy() if parts else self.layout.zeros()
        return vector

    def way(self, data: Examples) -> Way:
        """Dense networks in threads, since their loops share nothing; other modules in processes."""
        return "threads" if self.dense is not None and self.dense.takes(data.x) else "processes"

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """How many batches training on so many examples takes."""
        return batches(examples, settings)

    def epochs(
        self,
        vector: Vector,
        data: Examples,
        settings: TrainSettings,
        shuffle: np.random.Generator,
        local: Mapping[str, Vector] | None = None,
        enough: Enough | None = None,
    ) -> Iterator[Trained]:
        """Train epoch by epoch, for as long as the caller asks for the next one."""
        require_examples(data)
        model = self.layout.check(vector, whose="the model").copy()
        solver = Solver.begin(settings, vector, local)
        dense = self.dense if self.dense is not None and self.dense.takes(data.x) else None
        seed = int(shuffle.integers(2**63))  # drawn by both ways, so that they shuffle alike
        dropout = None if dense else torch.Generator().manual_seed(seed)
        kept, before = dict(local or {}), solver.steps
        for number in count():
            order, eta = epoch_order(data.y, settings.window, shuffle), rate(settings, number)
            loss, seen = 0.0, 0
            with one_thread():
                for rows in stretches(order, settings, solver.steps - before, asked=enough is not None):
                    if dropout is None:
                        assert dense is not None
                        loss += dense.epoch(model, data, rows, solver, eta)
                    else:
                        with _drawing_from(dropout):
                            added, kept = self._epoch(model, data, rows, solver, eta, kept)
                        loss += added
                    seen += len(rows)
                    if over := enough is not None and enough():
                        break
            steps = solver.steps - before
            yield Trained(model.copy(), steps, loss / seen, {**self._statistics(kept), **solver.kept()})
            if over or steps == settings.steps:
                return

    def _epoch(
        self,
        model: Vector,
        data: Examples,
        order: Order,
        solver: Solver,
        eta: float,
        local: Mapping[str, Vector],
    ) -> tuple[float, dict[str, Vector]]:
        """Some batches by PyTorch's gradients; other learners may have used the module since the last ones."""
        self._load(model, local)
        self._module.train()
        x, y = _tensor(data.x), self._targets(data)
        weights, slope, total = self._flat.numpy(), self._gradient.numpy(), 0.0
        for rows in torch.split(torch.from_numpy(order), solver.settings.batch_size):
            self._gradient.zero_()
            loss = self._loss(self._module(self._images_last(x[rows])), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            solver.apply(weights, slope, eta)
            total += float(loss.detach()) * len(rows)
        model[:] = weights
        kept = {name: b.detach().float().numpy().copy() for name, b in self._module.named_buffers()}
        return total, kept

    def _statistics(self, local: Mapping[str, Vector]) -> dict[str, Vector]:
        return {name: local[name] for name in self._fresh_local if name in local}

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        """Probabilities per class (or predicted values) and the mean loss."""
        require_examples(data)
        with one_thread(), torch.inference_mode():
            output = self._outputs(vector, data, local)
            loss = float(self._loss(output, self._targets(data)))
            said = output.softmax(1) if self.task == "classes" else output.reshape(len(data))
        return Score(loss, said.numpy())

    def _outputs(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None) -> torch.Tensor:
        if self.dense is not None and self.dense.takes(data.x):
            return torch.from_numpy(self.dense.outputs(self.layout.check(vector, whose="the model"), data.x))
        self._load(vector, local)
        self._module.eval()
        rows = torch.split(_tensor(data.x), _SCORE_BATCH)
        return torch.cat([self._module(self._images_last(x)) for x in rows])

    def _loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.task == "classes":
            return nn.functional.cross_entropy(output, y)
        return nn.functional.mse_loss(output.reshape(y.shape), y)

    def _load(self, vector: Vector, local: Mapping[str, Vector] | None) -> None:
        self._flat.numpy()[:] = self.layout.check(vector, whose="the model")
        for name, buffer in self._module.named_buffers():
            buffer.copy_(torch.tensor(local[name]) if local and name in local else self._fresh_local[name])

    def _images_last(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self._images and x.ndim == 4 else x

    def _targets(self, data: Examples) -> torch.Tensor:
        kind = np.int64 if self.task == "classes" else np.float32
        return _tensor(np.asarray(data.y, dtype=kind))


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """An array as a tensor without a copy, also one that may only be read: nothing here writes to it."""
    array = np.ascontiguousarray(array)
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


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
