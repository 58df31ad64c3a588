"""Experiment on the number and selection of evaluators: cost and accuracy.

The environment is the hardest of the Metis paper: power-law sizes, three classes for most learners, half of them
ten times slower. Every run has the same simulated time, settings and seeds; only the evaluators of a model differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from abaton.controller import (
    AsynchronousScheduler,
    Scheduler,
    Strategy,
    SynchronousScheduler,
    ValidationWeighting,
)
from abaton.federation import Federation, LocalSite, RunMetadata
from abaton.lab.datasets import DataSet
from abaton.lab.machine_profiles import heterogeneous
from abaton.lab.partition import partition_data, split_learners
from abaton.metrics.predictions import accuracy
from abaton.models import Examples, mlp
from abaton.store import Journal, Store
from abaton.training import TrainSettings

_MAX_TEST_ROWS = 1000
COUNTS = (1, 2, 3, 5, None)
SCHEDULERS: Mapping[str, Scheduler] = {
    "synchronous": SynchronousScheduler(),
    "asynchronous": AsynchronousScheduler(),
}


@dataclass(frozen=True, slots=True)
class EvaluatorExperimentSettings:
    """Settings that all runs of a comparison share.

    Attributes:
        data: the examples, flat.
        training: local training settings.
        seconds: simulated time of a run.
        scheduler: synchronous or asynchronous.
        hidden: units of the network's hidden layer.
        learners: number of learners.
        validation_fraction: validation fraction of each learner's data.
    """

    data: DataSet
    training: TrainSettings
    seconds: float
    scheduler: Literal["synchronous", "asynchronous"] = "asynchronous"
    hidden: int = 96
    learners: int = 10
    validation_fraction: float = 0.05


def compare(
    setting: EvaluatorExperimentSettings, *, seeds: Sequence[int], counts: Sequence[int | None] = COUNTS
) -> list[dict[str, Any]]:
    """Run the evaluator experiment; return models sent and accuracy for each number and selection.

    Every version is evaluated on up to a thousand test examples. Accuracy is the mean of the last quarter of a
    run's versions; `spread` is its standard deviation over seeds.
    """
    rows = []
    for weighting in _weightings(counts):
        runs = [_run(setting, weighting, seed) for seed in seeds]
        quality = np.array([run["accuracy"] for run in runs])
        row: dict[str, Any] = {
            "evaluators": weighting.evaluators or setting.learners - 1,
            "evaluator_selection": weighting.evaluator_selection if weighting.evaluators else "all",
        }
        row |= {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        rows.append({**row, "spread": float(quality.std(ddof=1)) if len(seeds) > 1 else 0.0})
    return rows


def _weightings(counts: Sequence[int | None]) -> Iterator[ValidationWeighting]:
    for count in counts:
        yield ValidationWeighting(evaluators=count)
        if count is not None:
            yield ValidationWeighting(evaluators=count, evaluator_selection="label_coverage")


def _run(setting: EvaluatorExperimentSettings, weighting: ValidationWeighting, seed: int) -> dict[str, float]:
    federation = _federation(setting, weighting, seed)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        run = federation.run(store=store)
        scored = sum(event_type == "evaluation_received" for event_type, _ in Journal(store, run.name).rows())
        versions, outcome = run.versions, run.result
    last_quarter = versions[-max(1, len(versions) // 4) :]
    size = 4 * federation.model.layout.size
    return {
        "updates": float(outcome["updates"]),
        "models_for_evaluation": float(scored),
        "megabytes_for_evaluation": scored * size / 1e6,
        "megabytes_up": outcome["bytes_up"] / 1e6,
        "accuracy": float(np.mean([model.metrics["accuracy"] for model in last_quarter])),
    }


def _federation(
    setting: EvaluatorExperimentSettings, weighting: ValidationWeighting, seed: int
) -> Federation:
    data, rng = setting.data, np.random.default_rng(seed)
    partition = partition_data(
        data.labels, learners=setting.learners, rng=rng, sizes_as="power-law", classes_as="Non-IID(3x8)"
    )
    split = split_learners(
        data.train, data.labels, partition, validation=setting.validation_fraction, rng=rng
    )
    test_rows = np.sort(rng.permutation(len(data.test))[:_MAX_TEST_ROWS])
    test = Examples(data.test.x[test_rows], data.test.y[test_rows])
    model = mlp(features=data.train.x.shape[1], classes=len(data.classes), hidden=(setting.hidden,))
    machines = heterogeneous(partition.by_size()).profiles
    return Federation(
        model,
        {
            name: LocalSite(learner_split.train, learner_split.validation, machines[name])
            for name, learner_split in split.items()
        },
        Strategy(
            setting.learners,
            rounds=100_000,
            max_seconds=setting.seconds,
            scheduler=SCHEDULERS[setting.scheduler],
            weighting=(weighting,),
            training=setting.training,
            seed=seed,
        ),
        metadata=RunMetadata(
            "evaluators",
            observe=lambda vector: {"accuracy": accuracy(model.score(vector, test).predictions, test.y)},
        ),
    )
