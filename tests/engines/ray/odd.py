"""Learners that misbehave on a worker, each in the way its name says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from abaton.codecs import Key, parse
from abaton.controller import TrainSettings
from abaton.engines import RayEngine, TrainTask
from abaton.learners import Examples, Learner, SklearnModel, Update
from abaton.training import round_key

MODEL = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
SETTINGS = TrainSettings(epochs=2, batch_size=10)


class Odd(Learner):
    """A learner that misbehaves when it trains, or scores."""

    @classmethod
    def elsewhere(cls) -> type[Learner]:
        return There

    def train(self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest) -> Update:
        made = super().train(task, version, start, settings, *rest)
        match self.name:
            case "liar":
                return Update(b"rubbish" * 10, made.steps, made.loss)
            case "counter":
                return Update(made.payload, -1, made.loss)
            case "nan":
                return Update(made.payload, made.steps, float("nan"))
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
                while rest[0].committed() < 5 and time.monotonic() < end:
                    time.sleep(0.05)
                return Update(made.payload, rest[0].committed(), made.loss)
        return made

    def evaluate(self, model: np.ndarray) -> tuple[float, ...]:
        return (float("inf"),) if self.name == "boaster" else super().evaluate(model)


class There(Odd):
    """The same on a worker; one that cannot be made speaks of what it has seen."""

    def __init__(self, name: str, *arguments: Any, **more: Any) -> None:
        if name == "unmade":
            raise ZeroDivisionError("patient Zanzibar-4711")
        super().__init__(name, *arguments, **more)


def learners(*names: str, codec: str = "raw") -> dict[str, Learner]:
    made = {}
    for i, name in enumerate(names):
        x = np.random.default_rng(i).normal(size=(40, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        made[name] = Odd(name, MODEL, data, parse(codec), 0, validation=data)
    return made


def check(learner: str, version: int, payload: bytes) -> None:
    parse("raw").decode(payload, MODEL.layout, Key(round_key(0, version), learner))


def engine(
    *names: str, codec: str = "raw", keep: Callable[[bytes], str] = lambda payload: "", **more
) -> RayEngine:
    tested: Callable[..., None] = check if codec == "raw" else lambda *_: None
    return RayEngine(learners(*names, codec=codec), keep=keep, check=tested, **more)


def task(learner: str, key: str = "t", **settings) -> TrainTask:
    start = np.zeros(MODEL.layout.size, np.float32)
    return TrainTask(key, learner, 0, start, TrainSettings(**{"epochs": 2, "batch_size": 10, **settings}))


def heard(ray: RayEngine, count: int) -> list:
    events: list = []
    while len(events) < count:
        happened = ray.events()
        assert happened, "nothing more can happen"
        events += happened
    return events


def folder_holds(folder: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def fail(*_: object) -> None:
    """Work that speaks of what it has seen."""
    raise ZeroDivisionError("patient Zanzibar-4711")


def die_once(path: str) -> str:
    """Work over which the first worker dies."""
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)
    return "done"
