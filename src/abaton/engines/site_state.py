"""State of a learner on its site's disk, with its last reply.

It is written before the reply is sent. If a process ends in between, the stored reply is sent with the same bytes
when the task is repeated: the learner's state advances once per task, and noise is not drawn again for another
update.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.errors import SettingsError, StoreError
from abaton.learners import Learner, SiteReply
from abaton.store import content_digest

_REPLY, _PAYLOAD = "reply", "payload"


class LearnerDiskState:
    """File of one learner in a folder of its site."""

    def __init__(self, folder: Path, learner: str) -> None:
        self.path = folder / f"{content_digest(learner.encode())[:32]}.safetensors"
        self._seen: tuple[int, int] | None = None

    def stored_reply(self, task: str) -> SiteReply | None:
        """Return the reply to a task from the site's disk state if it is the last reply."""
        if not self.path.exists():
            return None
        arrays, header = self._read()
        return SiteReply(header, arrays[_PAYLOAD].tobytes()) if header["task_id"] == task else None

    def refresh(self, learner: Learner) -> None:
        """Load the site's disk state into a learner if the file has changed since it was read here."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            learner.reset_state()
            return
        if (seen := (status.st_ino, status.st_mtime_ns)) != self._seen:
            arrays, _ = self._read()
            state = {name: array for name, array in arrays.items() if name != _PAYLOAD}
            learner.restore(state) if state else learner.reset_state()
            self._seen = seen

    def save(self, learner: Learner, reply: SiteReply) -> None:
        """Write the learner's state and its reply to the site's disk atomically."""
        self._write(learner.local_state, reply.header, np.frombuffer(reply.payload, np.uint8))
        status = self.path.stat()
        self._seen = (status.st_ino, status.st_mtime_ns)

    def clear_learner_state(self) -> None:
        """Delete the learner's state on the site's disk but keep the last reply, which may be sent again."""
        if self.path.exists():
            arrays, header = self._read()
            self._write({}, header, arrays[_PAYLOAD])

    def _write(self, state: Mapping[str, Any], header: Mapping[str, Any], payload: Any) -> None:
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(values) for name, values in state.items()} | {_PAYLOAD: payload}
        with map_os_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_write(self.path, mode=0o600) as temporary_path:
                temporary_path.write_bytes(save(arrays, metadata={_REPLY: json.dumps(dict(header))}))

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                header = json.loads(file.metadata()[_REPLY])
            if not isinstance(header, dict) or "task_id" not in header or _PAYLOAD not in arrays:
                raise ValueError(_REPLY)
            return arrays, header
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise StoreError(
                "the state of the site's learner cannot be read",
                where=str(self.path),
                remedy="restore the file from a backup, or delete it to start the learner without state",
            ) from error


def clear_state(learners: Mapping[str, Learner], state_dir: Path | None, where: str) -> None:
    """Reset learners in memory; refuse a learner with state if its site has no folder for it on disk.

    Args:
        learners: the participants.
        state_dir: the folder for their state.
        where: the engine's name, for the error.
    """
    for learner in learners.values():
        learner.reset_state()
        if state_dir is None and (learner.local_state or learner.model.is_stateful):
            raise SettingsError(
                f"learner '{learner.name}' has state between tasks, but the engine has no folder for it",
                where=where,
                remedy="give the engine a folder with state_dir=",
            )
