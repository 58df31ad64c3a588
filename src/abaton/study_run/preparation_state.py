"""What a run of a study was prepared with, kept while it goes on: ranges, scale, and who was dealt where.

A run that was cut off is resumed with the same ranges, the same scale and the same deal, also if somebody has
withdrawn since: their rows are missing then, and everybody else's are where they were. People are named by the tag that
the site's registry knows them by, rows by a digest under a key of the site; nothing here holds a value of a record. The
file is removed when the run has ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.federated_recoding import Choice, Histogram
from abaton.atomic_files import replacing, writing
from abaton.errors import Refused, StoreError
from abaton.features import Moments, Statistics, Table

PARTS = ("train", "validation", "test")

Places = NDArray[np.int64]
Tagger = Callable[[str], str]
"""The tag of a person, given how rows name them."""


class Entry(NamedTuple):
    """One row of a site: whose, in which part, and its digest."""

    tag: str
    part: str
    digest: str


@dataclass(frozen=True, slots=True)
class Scale:
    """What all sites scale by: the statistics of all, and mean and deviation of the values to be learned."""

    columns: Statistics
    label: tuple[float, float]

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        named = {name: [m.count, m.total, m.squares] for name, m in self.columns.of.items()}
        return {"columns": named, "label": list(self.label)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Scale:
        """Read what :meth:`row` wrote."""
        mean, deviation = row["label"]
        return cls(
            Statistics({name: Moments(*each) for name, each in row["columns"].items()}), (mean, deviation)
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run was prepared with.

    Attributes:
        choice: The ranges that were chosen for all sites, if anonymity was asked for.
        told: What each site told for that.
        scale: What all sites scale by.
        deals: The rows of every site that takes part, in their order.
    """

    choice: Choice | None
    told: Mapping[str, Histogram]
    scale: Scale
    deals: Mapping[str, Sequence[Entry]]

    def write(self, path: Path) -> None:
        """Keep it, readable by this account alone."""
        row = {
            "choice": self.choice and self.choice.row(),
            "told": {name: each.row() for name, each in self.told.items()},
            "scale": self.scale.row(),
            "deals": {name: [list(entry) for entry in deal] for name, deal in self.deals.items()},
        }
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(path, mode=0o600) as begun:
                begun.write_text(json.dumps(row))

    @classmethod
    def read(cls, path: Path) -> Prepared | None:
        """What was kept, if anything was.

        Raises:
            StoreError: It cannot be read any more.
        """
        if not path.exists():
            return None
        try:
            row = json.loads(path.read_text())
            deals = {name: [Entry(*each) for each in deal] for name, deal in row["deals"].items()}
            choice = None if row["choice"] is None else Choice.from_row(row["choice"])
            told = {name: Histogram.from_row(each) for name, each in row["told"].items()}
            return cls(choice, told, Scale.from_row(row["scale"]), deals)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                "what the run was prepared with cannot be read",
                where=str(path),
                remedy="restore the file from a backup, or start a new run",
            ) from error


def row_digests(table: Table, key: bytes) -> list[str]:
    """A digest of each row under a key: equal rows have equal digests, and nobody without the key can try values."""
    keyed = hashlib.blake2b(key).digest()
    whole = np.ascontiguousarray(table.x), np.ascontiguousarray(table.y)
    return [
        hashlib.blake2b(x.tobytes() + y.tobytes(), key=keyed, digest_size=16).hexdigest()
        for x, y in zip(*whole, strict=True)
    ]


def entries(table: Table, parts: Mapping[str, Places], key: bytes, tag: Tagger) -> list[Entry]:
    """The rows of a table that was dealt."""
    named = np.empty(len(table), object)
    for part, places in parts.items():
        named[places] = part
    digests = row_digests(table, key)
    return [
        Entry(tag(subject), part, digest)
        for subject, part, digest in zip(table.subjects, named, digests, strict=True)
    ]


def deal_fingerprint(deal: Sequence[Entry], columns: Sequence[str], key: bytes) -> str:
    """A digest of what a site has for a run, under a key; who is tagged how does not matter."""
    made = hashlib.blake2b(key=hashlib.blake2b(key).digest(), digest_size=32)
    made.update(json.dumps([list(columns), [[entry.part, entry.digest] for entry in deal]]).encode())
    return made.hexdigest()


def dealt_again(
    deal: Sequence[Entry], table: Table, key: bytes, tag: Tagger, left: Callable[[str], bool], site: str
) -> dict[str, Places]:
    """Where each row of a table was dealt when the run was begun.

    Args:
        deal: The rows then.
        table: The rows now.
        key: The site's, for digests.
        tag: Names people.
        left: Whether somebody has left since, by their tag.
        site: The site's name, for the error.

    Raises:
        Refused: A row is new, is not what it was, or is missing though nobody has left.
    """
    digests = row_digests(table, key)
    tags = [tag(subject) for subject in table.subjects]
    nameless = not all(tags) or not all(entry.tag for entry in deal)
    known = {str(i): entry for i, entry in enumerate(deal)} if nameless else {e.tag: e for e in deal}
    here = [str(i) for i in range(len(tags))] if nameless else tags
    same = all(
        name in known and known[name].digest == digest for name, digest in zip(here, digests, strict=True)
    )
    gone = known.keys() - set(here)
    if not same or any(nameless or not left(name) for name in gone):
        raise Refused(
            f"what {site} has for the study is not what the run was started with",
            where="its records have changed since",
            remedy="start a new run",
        )
    parts = np.array([known[name].part for name in here], object)
    return {part: np.flatnonzero(parts == part).astype(np.int64) for part in PARTS}
