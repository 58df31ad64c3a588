"""Checkpoints: everything a controller needs to go on, so that a resumed run does not mix all its models again.

A checkpoint is one file, replaced as a whole. It is made of named parts, each of plain values and vectors: what the
driver of the run knows, the community model with its exact sum and the newest model of every learner, and whatever
else has a state of its own. It says how many events of the journal it stands for; only the later ones are replayed.
It is for engines in real time: under the virtual clock the simulated machines have a state of their own, and a run is
replayed from its beginning.

Invariants:
(1) a checkpoint stands for events that are in the journal, and for nothing else: what it holds follows from them;
(2) one that is damaged, of another form or of another journal is never resumed from: the whole journal is replayed;
(3) writing takes a bounded share of a run's time, however large the models are (`SHARE`), and vectors are written and
    read one by one;
(4) the folder is the run's own, and goes when the run has ended.
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

from abaton.atomic_files import replacing, sweep, writing
from abaton.errors import SettingsError, StoreError

EVERY = 100
"""After how many events a run in real time writes its next checkpoint, unless told otherwise."""

SHARE = 0.04
"""Which share of a run's time is spent on writing checkpoints at most."""

_FORM = "1"
_ABOUT = "about"
_ROOM = 160  # bytes of the header for each vector besides its name: dtype, shape and two offsets
_KINDS = {"b1": "BOOL", **{f"{kind.lower()}{n}": f"{kind}{8 * n}" for kind in "FIU" for n in (1, 2, 4, 8)}}

Saved = tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]
"""Plain values that JSON can hold, and vectors by name."""


class Part(Protocol):
    """Something that a run goes on with: it can say what it knows, and take that over."""

    def save(self) -> Saved:
        """Plain values and vectors that `load` makes the same of; asked for between two events."""

    def load(self, saved: Any) -> None:
        """Take over what `save` gave."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was so after a number of events.

    Attributes:
        events: how many events of the journal it stands for.
        mark: names the last of them, so that it fits no other journal.
        parts: what each part of the run knew, by its name.
    """

    events: int
    mark: str
    parts: Mapping[str, Saved]


class Checkpoints:
    """The newest checkpoint of a run, in a folder of its own.

    Args:
        folder: the run's own folder for it.
        every: after how many events the next one is written, at the earliest.
        clock: the time in seconds; decides when the next one may be written, and nothing else.
    """

    def __init__(self, folder: Path, every: int = EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        if every < 1:
            raise SettingsError(f"every is {every}", where="checkpoints", remedy="use at least 1 event")
        self.folder, self.every = folder, every
        self._clock, self._events, self._earliest = clock, 0, clock()

    @property
    def path(self) -> Path:
        """Where the newest checkpoint is."""
        return self.folder / "newest.safetensors"

    def offer(self, events: int, make: Callable[[], Checkpoint]) -> None:
        """Write a checkpoint if it is time for one: enough has happened, and writing has not taken too much time."""
        begun = self._clock()
        if events - self._events >= self.every and begun >= self._earliest:
            self.write(make())
            ended = self._clock()
            self._events, self._earliest = events, ended + (ended - begun) / SHARE

    def write(self, made: Checkpoint) -> None:
        """Replace the checkpoint: the old one is there until the new one is complete."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # Not waited for: what a power cut damages is found by its digest, and the journal is there.
            with replacing(self.path, sync=False) as begun, begun.open("xb") as file:
                _write(file, made)

    def read(self) -> Checkpoint | None:
        """The newest checkpoint, if there is one.

        Raises:
            StoreError: It is damaged, or of another form.
        """
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        try:
            file: Any = safe_open(self.path, "np")  # stays open: what it holds is taken from it one by one
            metadata, names = file.metadata() or {}, sorted(file.keys())
            if metadata.get("form") != _FORM:
                raise StoreError("the checkpoint is of another form", where=str(self.path))
            seal = _Seal()
            for name in names:
                seal.add(name, file.get_tensor(name))
            if metadata["digest"] != seal.digest():
                raise ValueError("digest")
            plain = json.loads(file.get_tensor(_ABOUT).tobytes())
            parts = {
                part: (about, _Vectors(file, f"{part}/", names)) for part, about in plain["parts"].items()
            }
            self._events = plain["events"]
            return Checkpoint(plain["events"], plain["mark"], parts)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise StoreError("the checkpoint is damaged", where=str(self.path)) from error

    def tidy(self) -> None:
        """Remove what a process that was killed had begun to write."""
        sweep(self.folder)

    def remove(self) -> None:
        """Forget the checkpoint of a run that has ended, or has not begun."""
        shutil.rmtree(self.folder, ignore_errors=True)


class _Seal:
    """A digest of vectors and their names, taken one by one."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32)

    def add(self, name: str, values: NDArray[Any]) -> None:
        self._hash.update(f"{name}\x1f{values.dtype.str}\x1f{values.shape}\x1f".encode())
        self._hash.update(np.ascontiguousarray(values).data.cast("B") if values.size else b"")

    def digest(self) -> str:
        return self._hash.hexdigest()


class _Vectors(Mapping[str, NDArray[Any]]):
    """The vectors of one part, each read when it is asked for: together they may not fit in memory."""

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


def _write(file: IO[bytes], made: Checkpoint) -> None:
    """Write a file of the form of safetensors in one pass: room for its header, the vectors, then the header.

    The package would first bring all of it together in memory, which may be more than there is.
    """
    plain = {"events": made.events, "mark": made.mark, "parts": {p: a for p, (a, _) in made.parts.items()}}
    about = np.frombuffer(json.dumps(plain).encode(), np.uint8)
    places = {f"{part}/{name}": (part, name) for part, (_, vectors) in made.parts.items() for name in vectors}
    room = 8 * (64 + sum(len(json.dumps(name)) + _ROOM for name in (_ABOUT, *places)) // 8)
    file.seek(8 + room)
    seal, header, end = _Seal(), {}, 0
    for name in sorted([_ABOUT, *places]):
        if name == _ABOUT:
            values: NDArray[Any] = about
        else:
            part, own = places[name]
            values = np.ascontiguousarray(made.parts[part][1][own])
        seal.add(name, values)
        begin, end = end, end + values.nbytes
        kind = _KINDS[values.dtype.newbyteorder("<").str[1:]]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [begin, end]}
        file.write(values.data.cast("B") if values.size else b"")
    metadata = {"__metadata__": {"form": _FORM, "digest": seal.digest()}}
    told = json.dumps({**metadata, **header}).encode().ljust(room)
    assert len(told) == room, "there is room for every vector's line"
    file.seek(0)
    file.write(room.to_bytes(8, "little") + told)
