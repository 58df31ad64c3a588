"""Federations of the lab: a data set partitioned over fast and slow learners, a strategy, and a simulated duration.

`ExperimentSettings` are shared by all strategies; a recipe adds the strategy and the seed, as JSON values in the
store. Nothing is tuned per strategy. Strategies differ as in the paper: those that weight by validation hold
out 5 % of each learner's data, the others train on all of it, and local training is that of the named strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.controller import Strategy, SynchronousScheduler, ValidationWeighting, strategies
from abaton.engines import MachineProfile
from abaton.errors import SettingsError
from abaton.federation import Federation, LocalSite, RunMetadata
from abaton.lab.byzantine_learners import apply_attack
from abaton.lab.datasets import DataSet, DataSetColumns, load
from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
from abaton.lab.image_transforms import ImagePreprocessing, prepare
from abaton.lab.machine_profiles import MachineEnvironment, heterogeneous
from abaton.lab.partition import LearnerSplit, Partition, by_group, partition_data, split_learners
from abaton.layout import Vector
from abaton.models import Examples, Model
from abaton.study.components import ROBUST_AGGREGATION, SERVER_OPTIMISER, build_named, component_spec
from abaton.training import TrainSettings

VALIDATION_FRACTION = 0.05  # as in the paper
_MAX_VERSIONS = 10**9  # a run ends by its simulated time
_SLACK = 1.001  # the last round ends at a sum of floats


def federation(
    *,
    strategy: str,
    seed: int,
    task: Mapping[str, Any],
    environment: Mapping[str, Any],
    training: Mapping[str, Any],
    rounds: float,
    metric: str,
    include_own_validation: bool,
    server_optimiser: str,
    robust_aggregation: str,
    byzantine: Mapping[str, str],
    codec: str,
    downlink: str | None,
) -> Federation:
    """Build the federation of a recipe's settings for the lab."""
    setting = ExperimentSettings(
        ExperimentTask(**task),
        ExperimentEnvironment(**environment),
        TrainSettings(**training),
        rounds,
        metric,
        include_own_validation,
        server_optimiser,
        robust_aggregation,
        {int(index): kind for index, kind in byzantine.items()},
        codec,
        downlink,
    )
    return build_from_settings(setting, strategy, seed)


def build_from_settings(setting: ExperimentSettings, strategy_name: str, seed: int) -> Federation:
    """Build a federation that is ready to run from the settings of an experiment."""
    if not setting.rounds > 0:
        raise SettingsError(f"rounds is {setting.rounds}", where="setting", remedy="use a number above 0")
    data = data_set_for(setting.task)
    partition = _partition(data, setting, seed)
    environment = replace(setting.environment, learners=len(partition.learners))
    setting = replace(setting, environment=environment)
    machines = _machines(partition, environment)
    model = network(setting.task, data)
    strategy = _strategy(setting, strategy_name, seed, _seconds(setting, partition, machines, model))
    validation_fraction = VALIDATION_FRACTION if strategy.validation else 0.0
    split = split_learners(
        data.train,
        data.labels,
        partition,
        validation=validation_fraction,
        rng=np.random.default_rng([seed, 5]),
    )
    split, models = _make_byzantine(split, model, partition, setting.byzantine, len(data.classes))

    # Sampled versions are evaluated after the run: evaluating all would take longer than the training.
    local_sites = {
        name: LocalSite(
            learner_split.train,
            learner_split.validation if validation_fraction else None,
            machines.profiles[name],
            models.get(name),
        )
        for name, learner_split in split.items()
    }
    recipe = setting.recipe(strategy_name, seed)
    facts = {"partition": summary(partition, data.classes, machines)}
    metadata = RunMetadata(
        recipe["name"], recipe["settings"], study_facts=facts, deployment={"classes": list(data.classes)}
    )
    return Federation(
        model, local_sites, strategy, setting.codec, downlink=setting.downlink, metadata=metadata
    )


