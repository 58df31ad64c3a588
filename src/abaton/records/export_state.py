"""Pieces: a large file is worked on in stretches, and what they become is put together in their order.

Whoever works on a stretch writes a file of its own; only counts come back. The pieces are put together while others
are still being made, and nothing is waited for on the disk before the whole is there.

What is done of an export, kept beside its output, so that an interrupted one goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abaton.atomic_files import begun_name, replacing
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import Mechanism
from abaton.deid.transform_counts import Tally
from abaton.errors import AbatonError, SettingsError
from abaton.fhir.file_reader import Source, fingerprint

if TYPE_CHECKING:
    from abaton.records.export import Job


STATE = ".abaton-export.json"


class State:
    """What is done, kept beside the output under names that tell nothing.

    An anonymising export draws a key of its own. It is kept here only until the export is complete, so that
    a resumed run gives the same identities, and is gone afterwards.
    """

    def __init__(self, out: Path, *, resume: bool) -> None:
        self._path = out / STATE
        self._content: dict[str, Any] = {}
        if resume and self._path.exists():
            try:
                self._content = json.loads(self._path.read_text())
                assert isinstance(self._content, dict)
            except (AssertionError, OSError, ValueError):
                raise SettingsError(
                    "what is known of the interrupted export cannot be read",
                    where=str(self._path),
                    remedy="start again in an empty directory",
                ) from None

    @property
    def is_complete(self) -> bool:
        """Whether an anonymising export has ended: its key is gone, so nothing can be added to it."""
        return bool(self._content.get("complete"))

    def settle(self, job: Job) -> Job:
        """The job with the key that counts."""
        if job.need.deidentification.mechanism is Mechanism.PSEUDONYMISE:
            return job
        drawn = self._content.get("key")
        key = bytes.fromhex(drawn) if drawn else secrets.token_bytes(32)
        self._content["key"] = key.hex()
        self._write()
        return replace(job, key=key)

    def is_done(self, source: Source, names: Pseudonyms) -> bool:
        """Whether a source was exported before and has not changed since."""
        kept = self._content.get("files", {}).get(names.identity("file", source.relative))
        if kept is None or source.path == "-" or kept["input"] != fingerprint(source, names):
            return False
        return not kept["output"] or (self._path.parent / kept["output"]).exists()

    def done(self, source: Source, names: Pseudonyms, output: str) -> None:
        """Remember that a source is complete."""
        if source.path == "-":
            return
        files = self._content.setdefault("files", {})
        files[names.identity("file", source.relative)] = {
            "input": fingerprint(source, names),
            "output": output,
        }
        self._write()

    def finish(self) -> None:
        """Forget the drawn key: nothing can be linked from now on."""
        if self._content.pop("key", None) is not None:
            self._content = {"complete": True}
        self._write()

    def _write(self) -> None:
        try:
            with replacing(self._path, mode=0o600) as begun:
                begun.write_text(json.dumps(self._content))
        except OSError as error:
            raise unfinished(error, str(self._path)) from None


def unfinished(error: OSError, where: str) -> AbatonError:
    """The error for a file that could not be read or written to its end."""
    return AbatonError(
        f"a file was not read or written to its end: {error.strerror or 'unknown reason'}",
        where=where,
        remedy="make room or give the right to it, then add --resume",
    )


@dataclass(slots=True)
class Outcome:
    """What became of one file, or of a stretch of it."""

    source: str
    out: str = ""
    tally: Tally = field(default_factory=Tally)
    error: str = ""
    exit_code: int = 0
    asks: frozenset[str] | None = None
    """What the file names that is not in it; it is written once that is known."""


class Pieces:
    """The stretches of one file and what became of them; a file that is not cut is a single piece.

    Args:
        source: The file.
        target: What it becomes.
        stretches: The stretches of it, in their order.
    """

    def __init__(self, source: Source, target: Path, stretches: list[Source]) -> None:
        self.source, self.stretches = source, stretches
        self._target, self._begun = target, target.with_name(begun_name(f"whole-{target.name}"))
        self._outcomes: list[Outcome | None] = [None] * len(stretches)
        self._joined = 0
        self._failed: OSError | None = None

    def place(self, number: int) -> Path:
        """Where what a stretch becomes is written."""
        if len(self.stretches) == 1:
            return self._target
        return self._target.with_name(begun_name(f"{number}-{self._target.name}"))

    def add(self, number: int, outcome: Outcome) -> Outcome | None:
        """Take what became of a stretch; once all are there, what became of the whole."""
        if len(self.stretches) == 1:
            return outcome
        self._outcomes[number] = outcome
        try:
            self._join()
        except OSError as error:
            self._failed = error
        known = [each for each in self._outcomes if each is not None]
        return self._whole(known) if len(known) == len(self._outcomes) else None

    def _join(self) -> None:
        """Put behind the others what is next."""
        while (
            self._joined < len(self._outcomes)
            and (next_one := self._outcomes[self._joined])
            and not self._failed
        ):
            if next_one.out:
                piece = Path(next_one.out)
                with self._begun.open("ab") as whole, piece.open("rb") as part:
                    start = whole.tell()
                    shutil.copyfileobj(part, whole, 1 << 20)
                    whole.flush()
                    if hasattr(
                        os, "posix_fadvise"
                    ):  # the disk may begin now; waiting for it comes at the end
                        os.posix_fadvise(whole.fileno(), start, 0, os.POSIX_FADV_DONTNEED)
                piece.unlink()
            self._joined += 1

    def _whole(self, parts: list[Outcome]) -> Outcome:
        """If one stretch was refused, nothing of the file stays."""
        whole = Outcome(parts[0].source)
        for part in parts:
            whole.tally.add(part.tally)
        refused = next((part for part in parts if part.error), None)
        asks = [part.asks for part in parts if part.asks is not None]
        if refused is not None:
            whole.error, whole.exit_code = refused.error, refused.exit_code
        elif asks:
            whole.asks = frozenset().union(*asks)
        elif any(part.out for part in parts):
            self._put(whole)
        for number in range(len(parts)):
            self.place(number).unlink(missing_ok=True)
        self._begun.unlink(missing_ok=True)
        return whole

    def _put(self, whole: Outcome) -> None:
        try:
            if self._failed is not None:
                raise self._failed
            with replacing(self._target) as begun:
                self._begun.replace(begun)
            whole.out = str(self._target)
        except OSError as error:
            told = unfinished(error, whole.source)
            whole.tally, whole.error, whole.exit_code = Tally(), str(told), told.exit_code
