"""Checkpoints: the state from which a controller resumes without replaying the whole journal.

A checkpoint is one file that is replaced atomically. It consists of named components, each with JSON values and
vectors: the state of the run loop, the community model with its exact sum and the latest model of every learner, and
any other component with its own state. It names the number of journal events it includes; only later events are
replayed. Checkpoints are for real-time engines: under the virtual clock the simulated machines have their own state,
and a run is replayed from its start. They are optional, because the journal alone determines the state.

Invariants:
(1) the content of a checkpoint follows from the journal events it includes;
(2) a damaged checkpoint, or one of another format or journal, is ignored with a warning and the whole journal is
    replayed;
(3) writing takes at most `MAX_TIME_FRACTION` of a run's time, and vectors are written and read one at a time;
(4) the folder belongs to the run and is removed when the run ends.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import atomic_write, map_os_errors, remove_leftovers
from abaton.errors import SettingsError, StoreError

CHECKPOINT_EVERY = 100
"""Default number of events between two checkpoints of a real-time run."""

MAX_TIME_FRACTION = 0.04
"""Largest fraction of a run's time that is spent on writing checkpoints."""

_FORMAT = "1"
_VALUES = "values"
_HEADER_BYTES = 160  # header bytes per vector besides its name: dtype, shape and two offsets
_DTYPES = {
    "b1": "BOOL",
    **{f"{code.lower()}{n}": f"{code}{8 * n}" for code in "FIU" for n in (1, 2, 4, 8)},
}

SavedState = tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]
"""JSON values, and vectors by name."""


class Checkpointed(Protocol):
    """Component with state that a checkpoint contains."""

    def save(self) -> SavedState:
        """Return the component's state for a checkpoint: JSON values and vectors; called between two events."""

    def load(self, saved: Any) -> None:
        """Restore the component's state from a checkpoint, as `save` returned it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a run after a number of events.

    Attributes:
        events: the number of journal events it includes.
        last_event_digest: identifies the last of these events, so that the checkpoint matches no other journal.
        components: the state of each component, by name.
    """

    events: int
    last_event_digest: str
    components: Mapping[str, SavedState]


class Checkpoints:
    """Latest checkpoint of a run, in its own folder.

    Args:
        folder: the run's folder for it.
        checkpoint_every: the smallest number of events between two checkpoints.
        clock: the time in seconds; only decides when the next checkpoint may be written.
    """

    def __init__(
        self,
        folder: Path,
        checkpoint_every: int = CHECKPOINT_EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if checkpoint_every < 1:
            raise SettingsError(
                f"checkpoint_every is {checkpoint_every}", where="checkpoints", remedy="use at least 1 event"
            )
        self.folder, self.checkpoint_every = folder, checkpoint_every
        self._clock, self._events, self._next_write = clock, 0, clock()

    @property
    def path(self) -> Path:
        """Path of the latest checkpoint."""
        return self.folder / "latest.safetensors"

    def offer(self, events: int, build: Callable[[], Checkpoint]) -> None:
        """Write a checkpoint if enough events have passed and writing has not taken too much time."""
        started = self._clock()
        if events - self._events >= self.checkpoint_every and started >= self._next_write:
            self.write(build())
            finished = self._clock()
            self._events, self._next_write = events, finished + (finished - started) / MAX_TIME_FRACTION

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; the old one stays until the new one is complete."""
        with map_os_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # No fsync: a file damaged by a power cut is detected by its digest, and the journal remains.
            with atomic_write(self.path, sync=False) as temporary_path, temporary_path.open("xb") as file:
                _write(file, checkpoint)

    def read(self) -> Checkpoint | None:
        """Return the latest checkpoint, if there is one.

        Raises:
            StoreError: It is damaged or has another format.
        """
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        try:
            file: Any = safe_open(self.path, "np")  # stays open: vectors are read on access
            metadata, names = file.metadata() or {}, sorted(file.keys())
            if metadata.get("format") != _FORMAT:
                raise StoreError("the checkpoint has another format", where=str(self.path))
            digest = _VectorDigest()
            for name in names:
                digest.add(name, file.get_tensor(name))
            if metadata["digest"] != digest.digest():
                raise ValueError("digest")
            content = json.loads(file.get_tensor(_VALUES).tobytes())
            components = {
                name: (values, _Vectors(file, f"{name}/", names))
                for name, values in content["components"].items()
            }
            self._events = content["events"]
            return Checkpoint(content["events"], content["last_event_digest"], components)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise StoreError("the checkpoint is damaged", where=str(self.path)) from error

    def tidy(self) -> None:
        """Remove temporary checkpoint files of a process that was killed while writing."""
        remove_leftovers(self.folder)

    def remove(self) -> None:
        """Remove the checkpoint of a run that has finished or not started."""
        shutil.rmtree(self.folder, ignore_errors=True)


class _VectorDigest:
    """Digest of named vectors, updated one vector at a time."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32)

    def add(self, name: str, values: NDArray[Any]) -> None:
        self._hash.update(f"{name}\x1f{values.dtype.str}\x1f{values.shape}\x1f".encode())
        self._hash.update(np.ascontiguousarray(values).data.cast("B") if values.size else b"")

    def digest(self) -> str:
        return self._hash.hexdigest()


class _Vectors(Mapping[str, NDArray[Any]]):
    """Vectors of one component, each read on access because all together may not fit into memory."""

    def __init__(self, file: Any, prefix: str, names: list[str]) -> None:
        self._file = file
        self._names = {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}

    def __getitem__(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = self._file.get_tensor(self._names[name])
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _write(file: IO[bytes], checkpoint: Checkpoint) -> None:
    """Write a checkpoint as a safetensors file in one pass: leave space for the header, vectors, then the header.

    The safetensors package would first collect all of it in memory.
    """
    content = {
        "events": checkpoint.events,
        "last_event_digest": checkpoint.last_event_digest,
        "components": {name: values for name, (values, _) in checkpoint.components.items()},
    }
    json_bytes = np.frombuffer(json.dumps(content).encode(), np.uint8)
    names = {
        f"{component}/{name}": (component, name)
        for component, (_, vectors) in checkpoint.components.items()
        for name in vectors
    }
    header_size = 8 * (64 + sum(len(json.dumps(name)) + _HEADER_BYTES for name in (_VALUES, *names)) // 8)
    file.seek(8 + header_size)
    digest, header, end = _VectorDigest(), {}, 0
    for name in sorted([_VALUES, *names]):
        if name == _VALUES:
            values: NDArray[Any] = json_bytes
        else:
            component, vector = names[name]
            values = np.ascontiguousarray(checkpoint.components[component][1][vector])
        digest.add(name, values)
        start, end = end, end + values.nbytes
        dtype = _DTYPES[values.dtype.newbyteorder("<").str[1:]]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, end]}
        file.write(values.data.cast("B") if values.size else b"")
    metadata = {"__metadata__": {"format": _FORMAT, "digest": digest.digest()}}
    encoded = json.dumps({**metadata, **header}).encode().ljust(header_size)
    assert len(encoded) == header_size, "the header fits into the reserved space"
    file.seek(0)
    file.write(header_size.to_bytes(8, "little") + encoded)
