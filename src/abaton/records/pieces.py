"""Pieces: a large file is worked on in stretches, and what they become is put together in their order.

Whoever works on a stretch writes a file of its own; only counts come back. The pieces are put together while others
are still being made, and nothing is waited for on the disk before the whole is there.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from abaton.atomic_files import begun_name, replacing
from abaton.deid.transform_counts import Tally
from abaton.records.resuming import unfinished
from abaton.fhir.file_reader import Source


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
