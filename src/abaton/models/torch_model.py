"""PyTorch modules as models; their trained parameters are views of one flat vector, without copies.

The vector is the whole model: trained parameters, then buffers with statistics (the running mean and variance of
BatchNorm), then frozen parameters (`requires_grad=False`) and constant buffers. The statistics of a training task start
from those of the community model, and are aggregated by the weighted mean, as is usual for FedAvg: the variance is the
mean of the sites' variances, without the variance between their means.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from abaton.errors import SettingsError
from abaton.layout import Layout, Tensor, TensorRole, Vector
from abaton.metrics.predictions import ModelScore
from abaton.models.base import Examples, Model, ParallelMode, TrainingPlan, TrainingResult, require_examples
from abaton.models.code_digest import user_code_digest
from abaton.models.dense_network import as_dense_network
from abaton.models.discrete_hazard import event_probability, hazard_loss
from abaton.models.optimisers import LocalOptimiser, learning_rate_at
from abaton.models.sampling import Order, epoch_batches, epoch_order
from abaton.models.thread_limits import one_thread
from abaton.training import TrainSettings

Task = Literal["classification", "regression", "survival"]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)
_BATCH_NORMS = (nn.modules.batchnorm._NormBase,)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SCORE_BATCH = 1024


@contextmanager
def _use_generator(generator: torch.Generator) -> Iterator[None]:
    """Use a generator as torch's default generator within the context; the default state is restored."""
    saved_state = torch.default_generator.get_state()
    torch.default_generator.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(saved_state)


