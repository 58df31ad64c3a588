"""Small installed package with plugins, visible to importlib.metadata, in a temporary folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

CODE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from abaton.codecs import Codec, RawCodec
from abaton.controller import (
    RobustAggregator,
    Scheduler,
    ServerOptimiser,
    Weighting,
    aggregate_and_publish,
    request_all,
)
from abaton.models import mlp


@dataclass(frozen=True)
class Thinned(Codec):
    """Codec of the largest values of an update."""

    keep: float = 0.5
    name: ClassVar[str] = "thinned"
    code: ClassVar[int] = 200

    def encode(self, update, layout, key):
        edge = np.quantile(np.abs(update), 1 - self.keep)
        return RawCodec().encode(np.where(np.abs(update) >= edge, update, 0).astype(np.float32), layout, key)

    def decode(self, payload, layout, key):
        return RawCodec().decode(payload, layout, key)


@dataclass(frozen=True)
class InTurns(Scheduler):
    """Scheduler that publishes a version per update and restarts all learners when all have sent one."""

    pause: int = 1

    def on_start(self, strategy, state, now):
        return request_all(strategy, state, sorted(state.present)[:: self.pause])

    def on_updates_ready(self, strategy, state, contributions, now):
        state, published = aggregate_and_publish(strategy, state, contributions)
        if state.stop_reason or state.open_tasks:
            return state, published
        state, requests = self.on_start(strategy, state, now)
        return state, (*published, *requests)


@dataclass(frozen=True)
class Root(Weighting):
    """Weighting by a power of the number of examples."""

    power: float = 0.5

    def weight(self, contribution):
        return float(contribution.update.examples**self.power)


@dataclass(frozen=True)
class Signs(RobustAggregator):
    """Aggregation of the signs of the updates."""

    size: float = 0.01

    def aggregate(self, rows, weights):
        return np.float32(self.size) * np.sign(rows).sum(0).astype(np.float32)


@dataclass(frozen=True)
class Halved(ServerOptimiser):
    """Server optimiser that applies a fraction of every change."""

    part: float = 0.5

    def start(self, size):
        return ()

    def apply(self, change, state):
        return np.float32(self.part) * change, state


def wide(*, features: int, classes: int, width: int = 3):
    return mlp(features=features, classes=classes, hidden=(width,))


def no_model(*, features: int):
    return features
'''

ENTRIES = {
    "abaton.codecs": {"thinned": "Thinned"},
    "abaton.schedulers": {"in_turns": "InTurns"},
    "abaton.weightings": {"root": "Root"},
    "abaton.robust_aggregators": {"signs": "Signs"},
    "abaton.server_optimisers": {"halved": "Halved"},
    "abaton.models": {"wide": "wide", "no_model": "no_model", "gone": "missing_function"},
}


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    package: str = "our-parts",
    version: str = "1.2.0",
    code: str = CODE,
    entries: dict[str, dict[str, str]] | None = None,
) -> str:
    """Install a package for one test and return the name of its module."""
    module = package.replace("-", "_")
    package_folder = folder / package
    metadata_folder = package_folder / f"{module}-{version}.dist-info"
    metadata_folder.mkdir(parents=True)
    (package_folder / f"{module}.py").write_text(code)
    (metadata_folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = []
    for group, components in (ENTRIES if entries is None else entries).items():
        lines += [f"[{group}]", *(f"{name} = {module}:{attribute}" for name, attribute in components.items())]
    (metadata_folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(package_folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
    return module
