"""A small installed package with parts of its own: real to importlib.metadata, in a folder of the test's."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

CODE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from abaton.codecs import Codec, Raw
from abaton.controller import Optimiser, Pacing, Robust, Weighting, ask_all, mix
from abaton.learners import mlp


@dataclass(frozen=True)
class Thinned(Codec):
    """Sends only the larger part of an update's numbers."""

    keep: float = 0.5
    name: ClassVar[str] = "thinned"
    code: ClassVar[int] = 200

    def encode(self, update, layout, key):
        edge = np.quantile(np.abs(update), 1 - self.keep)
        return Raw().encode(np.where(np.abs(update) >= edge, update, 0).astype(np.float32), layout, key)

    def decode(self, payload, layout, key):
        return Raw().decode(payload, layout, key)


@dataclass(frozen=True)
class InTurns(Pacing):
    """All learners train; each update is a version of its own, and when all have come they begin again."""

    pause: int = 1

    def begin(self, rules, state, now):
        return ask_all(rules, state, sorted(state.present)[:: self.pause])

    def ready(self, rules, state, made, now):
        state, mixed = mix(rules, state, made)
        if state.stopped or state.open:
            return state, mixed
        state, asked = self.begin(rules, state, now)
        return state, (*mixed, *asked)


@dataclass(frozen=True)
class Root(Weighting):
    """A large site counts more, but not as much more as it has people."""

    power: float = 0.5

    def weight(self, made):
        return float(made.update.examples**self.power)


@dataclass(frozen=True)
class Middle(Robust):
    """Only the signs of the updates count."""

    size: float = 0.01

    def mix(self, rows, weights):
        return np.float32(self.size) * np.sign(rows).sum(0).astype(np.float32)


@dataclass(frozen=True)
class Halved(Optimiser):
    """Takes a part of every step."""

    part: float = 0.5

    def start(self, size):
        return ()

    def apply(self, change, memory):
        return np.float32(self.part) * change, memory


def wide(*, features: int, classes: int, width: int = 3):
    return mlp(features=features, classes=classes, hidden=(width,))


def no_model(*, features: int):
    return features
'''

ENTRIES = {
    "abaton.codecs": {"thinned": "Thinned"},
    "abaton.pacing": {"in_turns": "InTurns"},
    "abaton.weighting": {"root": "Root"},
    "abaton.robust": {"signs": "Middle"},
    "abaton.server": {"halved": "Halved"},
    "abaton.models": {"wide": "wide", "no_model": "no_model", "gone": "nothing_like_it"},
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
    """Install a package for one test; the name of its module."""
    module = package.replace("-", "_")
    place = folder / package
    about = place / f"{module}-{version}.dist-info"
    about.mkdir(parents=True)
    (place / f"{module}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = []
    for group, parts in (ENTRIES if entries is None else entries).items():
        lines += [f"[{group}]", *(f"{name} = {module}:{thing}" for name, thing in parts.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
    return module
