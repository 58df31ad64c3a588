"""Runs whose way down is compressed, over any engine: learners write down which bits they were sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from abaton.codecs import Key, parse
from abaton.controller import (
    Arrived,
    Asynchronous,
    Blend,
    ByValidation,
    Rules,
    Scored,
    SemiSynchronous,
    Synchronous,
    TrainSettings,
    community_model,
    from_row,
)
from abaton.engines import Driver, Engine, Outcome
from abaton.learners import Examples, Learner, Update, logistic
from abaton.store import Journal, model_digest
from abaton.training import round_key

MODEL = logistic(features=400)
SIZE = 4 * MODEL.layout.size
CODEC = parse("error_feedback | stc(sparsity=0.05)")
DOWN = "stc(sparsity=0.02)"
SETTINGS = TrainSettings(epochs=1, batch_size=10)
RUNS = {
    "rounds": Rules(3, 5, training=SETTINGS, weighting=(ByValidation(),), pacing=Synchronous()),
    "some of them": Rules(3, 12, training=SETTINGS, pacing=Synchronous(participants=1)),
    "semi-synchronous": Rules(3, 5, training=SETTINGS, pacing=SemiSynchronous(budget=0.02)),
    "asynchronous": Rules(
        3, 15, training=SETTINGS, weighting=(ByValidation(evaluators=1),), pacing=Asynchronous()
    ),
    "FedAsync": Rules(3, 12, training=SETTINGS, pacing=Asynchronous(), mixing=Blend()),
}

Keep = Callable[[bytes], str]
Make = Callable[[Mapping[str, Learner], Keep, Path], AbstractContextManager[Engine]]


def check(learner: str, version: int, payload: bytes) -> None:
    CODEC.decode(payload, MODEL.layout, Key(round_key(0, version), learner))


class Noting(Learner):
    """A learner that writes down, in its site's folder, the digest of what it trains from and of what it scores."""

    folder: Path

    def train(self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest) -> Update:
        self.note(f"trained {version} {model_digest(start)}")
        return super().train(task, version, start, settings, *rest)

    def note(self, words: str) -> None:
        with (self.folder / self.name).open("a") as file:
            file.write(words + "\n")


def learners(folder: Path, downlink: str | None = DOWN, kind: type[Learner] = Noting) -> dict[str, Learner]:
    folder.mkdir(exist_ok=True)
    made = {}
    for i, name in enumerate(("a", "b", "c")):
        x = np.random.default_rng(i).normal(size=(40 + 10 * i, 400)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        made[name] = kind(name, MODEL, data, CODEC, 0, validation=Examples(data.x[:20], data.y[:20]))
        made[name].downlink = None if downlink is None else parse(downlink)
        made[name].folder = folder
    return made


def drive(rules: Rules, engine: Engine, journal: Journal, downlink: str | None = DOWN) -> Outcome:
    community = community_model(rules, MODEL.layout, CODEC, MODEL.initial(0))
    down = None if downlink is None else parse(downlink)
    return Driver(rules, community, engine, journal, downlink=down).run()


def digests(journal: Journal) -> dict[int, str]:
    return {row.version: row.digest for row in journal.store.models(journal.run)}


def noted(folder: Path) -> dict[int, set[str]]:
    """The digests of what was trained from, by version."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            _, version, digest = line.split()
            found[int(version)].add(digest)
    return found


def events_of(journal: Journal) -> list:
    return [from_row(*row) for row in Journal(journal.store, journal.run).rows()]


def down_of(journal: Journal) -> int:
    return sum(e.down for e in events_of(journal) if isinstance(e, Arrived | Scored))


def answered(journal: Journal) -> int:
    return sum(isinstance(e, Arrived | Scored) for e in events_of(journal))
