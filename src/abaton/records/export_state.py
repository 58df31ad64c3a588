"""Chunks of large files, and the state of an export from which it resumes.

A worker writes a chunk to its own file and returns counts. Finished chunks are appended in order while others are
processed, and only the complete file is synced; syncing each chunk made two processes as slow as one.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abaton.atomic_files import atomic_write, temporary_name
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import Mechanism
from abaton.deid.transform_counts import TransformCounts
from abaton.errors import AbatonError, SettingsError
from abaton.fhir.file_reader import RecordFile

if TYPE_CHECKING:
    from abaton.records.export import ExportJob


STATE = ".abaton-export.json"


class ExportState:
    """State file of an export in its output folder; file names are pseudonymised.

    An anonymising export uses a random key. It is stored here until the export is complete, so that a resumed export
    gives the same pseudonyms, and is deleted afterwards.
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
                    "the state file of the interrupted export is damaged",
                    where=str(self._path),
                    remedy="start again in an empty folder",
                ) from None

    @property
    def is_complete(self) -> bool:
        """Whether an anonymising export has finished; its key is deleted, so it cannot be extended."""
        return bool(self._content.get("complete"))

    def with_key(self, job: ExportJob) -> ExportJob:
        """Return the export job with the random key of the state file (stored or new) if the study anonymises."""
        if job.data_request.deidentification.mechanism is Mechanism.PSEUDONYMISE:
            return job
        stored = self._content.get("key")
        key = bytes.fromhex(stored) if stored else secrets.token_bytes(32)
        self._content["key"] = key.hex()
        self._write()
        return replace(job, key=key)

    def is_done(self, source: RecordFile, names: Pseudonyms) -> bool:
        """Return whether the export state has this file as exported and unchanged since."""
        recorded = self._content.get("files", {}).get(names.identity("file", source.relative))
        if recorded is None or source.path == "-" or recorded["input"] != file_fingerprint(source, names):
            return False
        return not recorded["output"] or (self._path.parent / recorded["output"]).exists()

    def mark_done(self, source: RecordFile, names: Pseudonyms, output: str) -> None:
        """Record in the export state that a file is complete."""
        if source.path == "-":
            return
        files = self._content.setdefault("files", {})
        files[names.identity("file", source.relative)] = {
            "input": file_fingerprint(source, names),
            "output": output,
        }
        self._write()

    def finish(self) -> None:
        """Delete the random key from the export state, so that later exports cannot be linked."""
        if self._content.pop("key", None) is not None:
            self._content = {"complete": True}
        self._write()

    def _write(self) -> None:
        try:
            with atomic_write(self._path, mode=0o600) as temporary_path:
                temporary_path.write_text(json.dumps(self._content))
        except OSError as error:
            raise unfinished(error, str(self._path)) from None


def file_fingerprint(source: RecordFile, names: Pseudonyms) -> str:
    """Return the keyed digest (size, modification time) by which a resumed export recognises a file."""
    status = Path(source.path).stat()
    return names.identity("state", f"{status.st_size} {status.st_mtime_ns}")  # frozen: part of the bytes


def unfinished(error: OSError, where: str) -> AbatonError:
    """Return the error for a file that an export did not read or write completely; it can be resumed."""
    return AbatonError(
        f"a file was not read or written completely: {error.strerror or type(error).__name__}",
        where=where,
        remedy="check free space and permissions, then run again with --resume",
    )


@dataclass(slots=True)
class ChunkResult:
    """Result of one file or chunk."""

    source: str
    out: str = ""
    transform_counts: TransformCounts = field(default_factory=TransformCounts)
    error: str = ""
    exit_code: int = 0
    unresolved: frozenset[str] | None = None
    """Unresolved references of the file; it is exported again when they have been looked up."""


class FileChunks:
    """Chunks of one file and their results; a small file is a single chunk.

    Args:
        source: The file.
        target: Output path.
        chunks: Its chunks in order.
    """

    def __init__(self, source: RecordFile, target: Path, chunks: list[RecordFile]) -> None:
        self.source, self.chunks = source, chunks
        self._target, self._temporary_path = target, target.with_name(temporary_name(f"whole-{target.name}"))
        self._results: list[ChunkResult | None] = [None] * len(chunks)
        self._joined = 0
        self._failed: OSError | None = None

    def chunk_path(self, number: int) -> Path:
        """Return the temporary output path of a chunk of an exported file."""
        if len(self.chunks) == 1:
            return self._target
        return self._target.with_name(temporary_name(f"{number}-{self._target.name}"))

    def add(self, number: int, result: ChunkResult) -> ChunkResult | None:
        """Add the result of an exported chunk; return the result of the file after the last one."""
        if len(self.chunks) == 1:
            return result
        self._results[number] = result
        try:
            self._join()
        except OSError as error:
            self._failed = error
        known = [result for result in self._results if result is not None]
        return self._total(known) if len(known) == len(self._results) else None

    def _join(self) -> None:
        """Append finished chunks of an exported file in order."""
        while (
            self._joined < len(self._results)
            and (next_result := self._results[self._joined])
            and not self._failed
        ):
            if next_result.out:
                path = Path(next_result.out)
                with self._temporary_path.open("ab") as joined, path.open("rb") as part:
                    start = joined.tell()
                    shutil.copyfileobj(part, joined, 1 << 20)
                    joined.flush()
                    # Writing to the disk starts now; the sync at the end waits for it.
                    if hasattr(os, "posix_fadvise"):
                        os.posix_fadvise(joined.fileno(), start, 0, os.POSIX_FADV_DONTNEED)
                path.unlink()
            self._joined += 1

    def _total(self, results: list[ChunkResult]) -> ChunkResult:
        """Return the export result of the file from its chunks; without output if a chunk was refused."""
        total = ChunkResult(results[0].source)
        for result in results:
            total.transform_counts.add(result.transform_counts)
        refused = next((result for result in results if result.error), None)
        unresolved = [result.unresolved for result in results if result.unresolved is not None]
        if refused is not None:
            total.error, total.exit_code = refused.error, refused.exit_code
        elif unresolved:
            total.unresolved = frozenset().union(*unresolved)
        elif any(result.out for result in results):
            self._publish(total)
        for number in range(len(results)):
            self.chunk_path(number).unlink(missing_ok=True)
        self._temporary_path.unlink(missing_ok=True)
        return total

    def _publish(self, total: ChunkResult) -> None:
        try:
            if self._failed is not None:
                raise self._failed
            with atomic_write(self._target) as temporary_path:
                self._temporary_path.replace(temporary_path)
            total.out = str(self._target)
        except OSError as error:
            failure = unfinished(error, total.source)
            total.transform_counts, total.error, total.exit_code = (
                TransformCounts(),
                str(failure),
                failure.exit_code,
            )
