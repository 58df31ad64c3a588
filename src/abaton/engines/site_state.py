"""What a site keeps on its own disk: the learner's memory, and its last answer.

It is written before the answer is sent. A process that dies in between finds its answer there when it is asked again,
and sends the same bytes: the learner's memory never moves on twice for one task, and noise is never drawn again for
another update.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from abaton.atomic_files import replacing, writing
from abaton.errors import SettingsError, StoreError
from abaton.learners import Learner, Reply
from abaton.store import digest_of

_ANSWER, _PAYLOAD = "answer", "payload"


class SiteState:
    """One learner's file in a folder that belongs to its site."""

    def __init__(self, folder: Path, learner: str) -> None:
        self.path = folder / f"{digest_of(learner.encode())[:32]}.safetensors"
        self._seen: tuple[int, int] | None = None

    def answered(self, task: str) -> Reply | None:
        """The answer to a task, if it is the last one that was answered."""
        if not self.path.exists():
            return None
        arrays, about = self._read()
        return Reply(about, arrays[_PAYLOAD].tobytes()) if about["key"] == task else None

    def refresh(self, learner: Learner) -> None:
        """Let a learner remember what was written last and nothing else, if that has changed since it was read here."""
        try:
            about = self.path.stat()
        except FileNotFoundError:
            learner.forget()
            return
        if (seen := (about.st_ino, about.st_mtime_ns)) != self._seen:
            arrays, _ = self._read()
            kept = {name: a for name, a in arrays.items() if name != _PAYLOAD}
            learner.restore(kept) if kept else learner.forget()
            self._seen = seen

    def save(self, learner: Learner, reply: Reply) -> None:
        """Write what the learner keeps and what it is about to answer: all of it or nothing."""
        self._write(learner.kept, reply.about, np.frombuffer(reply.payload, np.uint8))
        about = self.path.stat()
        self._seen = (about.st_ino, about.st_mtime_ns)

    def lose_memory(self) -> None:
        """Keep nothing but the last answer, which may have to be given once more: it was made before somebody left."""
        if self.path.exists():
            arrays, about = self._read()
            self._write({}, about, arrays[_PAYLOAD])

    def _write(self, kept: Mapping[str, Any], about: Mapping[str, Any], payload: Any) -> None:
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(values) for name, values in kept.items()} | {_PAYLOAD: payload}
        with writing(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(self.path, mode=0o600) as begun:
                begun.write_bytes(save(arrays, metadata={_ANSWER: json.dumps(dict(about))}))

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                about = json.loads(file.metadata()[_ANSWER])
            if not isinstance(about, dict) or "key" not in about or _PAYLOAD not in arrays:
                raise ValueError(_ANSWER)
            return arrays, about
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise StoreError(
                "what the site's learner keeps cannot be read",
                where=str(self.path),
                remedy="restore the file from a backup, or remove it: the learner then begins anew",
            ) from error


def begin_anew(learners: Mapping[str, Learner], states: Path | None, where: str) -> None:
    """Let learners forget every earlier run; refuse one that keeps something if there is no place for it.

    Args:
        learners: who takes part.
        states: the folder that was given for what they keep.
        where: the engine's name, for the error.
    """
    for learner in learners.values():
        learner.forget()
        if states is None and (learner.kept or learner.model.remembers):
            raise SettingsError(
                f"learner '{learner.name}' keeps something from task to task, and has no place for it",
                where=where,
                remedy="give the engine a folder with states=",
            )
