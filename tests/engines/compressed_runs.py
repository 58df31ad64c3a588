"""Runs with a compressed downlink on any engine: learners record the digests of received models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import (
    AsynchronousScheduler,
    EvaluationReceived,
    FedAsyncContribution,
    SemiSynchronousScheduler,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
    UpdateReceived,
    ValidationWeighting,
    community_model,
    event_from_row,
)
from abaton.engines import Engine, RunLoop, RunOutcome
from abaton.learners import Learner, LearnerUpdate
from abaton.models import Examples, logistic
from abaton.store import Journal, model_digest
from abaton.training import round_key

MODEL = logistic(features=400)
SIZE = 4 * MODEL.layout.size
CODEC = parse_codec("error_feedback | stc(sparsity=0.05)")
DOWN = "stc(sparsity=0.02)"
SETTINGS = TrainSettings(epochs=1, batch_size=10)
RUNS = {
    "rounds": Strategy(
        3, 5, training=SETTINGS, weighting=(ValidationWeighting(),), scheduler=SynchronousScheduler()
    ),
    "some of them": Strategy(3, 12, training=SETTINGS, scheduler=SynchronousScheduler(participants=1)),
    "semi-synchronous": Strategy(
        3, 5, training=SETTINGS, scheduler=SemiSynchronousScheduler(time_budget_seconds=0.02)
    ),
    "asynchronous": Strategy(
        3,
        15,
        training=SETTINGS,
        weighting=(ValidationWeighting(evaluators=1),),
        scheduler=AsynchronousScheduler(),
    ),
    "FedAsync": Strategy(
        3, 12, training=SETTINGS, scheduler=AsynchronousScheduler(), contribution_rule=FedAsyncContribution()
    ),
}

StorePayload = Callable[[bytes], str]
Make = Callable[[Mapping[str, Learner], StorePayload, Path], AbstractContextManager[Engine]]


def check(learner: str, version: int, payload: bytes) -> None:
    CODEC.decode(payload, MODEL.layout, CodecKey(round_key(0, version), learner))


class RecordingLearner(Learner):
    """Learner that records the digests of the models it trains from in its site's folder."""

    folder: Path

    def train(
        self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest
    ) -> LearnerUpdate:
        self.record(f"trained {version} {model_digest(start)}")
        return super().train(task, version, start, settings, *rest)

    def record(self, text: str) -> None:
        with (self.folder / self.name).open("a") as file:
            file.write(text + "\n")


def learners(
    folder: Path, downlink: str | None = DOWN, learner_class: type[Learner] = RecordingLearner
) -> dict[str, Learner]:
    folder.mkdir(exist_ok=True)
    built = {}
    for i, name in enumerate(("a", "b", "c")):
        x = np.random.default_rng(i).normal(size=(40 + 10 * i, 400)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        built[name] = learner_class(
            name, MODEL, data, CODEC, 0, validation=Examples(data.x[:20], data.y[:20])
        )
        built[name].downlink = None if downlink is None else parse_codec(downlink)
        built[name].folder = folder
    return built


def run_to_end(
    strategy: Strategy, engine: Engine, journal: Journal, downlink: str | None = DOWN
) -> RunOutcome:
    community = community_model(strategy, MODEL.layout, CODEC, MODEL.initial(0))
    down = None if downlink is None else parse_codec(downlink)
    return RunLoop(strategy, community, engine, journal, downlink=down).run()


def digests(journal: Journal) -> dict[int, str]:
    return {row.version: row.digest for row in journal.store.models(journal.run)}


def recorded_digests(folder: Path) -> dict[int, set[str]]:
    """Digests of the models that were trained from, by version."""
    digests_by_version: dict[int, set[str]] = defaultdict(set)
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            _, version, digest = line.split()
            digests_by_version[int(version)].add(digest)
    return digests_by_version


def events_of(journal: Journal) -> list:
    return [event_from_row(*row) for row in Journal(journal.store, journal.run).rows()]


def downlink_bytes_of(journal: Journal) -> int:
    return sum(
        e.downlink_bytes for e in events_of(journal) if isinstance(e, UpdateReceived | EvaluationReceived)
    )


def reply_count(journal: Journal) -> int:
    return sum(isinstance(e, UpdateReceived | EvaluationReceived) for e in events_of(journal))
