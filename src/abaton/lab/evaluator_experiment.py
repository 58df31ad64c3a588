"""How many evaluators a model needs, and which: cost and accuracy side by side.

The environment is the hardest of the Metis paper: sizes by a power law, three classes for most learners, half of them
ten times slower. Every run has the same simulated time, the same settings and the same seeds; only who scores a model
changes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from abaton.controller import Asynchronous, ByValidation, Pacing, Rules, Scored, Synchronous
from abaton.federation import Dossier, Federation, Holding
from abaton.lab.datasets import DataSet
from abaton.lab.machine_profiles import heterogeneous
from abaton.lab.partition import partition, sites
from abaton.learners import Examples, mlp
from abaton.metrics.predictions import accuracy
from abaton.store import Journal, Store
from abaton.training import TrainSettings

_TRIED = 1000
COUNTS = (1, 2, 3, 5, None)
PACINGS: Mapping[str, Pacing] = {
    "synchronous": Synchronous(),
    "asynchronous": Asynchronous(),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a comparison have in common.

    Attributes:
        data: the examples, flat.
        training: how each learner trains.
        seconds: simulated time of a run.
        pacing: synchronous or asynchronous.
        hidden: units of the network's hidden layer.
        learners: how many learners.
        share: the share of its data that each of them sets aside for validation.
    """

    data: DataSet
    training: TrainSettings
    seconds: float
    pacing: Literal["synchronous", "asynchronous"] = "asynchronous"
    hidden: int = 96
    learners: int = 10
    share: float = 0.05


def compare(
    setting: Setting, *, seeds: Sequence[int], counts: Sequence[int | None] = COUNTS
) -> list[dict[str, Any]]:
    """A row for each number of evaluators and each way of choosing them: what was moved, and how good the model is.

    Every version is tried on up to a thousand test examples. Accuracy is the mean of the last quarter of a run's
    versions, so that one lucky commit does not decide; `spread` is its standard deviation over seeds.
    """
    rows = []
    for policy in _policies(counts):
        runs = [_run(setting, policy, seed) for seed in seeds]
        quality = np.array([run["accuracy"] for run in runs])
        row: dict[str, Any] = {
            "evaluators": policy.evaluators or setting.learners - 1,
            "choice": policy.choice if policy.evaluators else "all",
        }
        row |= {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        rows.append({**row, "spread": float(quality.std(ddof=1)) if len(seeds) > 1 else 0.0})
    return rows


def _policies(counts: Sequence[int | None]) -> Iterator[ByValidation]:
    for count in counts:
        yield ByValidation(evaluators=count)
        if count is not None:
            yield ByValidation(evaluators=count, choice="labels")


def _run(setting: Setting, policy: ByValidation, seed: int) -> dict[str, float]:
    federation = _federation(setting, policy, seed)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        run = federation.run(store=store)
        scored = sum(kind == Scored.__name__ for kind, _ in Journal(store, run.name).rows())
        versions, outcome = run.versions, run.result
    late = versions[-max(1, len(versions) // 4) :]
    size = 4 * federation.model.layout.size
    return {
        "updates": float(outcome["updates"]),
        "models_for_evaluation": float(scored),
        "megabytes_for_evaluation": scored * size / 1e6,
        "megabytes_up": outcome["bytes_up"] / 1e6,
        "accuracy": float(np.mean([model.metrics["accuracy"] for model in late])),
    }


def _federation(setting: Setting, policy: ByValidation, seed: int) -> Federation:
    data, rng = setting.data, np.random.default_rng(seed)
    dealt = partition(
        data.labels, learners=setting.learners, rng=rng, sizes_as="power-law", classes_as="Non-IID(3x8)"
    )
    split = sites(data.train, data.labels, dealt, validation=setting.share, rng=rng)
    tried = np.sort(rng.permutation(len(data.test))[:_TRIED])
    test = Examples(data.test.x[tried], data.test.y[tried])
    model = mlp(features=data.train.x.shape[1], classes=len(data.classes), hidden=(setting.hidden,))
    machines = heterogeneous(dealt.by_size()).profiles
    return Federation(
        model,
        {name: Holding(mine.train, mine.validation, machines[name]) for name, mine in split.items()},
        Rules(
            setting.learners,
            rounds=100_000,
            seconds=setting.seconds,
            pacing=PACINGS[setting.pacing],
            weighting=(policy,),
            training=setting.training,
            seed=seed,
        ),
        dossier=Dossier(
            "evaluators",
            observe=lambda vector: {"accuracy": accuracy(model.score(vector, test).predictions, test.y)},
        ),
    )
