"""What is done of an export, kept beside its output, so that an interrupted one goes on where it stopped."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abaton.errors import AbatonError, SettingsError
from abaton.atomic_files import replacing
from abaton.deid.settings import Mechanism
from abaton.deid.pseudonyms import Pseudonyms
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