def suitable_strategies(setting: ExperimentSettings) -> list[str]:
    """Return the paper's strategies for which a federation can be built with a setting.

    Raises:
        SettingsError: A setting is invalid, or no strategy is compatible with it.
    """
    if setting.task.group is not None:
        environment = replace(
            setting.environment, learners=len(np.unique(_groups(data_set_for(setting.task))))
        )
        setting = replace(setting, environment=environment)
    without_options = replace(setting, server_optimiser="sgd", robust_aggregation="")
    if setting == without_options:
        return list(strategies.STRATEGIES)
    suitable, last_error = [], None
    for name in strategies.STRATEGIES:
        _strategy(without_options, name, 0, 1.0)
        try:
            _strategy(setting, name, 0, 1.0)
            suitable.append(name)
        except SettingsError as error:
            last_error = error
    if not suitable and last_error is not None:
        raise last_error
    return suitable


def summary(partition: Partition, names: tuple[str, ...], machines: MachineEnvironment) -> dict[str, Any]:
    """Return what a built federation stores of its partition: counts per learner and class, and the digest."""
    learners = [
        {
            **row,
            "group": machines.groups[row["learner"]],
            "counts": {names[int(code)]: count for code, count in row["counts"].items()},
        }
        for row in partition.table()
    ]
    classes = [names[int(code)] for code in partition.classes]
    return {"form": partition.form, "digest": partition.digest, "classes": classes, "learners": learners}


def test_accuracy(model: Model, vector: Vector, data: Examples) -> float:
    """Return the fraction of test examples that a lab federation's model classifies correctly."""
    return float((model.score(vector, data).predictions.argmax(1) == data.y).mean())


def data_set_for(task: ExperimentTask) -> DataSet:
    """Return the data set of the federation to build, prepared for the network."""
    return _load(task.data, task.folder, task.network, DataSetColumns(task.label, task.group))


def network(task: ExperimentTask, data: DataSet) -> Model:
    """Return the network that all learners of the built federation train."""
    from abaton.models import cifar10_cnn, mlp, sstc_cnn

    classes, shape = len(data.classes), data.train.x.shape[1:]
    if task.network == "mlp":
        return mlp(features=shape[0], classes=classes, hidden=(task.hidden,))
    if shape[0] == 3:
        return cifar10_cnn(size=shape[1], classes=classes, response_norm=False)
    if shape == (1, 28, 28):
        return sstc_cnn(classes=classes)
    raise SettingsError(
        f"there is no convolutional network for inputs of shape {shape}",
        where="network",
        remedy="use 'mlp', colour images, or grey images of 28x28",
    )


@lru_cache(maxsize=2)
def _load(name: str, folder: str | None, kind: str, columns: DataSetColumns) -> DataSet:
    if kind not in ("mlp", "cnn"):
        raise SettingsError(f"there is no network '{kind}'", where="network", remedy="use 'mlp' or 'cnn'")
    data_dir = Path(folder) if folder else None
    raw = load(name, folder=data_dir, preparation=None, columns=columns)
    train, test = raw.train, raw.test
    if train.y.ndim != 1:
        raise SettingsError(
            f"'{name}' is text", where="data set", remedy="choose a data set of images, or a table"
        )
    flat, images = kind == "mlp", train.x.ndim > 2
    side = 8 if flat else 24 if train.x.ndim == 4 else None
    preprocessing = ImagePreprocessing(side=side if images else None, flat=flat)
    x_train, x_test = prepare(train.x, test.x, preprocessing)
    return replace(raw, train=Examples(x_train, train.y), test=Examples(x_test, test.y))


def _groups(data: DataSet) -> NDArray[Any]:
    if data.groups is None:
        raise SettingsError(
            f"the data set '{data.name}' has no groups",
            where="group",
            remedy="name a column of a table, or choose a data set with groups ('abaton lab data')",
        )
    return data.groups


def _partition(data: DataSet, setting: ExperimentSettings, seed: int) -> Partition:
    environment = setting.environment
    if setting.task.group is not None:
        return by_group(data.labels, _groups(data))
    partition_seed = seed if environment.partition_seed is None else environment.partition_seed
    rng = np.random.default_rng(partition_seed)
    return partition_data(
        data.labels,
        learners=environment.learners,
        rng=rng,
        sizes_as=environment.sizes,
        classes_as=environment.classes,
        rows=environment.rows,
    )


