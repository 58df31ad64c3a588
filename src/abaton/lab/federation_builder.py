"""One federation of the lab: a data set dealt to fast and slow learners, a policy of the paper, and equal time for all.

A setting holds everything that policies share; a recipe adds the policy and the seed, as plain values that the store
keeps. Nothing is tuned by policy. What differs between policies is what the paper says: policies that weigh by
validation set 5 % of each learner's data aside, the others train on all of it, and FedAsync pulls local models back
with rho = 0.005.

Recipes: a name and plain values from which the lab makes a federation, kept so that a run can be made again.
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

from abaton.controller import ByValidation, Rules, strategies
from abaton.engines import Profile
from abaton.errors import SettingsError
from abaton.federation import Dossier, Federation, Holding
from abaton.kernels import Vector
from abaton.lab.byzantine_learners import poisoned
from abaton.lab.datasets import Columns, DataSet, load
from abaton.lab.experiment import Setting, Task, World
from abaton.lab.image_transforms import Preparation, prepare
from abaton.lab.machine_profiles import Environment, heterogeneous
from abaton.lab.partition import Partition, Split, by_group, partition, sites
from abaton.learners import Examples, Model
from abaton.study.components import ROBUST, SERVER, chosen
from abaton.study.components import made as part_of
from abaton.training import TrainSettings

VALIDATION, RHO = 0.05, 0.005  # the paper's share of validation examples, and FedAsync's proximal factor
_MOST_VERSIONS = 10**9  # the time is what ends a run
_MOST_EPOCHS = 1000  # of an adaptive cycle, which ends itself
_SLACK = 1.001  # rounds end at sums of floats: let the last one in


def federation(
    *,
    policy: str,
    seed: int,
    task: Mapping[str, Any],
    world: Mapping[str, Any],
    training: Mapping[str, Any],
    time: float,
    measure: str,
    own: bool,
    server: str,
    robust: str,
    bad: Mapping[str, str],
    codec: str,
    downlink: str | None,
) -> Federation:
    """The federation that a recipe describes."""
    setting = Setting(
        Task(**task),
        World(**world),
        TrainSettings(**training),
        time,
        measure,
        own,
        server,
        robust,
        {int(place): kind for place, kind in bad.items()},
        codec,
        downlink,
    )
    return make(setting, policy, seed)


def make(setting: Setting, policy: str, seed: int) -> Federation:
    """A federation that is ready to run."""
    if not setting.rounds > 0:
        raise SettingsError(f"rounds is {setting.rounds}", where="setting", remedy="use a number above 0")
    data = data_of(setting.task)
    dealt = _deal(data, setting, seed)
    world = replace(setting.world, learners=len(dealt.learners))
    setting = replace(setting, world=world)
    machines = _machines(dealt, world)
    model = network(setting.task, data)
    rules = _rules(setting, policy, seed, _seconds(setting, dealt, machines, model))
    share = VALIDATION if rules.validation else 0.0
    split = sites(data.train, data.labels, dealt, validation=share, rng=np.random.default_rng([seed, 5]))
    split, models = _spoil(split, model, dealt, setting.bad, len(data.classes))

    # Versions are judged afterwards, at a few moments: all of them would cost more than their training.
    holdings = {
        name: Holding(one.train, one.validation if share else None, machines.profiles[name], models.get(name))
        for name, one in split.items()
    }
    recipe = setting.recipe(policy, seed)
    facts = {"partition": summary(dealt, data.classes, machines)}
    dossier = Dossier(recipe["name"], recipe["settings"], facts=facts, use={"classes": list(data.classes)})
    return Federation(model, holdings, rules, setting.codec, downlink=setting.downlink, dossier=dossier)


def fitting(setting: Setting) -> list[str]:
    """The paper's policies that can go by a setting: not every one goes with every server optimiser or robust mixing.

    Raises:
        SettingsError: A setting is wrong for itself, or no policy goes with it.
    """
    if setting.task.group is not None:
        world = replace(setting.world, learners=len(np.unique(_groups(data_of(setting.task)))))
        setting = replace(setting, world=world)
    usual = replace(setting, server="plain", robust="")
    if setting == usual:
        return list(strategies.POLICIES)
    found, why = [], None
    for name in strategies.POLICIES:
        _rules(usual, name, 0, 1.0)
        try:
            _rules(setting, name, 0, 1.0)
            found.append(name)
        except SettingsError as error:
            why = error
    if not found and why is not None:
        raise why
    return found


def summary(dealt: Partition, names: tuple[str, ...], machines: Environment) -> dict[str, Any]:
    """What a run keeps of its partition: who holds how much of which class, and the name of exactly these rows."""
    lines = [
        {
            **line,
            "group": machines.groups[line["learner"]],
            "counts": {names[int(code)]: count for code, count in line["counts"].items()},
        }
        for line in dealt.table()
    ]
    classes = [names[int(code)] for code in dealt.classes]
    return {"form": dealt.form, "digest": dealt.digest, "classes": classes, "learners": lines}


def right(model: Model, vector: Vector, data: Examples) -> float:
    """The share of examples that a model gets right."""
    return float((model.score(vector, data).predictions.argmax(1) == data.y).mean())


def data_of(task: Task) -> DataSet:
    """The data set, made ready for the network."""
    return _load(task.data, task.folder, task.network, Columns(task.label, task.group))


def network(task: Task, data: DataSet) -> Model:
    """The network that all learners train."""
    from abaton.learners import cifar10_cnn, mlp, sstc_cnn

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
def _load(name: str, folder: str | None, kind: str, columns: Columns) -> DataSet:
    if kind not in ("mlp", "cnn"):
        raise SettingsError(f"there is no network '{kind}'", where="network", remedy="use 'mlp' or 'cnn'")
    place = Path(folder) if folder else None
    raw = load(name, folder=place, how=None, columns=columns)
    train, test = raw.train, raw.test
    if train.y.ndim != 1:
        raise SettingsError(
            f"'{name}' is text", where="data set", remedy="choose a data set of images, or a table"
        )
    flat, images = kind == "mlp", train.x.ndim > 2
    side = 8 if flat else 24 if train.x.ndim == 4 else None
    how = Preparation(side=side if images else None, flat=flat)
    x_train, x_test = prepare(train.x, test.x, how)
    return replace(raw, train=Examples(x_train, train.y), test=Examples(x_test, test.y))


def _groups(data: DataSet) -> NDArray[Any]:
    if data.groups is None:
        raise SettingsError(
            f"the data set '{data.name}' does not say who its rows come from",
            where="group",
            remedy="name a column of a table, or choose a data set with groups ('abaton lab data')",
        )
    return data.groups


def _deal(data: DataSet, setting: Setting, seed: int) -> Partition:
    world = setting.world
    if setting.task.group is not None:
        return by_group(data.labels, _groups(data))
    chosen = seed if world.partition_seed is None else world.partition_seed
    rng = np.random.default_rng(chosen)
    return partition(
        data.labels,
        learners=world.learners,
        rng=rng,
        sizes_as=world.sizes,
        classes_as=world.classes,
        rows=world.rows,
    )


def _machines(dealt: Partition, world: World) -> Environment:
    if not world.slowdown >= 1:
        raise SettingsError(f"slowdown is {world.slowdown}", where="world", remedy="use 1 or more")
    batch = 0.030  # seconds of a fast learner, as on CIFAR-10 in the paper
    fast = Profile(speed=1 / batch, bandwidth=1.25e8, latency=world.latency * batch)
    slow = replace(fast, speed=fast.speed / world.slowdown)
    return heterogeneous(dealt.by_size(), slow=world.slow, fast_as=fast, slow_as=slow)


def _seconds(setting: Setting, dealt: Partition, machines: Environment, model: Model) -> float:
    """How long so many rounds of SyncFedAvg take: as long as its slowest learner, each time."""
    size = model.layout.zeros().nbytes
    longest = max(
        model.steps(int(rows), setting.training) / profile.speed
        + 2 * (profile.latency + size / profile.bandwidth)
        for rows, profile in zip(dealt.sizes, (machines.profiles[n] for n in dealt.learners), strict=True)
    )
    return setting.rounds * longest * _SLACK


def _rules(setting: Setting, policy: str, seed: int, seconds: float) -> Rules:
    parts: dict[str, Any] = dict(strategies.policy(policy))
    training = setting.training
    judged = ByValidation(setting.measure, own=setting.own)
    if "weighting" in parts:
        parts["weighting"] = tuple(p if p.asks is None else judged for p in parts["weighting"])
    if setting.server != "plain":
        parts["server"] = part_of(SERVER, chosen(setting.server))
    if setting.robust:
        robust = parts["robust"] = part_of(ROBUST, chosen(setting.robust))
        if hasattr(parts["pacing"], "quorum"):
            parts["pacing"] = replace(parts["pacing"], quorum=robust.least)
    if policy == "FedAsync":
        training = replace(training, proximal=RHO)
    if policy == "AsyncDVW(a)":
        training = replace(training, epochs=_MOST_EPOCHS)
    return Rules(
        setting.world.learners, _MOST_VERSIONS, seconds=seconds, training=training, seed=seed, **parts
    )


def _spoil(
    split: Mapping[str, Split],
    model: Model,
    dealt: Partition,
    bad: Mapping[int, str],
    classes: int,
) -> tuple[Mapping[str, Split], dict[str, Model]]:
    """Let some learners be what nobody wants: their data, or what they send, is wrong."""
    names = dealt.by_size()
    if any(not 0 <= place < len(names) for place in bad):
        raise SettingsError(
            f"there is no learner {max(bad)}", where="bad", remedy=f"count from 0 to {len(names) - 1}"
        )
    made, models = dict(split), {}
    for place, kind in bad.items():
        name = names[place]
        made[name], models[name] = poisoned(kind, split[name], model, classes)
    return made, models


# A new recipe is one function in the lab, and one line here.
RECIPES: Mapping[str, str] = {
    "policy": "abaton.lab.federation_builder:federation",
}


def build(recipe: Mapping[str, Any]) -> Federation:
    """The federation that a recipe describes, ready to be run."""
    where = RECIPES.get(recipe["name"])
    if where is None:
        raise SettingsError(
            f"there is no recipe '{recipe['name']}'", remedy=f"this version knows {', '.join(RECIPES)}"
        )
    module, function = where.split(":")
    make: Callable[..., Federation] = getattr(import_module(module), function)
    return make(**recipe["settings"])