class TorchModel(Model):
    """PyTorch module from a factory, as a model on a flat vector.

    The factory is called for each copy; the seed of `initial` determines the initial weights, the frozen ones too. A
    module instead of a factory, or a factory that returns one module again, is the initial model itself. Targets:
    `classification` for labels 0, 1, …; `regression` for values; `survival` for event times (`discrete_hazard`). A
    dense network is trained by compiled kernels (`dense_network`); other modules, survival models, and all modules if
    `compiled` is false, are trained by PyTorch.

    >>> model = TorchModel(lambda: nn.Linear(4, 2))
    >>> [(t.name, t.shape, str(t.role)) for t in model.layout]
    [('weight', (2, 4), 'dense'), ('bias', (2,), 'bias')]
    """

    def __init__(
        self,
        factory: Callable[[], nn.Module] | nn.Module,
        *,
        task: Task = "classification",
        compiled: bool = True,
    ) -> None:
        if task not in get_args(Task):
            raise SettingsError(
                f"the task is '{task}'",
                where="model",
                remedy="use 'classification', 'regression' or 'survival'",
            )
        self.factory, self.task, self._compiled = _module_factory(factory), task, compiled
        self._module = self.factory()
        self._code_digest = user_code_digest(
            self._module.modules(), settings=True
        )  # computed now: a module may have counters
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        unsupported = [name for name, p in self._module.named_parameters() if p.dtype != torch.float32]
        if unsupported:
            raise SettingsError(
                f"parameter '{unsupported[0]}' is not float32", where="model", remedy="use float32 parameters"
            )
        self.layout = layout_of(self._module)
        self._flat = torch.zeros(self.layout.trained.size)
        use_kernels = compiled and task != "survival"
        self.dense = (
            as_dense_network(self._module, self.layout, is_classification=task == "classification")
            if use_kernels
            else None
        )
        # Convolutions are about a third faster with channels last on a CPU; the flat vector's order does not change.
        image_weights = [m.weight for m in self._module.modules() if isinstance(m, nn.Conv2d)]
        self._has_images = bool(image_weights)
        _bind_to_vector(self._parameters, self._flat, channels_last={id(weight) for weight in image_weights})
        self._norms = [
            m for m in self._module.modules() if isinstance(m, _BATCH_NORMS) and m.track_running_stats
        ]
        for norm in self._norms:
            norm.register_forward_pre_hook(_use_statistics_of_single_values)

    @property
    def description(self) -> str:
        """Representation of the module by PyTorch, its task, how it is trained, and a digest of user-defined code."""
        text = f"{' '.join(str(self._module).split())}, {self.task}" + ("" if self.dense else ", by PyTorch")
        return f"{text}, code {self._code_digest}" if self._code_digest else text

    def native_model(self, vector: Vector) -> nn.Module:
        """Return a new PyTorch module with this whole model; its output is a logit per class, or the value."""
        module = self.factory()
        _load_vector(module, self.layout, vector)
        return module.eval()

    def __reduce__(self) -> tuple[Callable[..., TorchModel], tuple[Any, ...]]:
        """Pickle the factory of the PyTorch module, not the weights."""
        return _rebuild, (self.factory, self.task, self._compiled)

    def initial(self, seed: int) -> Vector:
        """Return the PyTorch module's initial model for a seed, with statistics and frozen tensors."""
        with _use_generator(torch.Generator().manual_seed(seed)):
            tensors = _named_tensors(self.factory())
        vector = self.layout.zeros()
        for name, view in self.layout.views(vector).items():
            view[...] = tensors[name].numpy()
        return vector

    def parallel_mode(self, data: Examples) -> ParallelMode:
        """Return threads for dense networks, whose kernels release the GIL, processes for other PyTorch modules."""
        return "threads" if self.dense is not None and self.dense.accepts(data.x) else "processes"

    def epochs(self, vector: Vector, data: Examples, plan: TrainingPlan) -> Iterator[TrainingResult]:
        """Train a PyTorch module epoch by epoch, by compiled kernels if it is a dense network."""
        require_examples(data)
        settings, rng, local, should_stop = plan.settings, plan.rng, plan.local, plan.should_stop
        model = self.layout.check(vector, label="the model")
        dense = self.dense if self.dense is not None and self.dense.accepts(data.x) else None
        optimiser = LocalOptimiser.create(
            settings, vector if dense else self._anchor(vector, settings), local
        )
        seed = (
            int(rng.bit_generator.random_raw()) >> 1
        )  # drawn in both cases, so that the order of rows is the same
        dropout = None if dense else torch.Generator().manual_seed(seed)
        first_step = optimiser.steps
        for epoch in count():
            order, learning_rate = (
                epoch_order(data.y, settings.shuffle_window, rng),
                learning_rate_at(settings, epoch),
            )
            loss, seen, model = 0.0, 0, model.copy()
            with one_thread:
                for rows in epoch_batches(
                    order, settings, optimiser.steps - first_step, by_batch=should_stop is not None
                ):
                    if dropout is None:
                        assert dense is not None
                        loss += dense.epoch(model, data, rows, optimiser, learning_rate)
                    else:
                        with _use_generator(dropout):
                            loss += self._epoch(model, data, rows, optimiser, learning_rate, first_step)
                    seen += len(rows)
                    if is_over := should_stop is not None and should_stop():
                        break
            steps = optimiser.steps - first_step
            yield TrainingResult(model, steps, loss / seen, optimiser.state())
            if is_over or steps == settings.steps:
                return

    def _epoch(
        self,
        model: Vector,
        data: Examples,
        order: Order,
        optimiser: LocalOptimiser,
        learning_rate: float,
        first_step: int,
    ) -> float:
        """Train on batches by PyTorch; load the model first, since other learners may have used the module."""
        self._load(model)
        self._module.train()
        for norm in self._norms:
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.fill_(optimiser.steps - first_step)
        x, y, row_weights = _tensor(data.x), self._targets(data), _row_weights(data)
        weights, total = self._flat.numpy(), 0.0
        for rows in torch.split(torch.from_numpy(order), optimiser.settings.batch_size):
            for parameter in self._parameters:
                parameter.grad = None  # PyTorch then assigns the gradient instead of adding it to zeros
            for norm in self._norms:  # after a batch of one row, see the hook
                norm.training = True
            batch_weights = None if row_weights is None else row_weights[rows]
            loss = self._loss(self._module(self._channels_last(x[rows])), y[rows], batch_weights)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.apply(weights, [_gradient(parameter) for parameter in self._parameters], learning_rate)
            total += float(loss.detach()) * len(rows)
        views, tensors = self.layout.views(model), _named_tensors(self._module)
        for changed in chain(self.layout.trained, self.layout.statistics):
            views[changed.name][...] = tensors[changed.name].numpy()
        return total

    def _anchor(self, start: Vector, settings: TrainSettings) -> Vector:
        """Return the start of trained PyTorch weights in their memory order, for the proximal term."""
        if not self._has_images or not settings.proximal_mu:
            return start[: self.layout.trained.size]
        self._load(start)
        return self._flat.numpy().copy()

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> ModelScore:
        """Score a PyTorch module: the mean loss, and class probabilities, values or event probabilities."""
        require_examples(data)
        with one_thread, torch.inference_mode():
            output = self._outputs(vector, data)
            loss = float(self._loss(output, self._targets(data), _row_weights(data)))
            predictions = self._predictions(output)
        return ModelScore(loss, predictions.numpy())

    def _predictions(self, output: torch.Tensor) -> torch.Tensor:
        if self.task == "survival":
            return event_probability(output)
        return output.softmax(1) if self.task == "classification" else output.reshape(len(output))

    def _outputs(self, vector: Vector, data: Examples) -> torch.Tensor:
        if self.dense is not None and self.dense.accepts(data.x):
            return torch.from_numpy(self.dense.outputs(self.layout.check(vector, label="the model"), data.x))
        self._load(vector)
        self._module.eval()
        rows = torch.split(_tensor(data.x), _SCORE_BATCH)
        return torch.cat([self._module(self._channels_last(x)) for x in rows])

    def _loss(
        self, output: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the mean loss of a PyTorch module's outputs, weighted by row."""
        if self.task == "survival":
            if weights is not None:
                raise SettingsError(
                    "survival models have no weights of rows", where="weights", remedy="remove the weights"
                )
            return hazard_loss(output, y)
        reduction = "mean" if weights is None else "none"
        if self.task == "classification":
            losses = nn.functional.cross_entropy(output, y, reduction=reduction)
        else:
            losses = nn.functional.mse_loss(output.reshape(y.shape), y, reduction=reduction)
        return (
            losses
            if weights is None
            else (losses.flatten(1).mean(1) if losses.ndim > 1 else losses) @ weights / len(weights)
        )

    def _load(self, vector: Vector) -> None:
        _load_vector(self._module, self.layout, vector)

    def _channels_last(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self._has_images and x.ndim == 4 else x

    def _targets(self, data: Examples) -> torch.Tensor:
        dtype = np.int64 if self.task == "classification" else np.float32
        targets = np.asarray(data.y, dtype=dtype)
        if self.task == "survival" and targets.ndim == 1:  # new subjects without follow-up
            targets = np.zeros((len(targets), 2), np.float32)
        return _tensor(targets)


def _row_weights(data: Examples) -> torch.Tensor | None:
    """Return the examples' weights, with a mean of 1, for a PyTorch loss."""
    weights = data.relative_weights
    return None if weights is None else torch.from_numpy(weights.astype(np.float32))


class _ModuleCopies:
    """Factory of copies of one PyTorch module, such as a trained one."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.module)


def _module_factory(factory: Callable[[], nn.Module] | nn.Module) -> Callable[[], nn.Module]:
    """Return a factory of separate PyTorch modules: models change their module in place."""
    if isinstance(factory, nn.Module):
        return _ModuleCopies(copy.deepcopy(factory))
    if isinstance(factory, _ModuleCopies):
        return factory
    module = factory()
    return _ModuleCopies(copy.deepcopy(module)) if module is factory() else factory


def _rebuild(factory: Callable[[], nn.Module], task: Task, compiled: bool) -> TorchModel:  # noqa: FBT001
    return TorchModel(factory, task=task, compiled=compiled)


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return an array as a PyTorch tensor without a copy, also a read-only array, since it is not written."""
    array = np.ascontiguousarray(array)
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def layout_of(module: nn.Module) -> Layout:
    """Return the layout of a PyTorch module: trained parameters, statistics, frozen tensors, in the module's order.

    Tied parameters are one tensor. Floating buffers may change during training; integers and booleans are constants. A
    buffer with values that are not finite (a mask) is defined by the module's code, and BatchNorm's counter of batches
    begins with each task; both are not in the layout.
    """
    trained, statistics, frozen = list[Tensor](), list[Tensor](), list[Tensor]()
    owner = {id(p): (m, name) for m in module.modules() for name, p in m.named_parameters(recurse=False)}
    for name, parameter in module.named_parameters():
        role = _role(*owner[id(parameter)], parameter.ndim) if parameter.requires_grad else TensorRole.FROZEN
        (trained if parameter.requires_grad else frozen).append(Tensor(name, tuple(parameter.shape), role))
    counters = {id(m.num_batches_tracked) for m in module.modules() if isinstance(m, _BATCH_NORMS)}
    for name, buffer in module.named_buffers():
        if id(buffer) in counters or (buffer.is_floating_point() and not buffer.isfinite().all()):
            continue
        if buffer.is_floating_point():
            statistics.append(Tensor(name, tuple(buffer.shape), TensorRole.STATISTIC))
        else:
            _check_constant(name, buffer)
            frozen.append(Tensor(name, tuple(buffer.shape), TensorRole.FROZEN))
    return Layout(chain(trained, statistics, frozen))


def _check_constant(name: str, buffer: torch.Tensor) -> None:
    """Raise an error for a constant buffer of a PyTorch module with values that float32 does not have."""
    if buffer.is_complex() or not torch.equal(buffer.float().to(buffer.dtype), buffer):
        raise SettingsError(
            f"buffer '{name}' has values that float32 does not have",
            where="model",
            remedy="use integers up to 16,777,216, or compute it in 'forward'",
        )


def _named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a PyTorch module's parameters and buffers by name; tied ones once."""
    return {name: t.detach() for name, t in chain(module.named_parameters(), module.named_buffers())}


def _load_vector(module: nn.Module, layout: Layout, vector: Vector) -> None:
    """Copy a model into a PyTorch module; a variance that rounding made negative becomes 0."""
    tensors = _named_tensors(module)
    for name, view in layout.views(layout.check(vector, label="the model")).items():
        tensors[name].copy_(_tensor(view))
    for norm in module.modules():
        if isinstance(norm, _BATCH_NORMS) and norm.running_var is not None:
            norm.running_var.clamp_(min=0)


def _use_statistics_of_single_values(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Let a PyTorch normalisation layer use its statistics for a batch of one row, which has no variance."""
    if norm.training and inputs[0].numel() == inputs[0].shape[1]:
        norm.training = False


def _role(module: nn.Module, name: str, ndim: int) -> TensorRole:
    if isinstance(module, _NORMS):
        return TensorRole.NORM
    if ndim == 1 and "bias" in name:
        return TensorRole.BIAS
    if isinstance(module, nn.Embedding):
        return TensorRole.EMBEDDING
    if isinstance(module, _CONVS):
        return TensorRole.CONV
    if isinstance(module, nn.Linear | nn.RNNBase) and ndim == 2:
        return TensorRole.DENSE
    return TensorRole.OTHER


def _bind_to_vector(
    parameters: list[nn.Parameter], flat: torch.Tensor, *, channels_last: Container[int]
) -> None:
    """Make each PyTorch parameter a view of its segment of the flat vector, some with channels last."""
    for parameter, values in zip(parameters, _tensor_views(parameters, flat), strict=True):
        if id(parameter) in channels_last:
            outputs, inputs, *kernel = parameter.shape
            parameter.data = values.view(outputs, *kernel, inputs).movedim(-1, 1)
        else:
            parameter.data = values


def _gradient(parameter: nn.Parameter) -> Vector:
    """Return a PyTorch parameter's gradient in its memory order; zeros if the loss does not depend on it."""
    if parameter.grad is None:
        return np.zeros(parameter.numel(), np.float32)
    gradient = parameter.grad.to_dense()
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter).copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,)).numpy()


def _tensor_views(parameters: list[nn.Parameter], flat: torch.Tensor) -> Iterator[torch.Tensor]:
    end = 0
    for parameter in parameters:
        start, end = end, end + parameter.numel()
        yield flat[start:end].view(parameter.shape)
