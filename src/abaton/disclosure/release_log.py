"""What has left a site as numbers of people, remembered so that nobody can be worked out by subtraction.

Everything told of a group of people is noted with the group: each person by the keyed tag that the registry knows them
by, and by nothing else. What is told next rests on the same people, or on a group that differs from each earlier one by
at least the smallest count of people; otherwise nothing is told, or what was told before. Updates are not governed
here: training goes on without whoever has left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from abaton.atomic_files import replacing, writing
from abaton.errors import StoreError

_MOST = (
    1024  # groups of one kind that are remembered; a site that has told of so many tells of no further one
)


class Ledger:
    """The file of one site; processes of the site may share it.

    Args:
        path: Where it lies, readable by the site's account alone.
        tag: How a person is known, given the Patient's id.
        floor: The smallest number of people that may be told.
    """

    def __init__(self, path: Path, tag: Callable[[str], str], floor: int) -> None:
        self.path, self.floor, self._tag = path, floor, tag
        self._known: dict[tuple[str, frozenset[str]], bool] = {}
        self._numbers: dict[str, int] = {}

    def may_tell(self, kind: str, people: Iterable[str]) -> bool:
        """Whether something of a kind may be told of some people, given everything told of that kind before.

        It may of the same people again, and of a group that differs from all earlier ones by at least the smallest
        count of people; the group is then noted.

        Args:
            kind: What is told: `sums`, `scores` or `judged`.
            people: The Patient's ids of those it rests on.
        """
        group = frozenset(people)
        found = self._known.get((kind, group))
        if found is None:
            found = self._known[kind, group] = self._asked(kind, group)
        return found

    def _asked(self, kind: str, people: frozenset[str]) -> bool:
        tags = {self._tag(each) for each in people}
        with self._opened() as row:
            groups = row["groups"].setdefault(kind, [])
            apart = [len(tags.symmetric_difference(earlier)) for earlier in groups]
            if 0 in apart:
                return True
            if len(tags) < self.floor or len(groups) >= _MOST or any(each < self.floor for each in apart):
                return False
            groups.append(sorted(tags))
            return True

    def steady(self, what: str, number: int) -> int:
        """A number of people as it may be told: as it was told before, until it has changed by the smallest count."""
        seen = self._numbers.get(what)
        if seen is not None and abs(seen - number) < self.floor:
            return seen
        with self._opened() as row:
            before = row["numbers"].get(what)
            if before is None or abs(before - number) >= self.floor:
                before = row["numbers"][what] = number
        self._numbers[what] = int(before)
        return int(before)

    def as_told(self, what: str, value: Any) -> Any:
        """Plain values as they were told the first time; noted if they never were."""
        with self._opened() as row:
            return row["told"].setdefault(what, value)

    def replace(self, what: str, value: Any) -> None:
        """Note plain values in the place of what was told before."""
        with self._opened() as row:
            row["told"][what] = value

    def told(self, what: str) -> Any:
        """What was told before, or nothing."""
        with self._opened() as row:
            return row["told"].get(what)

    def first_of(self, kind: str, name: str, value: str) -> bool:
        """Whether a value is the first that was given for a name; noted if there was none, for so many names only."""
        with self._opened() as row:
            known = row["told"].setdefault(kind, {})
            if name not in known and len(known) < _MOST:
                known[name] = value
            return bool(known.get(name) == value)

    def spend(self, what: str, task: str, most: int) -> bool:
        """Count an answer once, however often it is sent; whether it is within what may be given over all runs."""
        with self._opened() as row:
            spent = row["spent"].setdefault(what, [])
            mark = hashlib.blake2b(task.encode(), digest_size=8).hexdigest()
            if mark in spent:
                return True
            if len(spent) >= most:
                return False
            spent.append(mark)
            return True

    @contextmanager
    def _opened(self) -> Iterator[dict[str, Any]]:
        """The content, for one process at a time; written back if it has changed."""
        with writing(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f"{self.path.name}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                row = self._read()
                before = json.dumps(row)
                yield row
                after = json.dumps(row)
                if after != before:
                    with replacing(self.path, mode=0o600) as begun:
                        begun.write_text(after)

    def _read(self) -> dict[str, Any]:
        parts = ("groups", "numbers", "told", "spent")
        if not self.path.exists():
            return {name: {} for name in parts}
        try:
            row = json.loads(self.path.read_text())
            if not isinstance(row, dict) or row.keys() != set(parts):
                raise ValueError(parts)
            return row
        except (OSError, ValueError) as error:
            raise StoreError(
                "the ledger of what has left cannot be read",
                where=str(self.path),
                remedy="restore it from a backup; without it the site cannot know what may still be told",
            ) from error
