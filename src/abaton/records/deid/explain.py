"""Explaining: which rule did what to each element of a record. Places, rules and counts; never a value."""

from __future__ import annotations

from typing import NamedTuple

from abaton.deid.deidentifier import Deidentifier
from abaton.deid.settings import Need
from abaton.deid.pseudonyms import Pseudonyms
from abaton.record_types import Record


class Told(NamedTuple):
    """What happened at one place."""

    path: str
    kept: int
    dropped: int
    why: str


def explain(record: Record, need: Need, names: Pseudonyms, *, year: int) -> list[Told]:
    """What every rule did to a record, in the order of the paths."""
    make = Deidentifier(need, names, year=year, trace=True)
    make.plain(record.content)
    tally = make.tally()
    rows = [Told(path, count, 0, why) for (path, why), count in tally.passed.items()]
    rows += [Told(path, 0, count, why) for (path, why), count in tally.dropped.items()]
    rows += [Told(kind, 0, count, why) for (kind, why), count in tally.left_out.items()]
    return sorted(rows)
