"""What a site was asked and has answered in one run: in memory if the run is replayed, else on its disk."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from abaton.atomic_files import replacing, writing
from abaton.kernels import Vector

_MODEL = "given.model"


class Notes:
    """The notes of one run.

    Args:
        run: The run's name.
        folder: Where they lie, for engines whose processes come and go; in memory if not given.
    """

    def __init__(self, run: str, folder: Path | None = None) -> None:
        self.run, self._folder = run, folder
        self._row: dict[str, Any] = {
            "given": -1, "version": -1, "key": "", "longest": 0.0, "once": {}, "refused": 0,
        }  # fmt: skip
        self._model: Vector | None = None
        self._read_at: tuple[int, int] | None = None

    @property
    def given(self) -> tuple[int, Vector] | None:
        """The last version that the site was given to train on, and its model."""
        self._refresh()
        return None if self._model is None else (int(self._row["given"]), self._model)

    @property
    def answered(self) -> tuple[int, str]:
        """The last version that an update was given for, and by which task; -1 if there was none."""
        self._refresh()
        return int(self._row["version"]), str(self._row["key"])

    @property
    def longest(self) -> float:
        """The length of the longest update that the site has sent."""
        self._refresh()
        return float(self._row["longest"])

    @property
    def refusals(self) -> int:
        """How many tasks were refused."""
        self._refresh()
        return int(self._row["refused"])

    def give(self, version: int, model: Vector) -> None:
        """Note the model that the site is given."""
        with self._changing() as row:
            row["given"], self._model = version, model

    def answer(self, version: int, key: str, length: float) -> None:
        """Note that an update has left."""
        with self._changing() as row:
            row["version"], row["key"], row["longest"] = version, key, max(row["longest"], length)

    def once(self, kind: str, what: str, most: int) -> bool:
        """Note something that may be done once, asked again as often as it gets lost; not more than so many."""
        with self._changing() as row:
            known = row["once"].setdefault(kind, {})
            if what not in known:
                if len(known) >= most:
                    return False
                known[what] = 1
            return True

    def refused(self) -> None:
        """Count a refusal."""
        with self._changing() as row:
            row["refused"] += 1

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        with self._locked():
            self._refresh()
            before = self._model
            yield self._row
            if self._folder is not None:
                self._write(changed=self._model is not before)

    def _locked(self) -> Any:
        if self._folder is None:
            return nullcontext()
        return _lock(self._folder)

    @property
    def _file(self) -> Path:
        assert self._folder is not None
        return self._folder / "notes.json"

    def _refresh(self) -> None:
        """Take over what another process of the site has written."""
        if self._folder is None or not self._file.exists():
            return
        about = self._file.stat()
        if (seen := (about.st_ino, about.st_mtime_ns)) != self._read_at:
            self._row, self._read_at = json.loads(self._file.read_text()), seen
            model = self._folder / _MODEL
            self._model = np.frombuffer(model.read_bytes(), "<f4") if model.exists() else None

    def _write(self, *, changed: bool) -> None:
        assert self._folder is not None
        if changed and self._model is not None:
            with replacing(self._folder / _MODEL, mode=0o600, sync=False) as begun:
                begun.write_bytes(np.ascontiguousarray(self._model, "<f4").tobytes())
        with replacing(self._file, mode=0o600, sync=False) as begun:
            begun.write_text(json.dumps(self._row))
        about = self._file.stat()
        self._read_at = (about.st_ino, about.st_mtime_ns)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (folder / "notes.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
