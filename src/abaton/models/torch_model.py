"""PyTorch modules whose parameters are views of one flat vector: reading or writing a model copies nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from abaton.errors import SettingsError
from abaton.kernels import Layout, Role, Tensor, Vector
from abaton.metrics.predictions import Score
from abaton.models.base import Examples, Lesson, Model, Trained, Way, require_examples
from abaton.models.code_digest import own_code
from abaton.models.dense_network import dense_network
from abaton.models.discrete_hazard import event_chance, hazard_loss
from abaton.models.optimisers import Solver, rate
from abaton.models.sampling import Order, epoch_order, stretches
from abaton.models.thread_limits import one_thread
from abaton.training import TrainSettings

Task = Literal["classes", "value", "time"]

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


class TorchModel(Model):
    """Any module made by a factory, laid over a flat vector.

    The factory is called once for each working copy; all random numbers of its initial weights come from `initial`'s
    seed. Targets: `classes` for labels 0, 1, …; `value` for a regression; `time` for how long it takes until something
    happens (`learning.hazards`). A module made only of dense layers is trained by compiled loops (`dense_network`), any
    other, one that learns times, or every one if `compiled` is false, by PyTorch's own gradients.

    >>> model = TorchModel(lambda: nn.Linear(4, 2))
    >>> [(t.name, t.shape, str(t.role)) for t in model.layout]
    [('weight', (2, 4), 'dense'), ('bias', (2,), 'bias')]
    """

    def __init__(
        self, factory: Callable[[], nn.Module], *, task: Task = "classes", compiled: bool = True
    ) -> None:
        if task not in get_args(Task):
            raise SettingsError(
                f"the task is '{task}'", where="model", remedy="use 'classes', 'value' or 'time'"
            )
        self.factory, self.task, self._compiled = factory, task, compiled
        self._module = factory()
        self._own = own_code(self._module.modules(), settings=True)  # now: a module may count what it does
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        foreign = [name for name, p in self._module.named_parameters() if p.dtype != torch.float32]
        if foreign:
            raise SettingsError(
                f"parameter '{foreign[0]}' is not float32", where="model", remedy="use float32 parameters"
            )
        self.layout = layout_of(self._module)
        self._flat = torch.zeros(self.layout.size)
        loops = compiled and task != "time"
        self.dense = dense_network(self._module, self.layout, classes=task == "classes") if loops else None
        self._fresh_local = {name: b.detach().clone() for name, b in self._module.named_buffers()}
        # Convolutions run about a third faster with channels last on a processor; outside, the vector's order stays.
        images = [m.weight for m in self._module.modules() if isinstance(m, nn.Conv2d)]
        self._images = bool(images)
        _lay_over(self._parameters, self._flat, last={id(weight) for weight in images})

    @property
    def description(self) -> str:
        """The module in PyTorch's own words, what it learns, how it is trained, and a digest of your own code."""
        words = f"{' '.join(str(self._module).split())}, {self.task}" + ("" if self.dense else ", by PyTorch")
        return f"{words}, code {self._own}" if self._own else words

    def ready(self, vector: Vector) -> nn.Module:
        """A module of its own with these weights, to be used: its output is one number a class, or the value."""
        made, source = self.factory(), torch.from_numpy(self.layout.check(vector, whose="the model").copy())
        trained = [p for p in made.parameters() if p.requires_grad]
        with torch.no_grad():
            for parameter, part in zip(trained, _parts(trained, source), strict=True):
                parameter.copy_(part)
        return made.eval()

    def __reduce__(self) -> tuple[Callable[..., TorchModel], tuple[Any, ...]]:
        """What a cluster's own way of moving objects takes along: the factory, not the weights."""
        return _again, (self.factory, self.task, self._compiled)

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

    def epochs(self, vector: Vector, data: Examples, lesson: Lesson) -> Iterator[Trained]:
        """Train epoch by epoch, for as long as the caller asks for the next one."""
        require_examples(data)
        settings, shuffle, local, enough = lesson.settings, lesson.shuffle, lesson.local, lesson.enough
        model = self.layout.check(vector, whose="the model")
        dense = self.dense if self.dense is not None and self.dense.takes(data.x) else None
        solver = Solver.begin(settings, vector if dense else self._anchor(vector, settings), local)
        seed = int(shuffle.bit_generator.random_raw()) >> 1  # drawn by both ways, so that they shuffle alike
        dropout = None if dense else torch.Generator().manual_seed(seed)
        kept, before = dict(local), solver.steps
        for number in count():
            order, eta = epoch_order(data.y, settings.window, shuffle), rate(settings, number)
            loss, seen, model = 0.0, 0, model.copy()
            with one_thread:
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
            yield Trained(model, steps, loss / seen, {**self._statistics(kept), **solver.kept()})
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
        weights, total = self._flat.numpy(), 0.0
        for rows in torch.split(torch.from_numpy(order), solver.settings.batch_size):
            for parameter in self._parameters:
                parameter.grad = None  # PyTorch then hands its own result over instead of adding to zeros
            loss = self._loss(self._module(self._images_last(x[rows])), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            solver.apply(weights, [_slope(parameter) for parameter in self._parameters], eta)
            total += float(loss.detach()) * len(rows)
        for part, parameter in zip(self._shaped(model), self._parameters, strict=True):
            part.copy_(parameter.detach())
        kept = {name: b.detach().float().numpy().copy() for name, b in self._module.named_buffers()}
        return total, kept

    def _anchor(self, start: Vector, settings: TrainSettings) -> Vector:
        """The start of a task as its weights lie in memory, the order the solver works in; only FedProx looks at it."""
        if not self._images or not settings.proximal:
            return start
        self._load(start, None)
        return self._flat.numpy().copy()

    def _shaped(self, vector: Vector) -> Iterator[torch.Tensor]:
        return _parts(self._parameters, _tensor(vector))

    def _statistics(self, local: Mapping[str, Vector]) -> dict[str, Vector]:
        return {name: local[name] for name in self._fresh_local if name in local}

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        """Probabilities per class (or predicted values, or chances that it happens in time) and the mean loss."""
        require_examples(data)
        with one_thread, torch.inference_mode():
            output = self._outputs(vector, data, local)
            loss = float(self._loss(output, self._targets(data)))
            said = self._said(output)
        return Score(loss, said.numpy())

    def _said(self, output: torch.Tensor) -> torch.Tensor:
        if self.task == "time":
            return event_chance(output)
        return output.softmax(1) if self.task == "classes" else output.reshape(len(output))

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
        if self.task == "time":
            return hazard_loss(output, y)
        return nn.functional.mse_loss(output.reshape(y.shape), y)

    def _load(self, vector: Vector, local: Mapping[str, Vector] | None) -> None:
        self.layout.check(vector, whose="the model")
        for parameter, part in zip(self._parameters, self._shaped(vector), strict=True):
            parameter.data.copy_(part)
        for name, buffer in self._module.named_buffers():
            buffer.copy_(torch.tensor(local[name]) if local and name in local else self._fresh_local[name])

    def _images_last(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self._images and x.ndim == 4 else x

    def _targets(self, data: Examples) -> torch.Tensor:
        kind = np.int64 if self.task == "classes" else np.float32
        made = np.asarray(data.y, dtype=kind)
        if self.task == "time" and made.ndim == 1:  # new people, of whom nothing is known yet
            made = np.zeros((len(made), 2), np.float32)
        return _tensor(made)


def _again(factory: Callable[[], nn.Module], task: Task, compiled: bool) -> TorchModel:  # noqa: FBT001
    return TorchModel(factory, task=task, compiled=compiled)


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


def _lay_over(parameters: list[nn.Parameter], flat: torch.Tensor, *, last: Container[int]) -> None:
    """Make each parameter a view of its part of the flat vector, some with their channels last."""
    for parameter, values in zip(parameters, _parts(parameters, flat), strict=True):
        if id(parameter) in last:
            outputs, inputs, *kernel = parameter.shape
            parameter.data = values.view(outputs, *kernel, inputs).movedim(-1, 1)
        else:
            parameter.data = values


def _slope(parameter: nn.Parameter) -> Vector:
    """A parameter's gradient in the order in which the parameter lies in memory; zeros if the loss did not use it."""
    if parameter.grad is None:
        return np.zeros(parameter.numel(), np.float32)
    gradient = parameter.grad.to_dense()
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter).copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,)).numpy()


def _parts(parameters: list[nn.Parameter], flat: torch.Tensor) -> Iterator[torch.Tensor]:
    end = 0
    for parameter in parameters:
        start, end = end, end + parameter.numel()
        yield flat[start:end].view(parameter.shape)
