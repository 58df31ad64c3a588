"""Settings of a comparison of strategies: the task, the environment of the learners, and all shared settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from abaton.training import TrainSettings


@dataclass(frozen=True, slots=True)
class ExperimentTask:
    """Learning task.

    Attributes:
        data: a data set by name, or the path of a file.
        folder: folder of named sets.
        network: `mlp`, one hidden layer on images of 8x8; or `cnn`, the papers' networks on full images.
        hidden: width of the hidden layer.
        label: label column of a table.
        group: column of a table with the hospital or subject; each is a learner, if given.
    """

    data: str = "synthetic"
    folder: str | None = None
    network: str = "mlp"
    hidden: int = 96
    label: str = "label"
    group: str | None = None


@dataclass(frozen=True, slots=True)
class ExperimentEnvironment:
    """Partition of the data and speed of the learners.

    Attributes:
        sizes, classes: size skew and label skew, as for `partition_data`.
        learners: number of learners.
        rows: number of rows used; all if not given.
        slow: number of slow learners; half of them if not given.
        slowdown: factor of a slow learner's time per batch.
        latency: duration of a message, in batches of a fast learner.
        partition_seed: seed of the partition; the seed of each run if not given.
    """

    sizes: str = "power-law"
    classes: str = "Non-IID(3x8)"
    learners: int = 10
    rows: int | None = None
    slow: int | None = None
    slowdown: float = 10.0
    latency: float = 10.0
    partition_seed: int | None = None


@dataclass(frozen=True, slots=True)
class ExperimentSettings:
    """Settings that the compared strategies share.

    Attributes:
        task: learning task.
        environment: partition of the data and speed of the learners.
        training: settings of local training.
        rounds: simulated duration, in rounds of SyncFedAvg.
        metric: metric of strategies that weight by validation.
        include_own_validation: whether the author's own validation set is included.
        server_optimiser: spec of the server optimiser, such as `adam(rate=0.02)`.
        robust_aggregation: spec of the robust aggregation, such as `krum(byzantine=1)`; the weighted mean if empty.
        byzantine: attack of each Byzantine learner, by its index in the order of size: `flipped` or `noise`.
        codec, downlink: codec specs of updates and of community models.
    """

    task: ExperimentTask = field(default_factory=ExperimentTask)
    environment: ExperimentEnvironment = field(default_factory=ExperimentEnvironment)
    training: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            epochs=4, batch_size=50, learning_rate=0.05, momentum=0.75, shuffle_window=50
        )
    )
    rounds: float = 4.0
    metric: str = "micro_f1"
    include_own_validation: bool = True
    server_optimiser: str = "sgd"
    robust_aggregation: str = ""
    byzantine: Mapping[int, str] = field(default_factory=dict)
    codec: str = "raw"
    downlink: str | None = None

    def recipe(self, strategy: str, seed: int) -> dict[str, Any]:
        """Return the experiment's settings as a recipe, which the store keeps to build the run again."""
        default = TrainSettings()
        changed = {
            f.name: getattr(self.training, f.name)
            for f in fields(self.training)
            if getattr(self.training, f.name) != getattr(default, f.name)
        }
        settings = {
            "strategy": strategy,
            "seed": seed,
            "task": asdict(self.task),
            "environment": asdict(self.environment),
            "training": changed,
            "rounds": self.rounds,
            "metric": self.metric,
            "include_own_validation": self.include_own_validation,
            "server_optimiser": self.server_optimiser,
            "robust_aggregation": self.robust_aggregation,
            "byzantine": {str(index): kind for index, kind in self.byzantine.items()},
            "codec": self.codec,
            "downlink": self.downlink,
        }
        return {"name": "strategy", "settings": settings}
