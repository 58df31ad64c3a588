"""Learners that misbehave on a worker according to their name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import TrainSettings
from abaton.engines import RayEngine, TrainTask
from abaton.learners import Learner, LearnerUpdate
from abaton.models import Examples, SklearnModel
from abaton.training import round_key

MODEL = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
SETTINGS = TrainSettings(epochs=2, batch_size=10)


class MisbehavingLearner(Learner):
    """Learner that misbehaves in training or evaluation."""

    @classmethod
    def remote_class(cls) -> type[Learner]:
        return RemoteLearner

    def train(
        self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest
    ) -> LearnerUpdate:
        update = super().train(task, version, start, settings, *rest)
        match self.name:
            case "garbage":
                return LearnerUpdate(b"rubbish" * 10, update.steps, update.loss)
            case "counter":
                return LearnerUpdate(update.payload, -1, update.loss)
            case "nan":
                return LearnerUpdate(update.payload, update.steps, float("nan"))
            case "broken":
                raise ZeroDivisionError("patient Zanzibar-4711")
            case "mortal" if not settings.momentum:
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleeper":
                time.sleep(600)
            case "slow":
                time.sleep(0.3)
            case "listener":
                end = time.monotonic() + 30
                while rest[0].committed_steps() < 5 and time.monotonic() < end:
                    time.sleep(0.05)
                return LearnerUpdate(update.payload, rest[0].committed_steps(), update.loss)
        return update

    def evaluate(self, model: np.ndarray) -> tuple[float, ...]:
        return (float("inf"),) if self.name == "infinite" else super().evaluate(model)


class RemoteLearner(MisbehavingLearner):
    """The same on a worker; one whose construction fails with data in the error."""

    def __init__(self, name: str, *arguments: Any, **options: Any) -> None:
        if name == "unbuildable":
            raise ZeroDivisionError("patient Zanzibar-4711")
        super().__init__(name, *arguments, **options)


def learners(*names: str, codec: str = "raw") -> dict[str, Learner]:
    built = {}
    for i, name in enumerate(names):
        x = np.random.default_rng(i).normal(size=(40, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        built[name] = MisbehavingLearner(name, MODEL, data, parse_codec(codec), 0, validation=data)
    return built


def check(learner: str, version: int, payload: bytes) -> None:
    parse_codec("raw").decode(payload, MODEL.layout, CodecKey(round_key(0, version), learner))


def engine(
    *names: str, codec: str = "raw", store_payload: Callable[[bytes], str] = lambda payload: "", **options
) -> RayEngine:
    check_payload: Callable[..., None] = check if codec == "raw" else lambda *_: None
    return RayEngine(
        learners(*names, codec=codec), store_payload=store_payload, check_payload=check_payload, **options
    )


def task(learner: str, task_id: str = "t", **settings) -> TrainTask:
    start = np.zeros(MODEL.layout.size, np.float32)
    return TrainTask(task_id, learner, 0, start, TrainSettings(**{"epochs": 2, "batch_size": 10, **settings}))


def receive_events(ray: RayEngine, count: int) -> list:
    events: list = []
    while len(events) < count:
        batch = ray.events()
        assert batch, "no further event can occur"
        events += batch
    return events


def folder_contains(folder: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def fail(*_: object) -> None:
    """Function whose error contains data."""
    raise ZeroDivisionError("patient Zanzibar-4711")


def die_once(path: str) -> str:
    """Function that ends the first worker."""
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)
    return "done"
