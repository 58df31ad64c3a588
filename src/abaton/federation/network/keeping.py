"""What a site keeps of a run on its own disk: the table while it waits for the others, then its scaled rows.

Programs may end at any time, so rows must lie somewhere: in the site's own folder, readable by its account
alone, de-identified. Who is out once stays out (`federation.rolls`, invariant 2): whoever a consent no longer covers
is removed from the files, too, with their rows, their groups and their id, and the learner's memory begins anew. When
the run has ended everything is removed.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.engines.reasons import STRANGER, Said
from abaton.engines.site import SiteState
from abaton.federation.learners import Rows, some
from abaton.federation.members import Member
from abaton.files import replacing
from abaton.records.features import Column, Scaled, Table
from abaton.site import SiteFile

_PARTS = ("train", "validation", "test")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A table that waits for the other sites."""

    table: Table
    people: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kept:
    """A member with what all sites share."""

    member: Member
    classes: tuple[str, ...]
    label: tuple[float, float]
    seed: int
    secret: bytes
    cohort: str


def without(member: Member, gone: frozenset[str]) -> Member:
    """A member without some people, known as rows name them."""

    def rest(table: Scaled) -> Scaled:
        return some(table, np.array([each not in gone for each in table.subjects], dtype=bool))

    stays = [each not in gone for each in member.test.subjects]
    return replace(
        member,
        people={key: patient for key, patient in member.people.items() if key not in gone},
        rows=Rows(rest(member.rows.train), rest(member.rows.validation)),
        test=rest(member.test),
        groups={name: tuple(compress(of, stays)) for name, of in member.groups.items()},
        lessened=True,
    )


def forget_person(runs: Path, file: SiteFile, leaves: Callable[[str], bool]) -> None:
    """Remove a person from everything that a site's node keeps of the runs that are under way."""
    for place in sorted(runs.iterdir()) if runs.is_dir() else ():
        if place.is_dir():
            folder = Folder(place)
            with folder.locked():
                folder.forget(file, leaves)


class Folder:
    """A run's folder at a site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table, self._member = folder / "table.safetensors", folder / "member.safetensors"

    @property
    def ready(self) -> bool:
        """Whether the site is a member of the run."""
        return self._member.exists()

    def wait(self, kept: Waiting) -> None:
        """Keep a table until all sites have told what is needed."""
        table = kept.table
        about = {
            "columns": [[c.name, c.input, c.measured, c.pooled] for c in table.columns],
            "classes": table.classes,
            "subjects": table.subjects,
            "floor": table.floor,
            "label": table.label,
            "people": dict(kept.people),
        }
        self._write(self._table, {"x": table.x, "y": table.y}, about)

    def waiting(self) -> Waiting:
        """The table that waits."""
        arrays, about = self._read(self._table)
        columns = tuple(Column(*each) for each in about["columns"])
        names = tuple(about["subjects"])
        table = Table(
            columns, arrays["x"], arrays["y"], tuple(about["classes"]), names, about["floor"], about["label"]
        )
        return Waiting(table, about["people"])

    def keep(self, kept: Kept) -> None:
        """Keep a member's rows; the table that they were made of is removed."""
        self._write_member(kept)
        self._table.unlink(missing_ok=True)

    def kept(self, file: SiteFile) -> Kept:
        """The member; a site that is none says so."""
        arrays, about = self._read(self._member)
        columns, classes = tuple(about["columns"]), tuple(about["classes"])
        parts = {
            name: Scaled(
                columns, arrays[f"{name}/x"], arrays[f"{name}/y"], classes, tuple(about["subjects"][name])
            )
            for name in _PARTS
        }
        groups = {name: tuple(of) for name, of in about["groups"].items()}
        rows = Rows(parts["train"], parts["validation"])
        member = Member(file, about["people"], rows, parts["test"], groups, about["floor"], about["digest"])
        mean, deviation = about["label"]
        secret = bytes.fromhex(about["secret"])
        return Kept(member, classes, (mean, deviation), about["seed"], secret, about["cohort"])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process of the site change the rows meanwhile."""
        with (self.folder / "rows.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def forget(self, file: SiteFile, leaves: Callable[[str], bool]) -> None:
        """Remove people from everything that lies here; whoever calls holds :meth:`locked`.

        Args:
            file: The site's document.
            leaves: Whether a person leaves, by the Patient's id.
        """
        if self._table.exists():
            waiting = self.waiting()
            gone = frozenset(key for key, patient in waiting.people.items() if leaves(patient))
            if gone:
                people = {key: patient for key, patient in waiting.people.items() if key not in gone}
                self.wait(Waiting(waiting.table.without(gone), people))
        if self.ready:
            kept = self.kept(file)
            gone = frozenset(key for key, patient in kept.member.people.items() if leaves(patient))
            if gone:
                self._write_member(replace(kept, member=without(kept.member, gone)))
                SiteState(self.folder, kept.member.name).lose_memory()

    def remove(self) -> None:
        """Forget the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_member(self, kept: Kept) -> None:
        member = kept.member
        parts = {"train": member.rows.train, "validation": member.rows.validation, "test": member.test}
        arrays = {f"{name}/x": part.x for name, part in parts.items()}
        arrays |= {f"{name}/y": part.y for name, part in parts.items()}
        about = {
            "columns": member.test.columns,
            "classes": kept.classes,
            "subjects": {name: part.subjects for name, part in parts.items()},
            "groups": {name: list(of) for name, of in member.groups.items()},
            "people": dict(member.people),
            "floor": member.floor,
            "digest": member.digest,
            "label": list(kept.label),
            "seed": kept.seed,
            "secret": kept.secret.hex(),
            "cohort": kept.cohort,
        }
        self._write(self._member, arrays, about)

    def _write(self, path: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
        from safetensors.numpy import save

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        with replacing(path, mode=0o600) as begun:
            begun.write_bytes(save(whole, metadata={"about": json.dumps(about)}))

    def _read(self, path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        from safetensors import safe_open

        if not path.exists():
            raise Said(STRANGER)
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return arrays, json.loads(file.metadata()["about"])
