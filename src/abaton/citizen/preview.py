"""Before and after: what becomes of every value of somebody's records, and why.

What leaves is made first, as at a site. Then every value of the original is laid beside what was made of it, so that
the page tells what happened to the bytes, not what a rule promised. Invariants:

(1) :attr:`Prepared.content` is what would be sent, to the byte;
(2) every value of every record is in exactly one row: kept, changed, or removed;
(3) what is new in the output (marks, a pseudonym, an age) is a row of its own, called added.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from abaton.canonical_json import canonical
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import Need
from abaton.deid.transform_counts import Tally
from abaton.fhir.bundles import opened

Json = dict[str, Any]
_LONG_LIST = 200


class Fate(StrEnum):
    """What becomes of a value."""

    KEPT = "kept"
    CHANGED = "changed"
    REMOVED = "removed"
    ADDED = "added"


class Row(NamedTuple):
    """One value: where it is, what it was, what is left of it, what became of it."""

    path: str
    before: Any
    after: Any
    fate: Fate


@dataclass(frozen=True, slots=True)
class Card:
    """One record, before and after."""

    type: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What would be sent, and what became of every value of the original."""

    content: bytes
    cards: tuple[Card, ...]
    reasons: dict[str, tuple[str, str]]

    @property
    def counts(self) -> Counter[str]:
        """How many values there are of each fate."""
        return Counter(row.fate.value for card in self.cards for row in card.rows)


def prepare(documents: Iterable[Json], need: Need, names: Pseudonyms, *, year: int) -> Prepared:
    """De-identify somebody's documents, and lay every value beside what is left of it.

    Args:
        documents: What :func:`abaton.citizen.uploads.read_picked` gave.
        need: What the study needs, and how.
        names: The person's own pseudonyms for this study.
        year: The current year, from which ages count.
    """
    make = Deidentifier(need, names, year=year, trace=True)
    originals: list[Json] = []
    made: list[Json] = []
    for document in _whole(documents):
        originals += opened(document)
        out = make.plain(document)
        made += opened(out) if out is not None else ()
    content = b"".join(canonical(record) + b"\n" for record in made)
    return Prepared(content, tuple(_cards(originals, made, names)), _reasons(make.tally()))


def _whole(documents: Iterable[Json]) -> Iterator[Json]:
    """Bundles as they are, and what stands alone together in one, so that it finds each other.

    The answers of a server come in pages, each a Bundle: what is on them stands alone as well.
    """
    alone: list[Json] = []
    for document in documents:
        if document.get("type") == "searchset" and isinstance(document.get("entry"), list):
            alone += (entry for entry in document["entry"] if isinstance(entry, dict))
        elif document.get("resourceType") == "Bundle":
            yield document
        else:
            alone.append({"resource": document})
    if alone:
        yield {"resourceType": "Bundle", "type": "collection", "entry": alone}


def _cards(originals: list[Json], made: list[Json], names: Pseudonyms) -> Iterator[Card]:
    """Every original beside what was made of it; what was made of none of them stands at the end."""
    waiting: dict[tuple[str, str], deque[Json]] = defaultdict(deque)
    for record in made:
        waiting[record["resourceType"], record["id"]].append(record)
    for original in originals:
        kind, old = str(original.get("resourceType")), original.get("id")
        found = waiting[kind, names.identity(kind, old)] if isinstance(old, str) and old else ()
        after = found.popleft() if found else None
        yield Card(kind, tuple(_rows(original, after, kind)))
    for rest in waiting.values():
        for record in rest:
            yield Card(record["resourceType"], tuple(_new(record, record["resourceType"])))


def _rows(before: Any, after: Any, path: str) -> Iterator[Row]:
    if isinstance(before, dict):
        other = after if isinstance(after, dict) else {}
        for key, value in before.items():
            if key != "resourceType":
                yield from _rows(value, other.get(key), f"{path}.{key}")
        for key in other.keys() - before.keys():
            yield from _new(other[key], f"{path}.{key}")
    elif isinstance(before, list):
        partners, rest = _partners(before, after if isinstance(after, list) else [])
        for value, partner in zip(before, partners, strict=True):
            yield from _rows(value, partner, path)
        for value in rest:
            yield from _new(value, path)
    elif after is None or isinstance(after, dict | list):
        yield Row(path, before, None, Fate.REMOVED)
        yield from _new(after, path) if after is not None else ()
    else:
        same = after == before and type(after) is type(before)
        yield Row(path, before, after, Fate.KEPT if same else Fate.CHANGED)


def _new(value: Any, path: str) -> Iterator[Row]:
    if isinstance(value, dict):
        for key in value:
            if key != "resourceType":
                yield from _new(value[key], f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from _new(each, path)
    else:
        yield Row(path, None, value, Fate.ADDED)


def _partners(before: list[Any], after: list[Any]) -> tuple[list[Any], list[Any]]:
    """For each element of a list what is left of it, in order, and what is in the other list besides."""
    partners: list[Any] = [None] * len(before)
    if len(before) == len(after) and (len(before) == 1 or len(before) > _LONG_LIST):
        alike = [_alike(one, other) >= 0 for one, other in zip(before, after, strict=True)]
        return [b if ok else None for b, ok in zip(after, alike, strict=True)], [
            b for b, ok in zip(after, alike, strict=True) if not ok
        ]
    rest, start = [], 0
    for value in after:
        best = max(range(start, len(before)), key=lambda i: (_alike(before[i], value), -i), default=-1)
        if best < 0 or _alike(before[best], value) < 0:
            rest.append(value)
            continue
        partners[best], start = value, best + 1
    return partners, rest


def _alike(before: Any, after: Any) -> int:
    """How much two elements have in common; less than nothing if one cannot have come from the other."""
    if isinstance(before, dict) and isinstance(after, dict):
        common = before.keys() & after.keys()
        same = sum(max(_alike(before[key], after[key]), 0) for key in common)
        url = before.get("url"), after.get("url")  # extensions are told apart by it
        return -1 if not common or url[0] != url[1] else same
    if isinstance(before, list) and isinstance(after, list):
        return sum(max((_alike(one, each) for one in before), default=0) > 0 for each in after)
    if isinstance(before, dict | list) or isinstance(after, dict | list):
        return -1
    return int(before == after)


def _reasons(tally: Tally) -> dict[str, tuple[str, str]]:
    """For each place the rule that let something through, and the one that took something away."""
    kept = {path: why.split(" ", 1)[0] if why != "no rule of its own" else "" for path, why in tally.passed}
    gone = {path: why for path, why in (*tally.dropped, *tally.left_out)}
    return {path: (kept.get(path, ""), gone.get(path, "")) for path in sorted(kept.keys() | gone.keys())}