def _machines(partition: Partition, environment: ExperimentEnvironment) -> MachineEnvironment:
    if not environment.slowdown >= 1:
        raise SettingsError(
            f"slowdown is {environment.slowdown}", where="environment", remedy="use 1 or more"
        )
    batch = 0.030  # seconds of a fast learner, as on CIFAR-10 in the paper
    fast = MachineProfile(speed=1 / batch, bandwidth=1.25e8, latency=environment.latency * batch)
    slow = replace(fast, speed=fast.speed / environment.slowdown)
    return heterogeneous(partition.by_size(), slow=environment.slow, fast_as=fast, slow_as=slow)


def _seconds(
    setting: ExperimentSettings, partition: Partition, machines: MachineEnvironment, model: Model
) -> float:
    """Return the simulated time of a built federation, in rounds of SyncFedAvg with its slowest learner."""
    size = model.layout.zeros().nbytes
    slowest_round = max(
        model.steps(int(rows), setting.training) / profile.speed
        + 2 * (profile.latency + size / profile.bandwidth)
        for rows, profile in zip(
            partition.sizes, (machines.profiles[n] for n in partition.learners), strict=True
        )
    )
    return setting.rounds * slowest_round * _SLACK


def _strategy(setting: ExperimentSettings, strategy_name: str, seed: int, seconds: float) -> Strategy:
    base, training = strategies.strategy(strategy_name), setting.training
    components: dict[str, Any] = {}
    validation = ValidationWeighting(setting.metric, include_own_validation=setting.include_own_validation)
    components["weighting"] = tuple(
        factor if factor.validation is None else validation for factor in base.weighting
    )
    if setting.server_optimiser != "sgd":
        components["server_optimiser"] = build_named(
            SERVER_OPTIMISER, component_spec(setting.server_optimiser)
        )
    if setting.robust_aggregation:
        robust = build_named(ROBUST_AGGREGATION, component_spec(setting.robust_aggregation))
        components["robust_aggregation"] = robust
        if isinstance(base.scheduler, SynchronousScheduler):
            components["scheduler"] = replace(base.scheduler, quorum=robust.min_updates)
    training = replace(training, **strategies.PAPER_TRAINING.get(strategy_name, {}))
    return strategies.strategy(
        strategy_name,
        learners=setting.environment.learners,
        rounds=_MAX_VERSIONS,
        max_seconds=seconds,
        training=training,
        seed=seed,
        **components,
    )


def _make_byzantine(
    split: Mapping[str, LearnerSplit],
    model: Model,
    partition: Partition,
    byzantine: Mapping[int, str],
    classes: int,
) -> tuple[Mapping[str, LearnerSplit], dict[str, Model]]:
    """Replace the data or the model of the built federation's Byzantine learners."""
    names = partition.by_size()
    if any(not 0 <= index < len(names) for index in byzantine):
        raise SettingsError(
            f"there is no learner {max(byzantine)}",
            where="byzantine",
            remedy=f"use an index from 0 to {len(names) - 1}",
        )
    splits, models = dict(split), {}
    for index, kind in byzantine.items():
        name = names[index]
        splits[name], models[name] = apply_attack(kind, split[name], model, classes)
    return splits, models


RECIPES: Mapping[str, str] = {
    "strategy": "abaton.lab.federation_builder:federation",
}
"""Function that builds the federation of each recipe."""


def build_from_recipe(recipe: Mapping[str, Any]) -> Federation:
    """Build the federation of a recipe, ready to run."""
    where = RECIPES.get(recipe["name"])
    if where is None:
        raise SettingsError(
            f"there is no recipe '{recipe['name']}'", remedy=f"use one of {', '.join(RECIPES)}"
        )
    module, function = where.split(":")
    make: Callable[..., Federation] = getattr(import_module(module), function)
    return make(**recipe["settings"])
