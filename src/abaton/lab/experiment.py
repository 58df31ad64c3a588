"""What policies are compared on: the task, the world of the learners, and everything else that all policies share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from abaton.training import TrainSettings


@dataclass(frozen=True, slots=True)
class Task:
    """What is learnt.

    Attributes:
        data: a data set by name, or the path of a file.
        folder: where named sets lie.
        network: `mlp`, one hidden layer on images of 8x8; or `cnn`, the papers' networks on images as they have them.
        hidden: the width of the hidden layer.
        label: the column of a table that is learnt.
        group: the column of a table that names the hospital or person; each is a learner, if it is given.
    """

    data: str = "synthetic"
    folder: str | None = None
    network: str = "mlp"
    hidden: int = 96
    label: str = "label"
    group: str | None = None


@dataclass(frozen=True, slots=True)
class World:
    """Who has how much of what, and how fast everybody is.

    Attributes:
        sizes, classes: as `partition` takes them.
        learners: how many there are.
        rows: how many rows are dealt; all if not given.
        slow: how many learners are slow; half of them if not given.
        slowdown: how many times as long a batch takes a slow learner.
        latency: how long a message takes, in batches of a fast learner.
        partition_seed: decides who holds which rows; the seed of each run if not given.
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
class Setting:
    """Everything that the compared policies share.

    Attributes:
        task: what is learnt.
        world: by whom.
        training: how each learner trains.
        rounds: how long it may take, in rounds of SyncFedAvg.
        measure: by what policies that weigh by validation judge a model.
        own: whether the learner's own validation set counts in that.
        server: what is made of the change that a mix proposes, as a line such as `adam(rate=0.02)`.
        robust: how a round's updates are mixed, as a line such as `krum(liars=1)`; by their weighted mean if not given.
        bad: learners that send something else than they should, by place in the order of size: `flipped` or `noise`.
        codec, downlink: how updates travel, and versions of the community model.
    """

    task: Task = field(default_factory=Task)
    world: World = field(default_factory=World)
    training: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            epochs=4, batch_size=50, learning_rate=0.05, momentum=0.75, window=50
        )
    )
    rounds: float = 4.0
    measure: str = "micro_f1"
    own: bool = True
    server: str = "plain"
    robust: str = ""
    bad: Mapping[int, str] = field(default_factory=dict)
    codec: str = "raw"
    downlink: str | None = None

    def recipe(self, policy: str, seed: int) -> dict[str, Any]:
        """What the store keeps so that a run can be built again."""
        usual = TrainSettings()
        changed = {
            f.name: getattr(self.training, f.name)
            for f in fields(self.training)
            if getattr(self.training, f.name) != getattr(usual, f.name)
        }
        settings = {
            "policy": policy,
            "seed": seed,
            "task": asdict(self.task),
            "world": asdict(self.world),
            "training": changed,
            "time": self.rounds,
            "measure": self.measure,
            "own": self.own,
            "server": self.server,
            "robust": self.robust,
            "bad": {str(place): kind for place, kind in self.bad.items()},
            "codec": self.codec,
            "downlink": self.downlink,
        }
        return {"name": "policy", "settings": settings}
