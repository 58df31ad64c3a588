"""Checkpoints: everything a controller needs to go on, so that a resumed run does not mix all its models again.

A checkpoint is one file, replaced as a whole: the controller's state, the community model with its exact sum and the
newest model of every learner, the versions that tasks under way started from. It says how many events of the journal it
stands for; only the later ones are told again. It is for engines in real time: under the virtual clock the simulated
machines have a state of their own, and a run is lived through from its beginning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError, StoreError
from abaton.files import replacing
from abaton.store import digest_of, writing

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was so after a number of events.

    Attributes:
        events: how many events of the journal it stands for.
        about: plain values: the controller's state, counters, timers.
        arrays: the vectors, by name.
    """

    events: int
    about: dict[str, Any]
    arrays: Arrays


class Checkpoints:
    """The newest checkpoint of a run, in a file.

    Args:
        folder: the store's folder.
        run: whose.
        every: after how many events the next one is written.
    """

    def __init__(self, folder: Path, run: str, every: int = 1000) -> None:
        if every < 1:
            raise SettingsError(f"every is {every}", where="checkpoints", remedy="use at least 1 event")
        self.path, self.every = folder / "checkpoints" / f"{run}.safetensors", every

    def write(self, made: Checkpoint) -> None:
        """Replace the checkpoint: the old one is there until the new one is complete."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(a) for name, a in made.arrays.items()}
        about = json.dumps({"events": made.events, "about": made.about})
        metadata = {"about": about, "digest": _digest(about, arrays)}
        with writing(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as begun:
                begun.write_bytes(save(arrays, metadata=metadata))

    def read(self) -> Checkpoint | None:
        """The newest checkpoint, if there is one."""
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, "np") as file:
                arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata()
            if metadata["digest"] != _digest(metadata["about"], arrays):
                raise ValueError("digest")
            plain = json.loads(metadata["about"])
            return Checkpoint(plain["events"], plain["about"], arrays)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise StoreError(
                "the checkpoint is damaged",
                where=str(self.path),
                remedy="remove it: the run then goes on from the beginning of its journal",
            ) from error

    def remove(self) -> None:
        """Forget the checkpoint of a run that has ended."""
        self.path.unlink(missing_ok=True)


def _digest(about: str, arrays: Arrays) -> str:
    parts = [f"{name} {a.dtype} {a.shape} {digest_of(a.tobytes())}" for name, a in sorted(arrays.items())]
    return digest_of("\n".join([about, *parts]).encode())
