"""Release log of a site: earlier releases of aggregates, as a protection against differencing.

Each aggregate over a group of subjects is recorded with the group, each subject by its registry pseudonym only. A later
release covers the same subjects, or a group that differs from each earlier one by at least `min_cell_count` subjects;
otherwise nothing is released, or the earlier value again. Updates are not governed here: training continues without
withdrawn subjects.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.errors import StoreError

_MAX_GROUPS = 1024  # per quantity; after this many different groups no further group is released


class ReleaseLog:
    """Release log of one site, shared by the site's processes.

    Args:
        path: File, readable by the site's account only.
        pseudonym_for: Returns the registry pseudonym of a Patient id.
        min_cell_count: Smallest count of subjects that may be released.
    """

    def __init__(self, path: Path, pseudonym_for: Callable[[str], str], min_cell_count: int) -> None:
        self.path, self.min_cell_count, self._pseudonym_for = path, min_cell_count, pseudonym_for
        self._decisions: dict[tuple[str, frozenset[str]], bool] = {}

    def may_release(self, quantity: str, patients: Iterable[str]) -> bool:
        """Return whether the release log allows a quantity for these patients, given its earlier releases.

        It may for the same patients again, and for a group that differs from all earlier ones by at least
        `min_cell_count` patients; the group is then recorded.

        Args:
            quantity: `sums`, `validation` or `test`.
            patients: Patient ids of the subjects that the aggregate covers.
        """
        group = frozenset(patients)
        decision = self._decisions.get((quantity, group))
        if decision is None:
            decision = self._decisions[quantity, group] = self._decide(quantity, group)
        return decision

    def _decide(self, quantity: str, patients: frozenset[str]) -> bool:
        pseudonyms = {self._pseudonym_for(patient) for patient in patients}
        with self._locked_content() as row:
            groups = row["groups"].setdefault(quantity, [])
            distances = [len(pseudonyms.symmetric_difference(earlier)) for earlier in groups]
            if 0 in distances:
                return True
            if len(pseudonyms) < self.min_cell_count or len(groups) >= _MAX_GROUPS:
                return False
            if any(distance < self.min_cell_count for distance in distances):
                return False
            groups.append(sorted(pseudonyms))
            return True

    def first_release(self, key: str, value: Any) -> Any:
        """Return the first release under this key in the release log; record this one if there was none."""
        with self._locked_content() as row:
            return row["releases"].setdefault(key, value)

    def replace_release(self, key: str, value: Any) -> None:
        """Record a JSON value in the release log in place of the last release."""
        with self._locked_content() as row:
            row["releases"][key] = value

    def last_release(self, key: str) -> Any:
        """Return the JSON value of the last release in the release log, or None."""
        with self._locked_content() as row:
            return row["releases"].get(key)

    def is_first_value(self, key: str, name: str, value: str) -> bool:
        """Return whether a value is the first for its name in the release log, where it is recorded if new."""
        with self._locked_content() as row:
            values = row["releases"].setdefault(key, {})
            if name not in values and len(values) < _MAX_GROUPS:
                values[name] = value
            return bool(values.get(name) == value)

    def spend_budget(self, budget: str, task: str, limit: int) -> bool:
        """Count a task once in the release log, even if repeated; return whether it is within the limit of all runs."""
        with self._locked_content() as row:
            spent = row["budgets"].setdefault(budget, [])
            task_digest = hashlib.blake2b(task.encode(), digest_size=8).hexdigest()
            if task_digest in spent:
                return True
            if len(spent) >= limit:
                return False
            spent.append(task_digest)
            return True

    @contextmanager
    def _locked_content(self) -> Iterator[dict[str, Any]]:
        """Lock the release log and yield its content; write it back if it changed."""
        with map_os_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f"{self.path.name}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                row = self._read()
                before = json.dumps(row)
                yield row
                after = json.dumps(row)
                if after != before:
                    with atomic_write(self.path, mode=0o600) as temporary_path:
                        temporary_path.write_text(after)

    def _read(self) -> dict[str, Any]:
        sections = ("groups", "releases", "budgets")
        if not self.path.exists():
            return {name: {} for name in sections}
        try:
            row = json.loads(self.path.read_text())
            if not isinstance(row, dict) or row.keys() != set(sections):
                raise ValueError(sections)
            return row
        except (OSError, ValueError) as error:
            raise StoreError(
                "the release log is not readable",
                where=str(self.path),
                remedy="restore it from a backup; without it the site cannot decide what may be released",
            ) from error
