"""One federation of the SSTC paper's network under the virtual clock: bytes each way, and accuracy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from abaton.controller import Strategy, TrainSettings, UpdateReceived, event_from_row
from abaton.federation import Federation
from abaton.models.zoo import sstc_cnn
from abaton.store import Journal, Store

sys.path.insert(0, str(Path(__file__).parent))
import _cnn

LEARNERS, EPOCHS = 4, 3


@dataclass(frozen=True)
class FederationCurve:
    """Result of a federation: accuracy of each version, and bytes of all updates and models of each round."""

    accuracy: list[float]
    up: list[int]
    down: list[int]


def run_federation(up: str, down: str | None, *, seed: int, rounds: int) -> FederationCurve:
    """Run a federation of the paper's network under the virtual clock."""
    data, net = _cnn.pictures(learners=LEARNERS, scans=150, seed=seed), sstc_cnn(classes=_cnn.CLASSES)
    training = TrainSettings(epochs=EPOCHS, batch_size=16, learning_rate=0.1)
    sites = {f"learner {i}": part for i, part in enumerate(data.learners)}
    federation = Federation(
        net, sites, Strategy(rounds=rounds, training=training, seed=seed), up, downlink=down
    )
    with TemporaryDirectory() as folder, Store(Path(folder)) as store:
        run = federation.run("run", store=store)
        events = [event_from_row(*row) for row in Journal(store, "run").rows()]
        updates = [event for event in events if isinstance(event, UpdateReceived)]
        accuracies = [_cnn.accuracy(run.vector(version.version), data.test) for version in run.versions]
    rows = [updates[i : i + LEARNERS] for i in range(0, len(updates), LEARNERS)]
    return FederationCurve(
        accuracies,
        [sum(e.payload_bytes for e in version) for version in rows],
        [sum(e.downlink_bytes for e in version) for version in rows],
    )
