"""What of a site's counts of combinations may leave it: no number of fewer people than the floor, also by subtraction.

Invariants:
(1) a combination is told only if at least the floor of people have it, and all that are not told hold that many
    together, or nobody; the same holds for the sensitive values within a combination, and for those of the whole site;
(2) a name that only untold combinations have is not told, unless the study's own document lists it;
(3) a site tells on one base, the finest on which it may tell of nearly everybody; two could be subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from abaton.errors import Refused
from abaton.records.anonymity.federated import Histogram, Names, Told, choose, site_histogram
from abaton.records.anonymity.lattice import Node, optimum, way_up
from abaton.records.anonymity.settings import AnonymitySettings
from abaton.records.anonymity.tables import Table

Key = TypeVar("Key", bound=Hashable)
Chains = tuple[tuple[tuple[Names, int], ...], ...]
Numbers = Mapping[Names, int]
Steady = Callable[[str, Numbers], tuple[Numbers, int]]
"""Of a kind of numbers of people: each as it may be told, and the sum of those that were told of and are no more."""


def affordable(table: Table, settings: AnonymitySettings, floor: int) -> Node:
    """The finest levels on which a site may tell of its people, all but the share that the study lets be left out.

    Where values are sensitive, so much may be told of them that what the study asks of them can be shown to hold.

    Args:
        table: The site's own table.
        settings: The study's; its k is asked of all sites together, and of none alone.
        floor: The smallest number of people that the site tells.
    """
    own = replace(settings, k=floor, local_floor=None)
    node = _finest(replace(table, sensitive=()), replace(own, sensitive=()))
    if not any(each.diversity or each.closeness for each in settings.sensitive):
        return node
    way = way_up(table, own, node)
    return next((each for each in way if _holds(leaving(site_histogram(table, each), floor), own)), way[-1])


def _finest(table: Table, own: AnonymitySettings) -> Node:
    for limit in dict.fromkeys((own.suppression_limit, 0.0)):
        try:
            node = optimum(table, replace(own, suppression_limit=limit)).node
        except Refused:
            continue
        if leaving(site_histogram(table, node), own.k).hidden <= own.suppression_limit * table.records:
            return node
    return tuple(made.height for made in table.ladders)


def _holds(told: Histogram, own: AnonymitySettings) -> bool:
    try:
        return bool(choose([told], own).classes)
    except Refused:
        return False


def leaving(full: Histogram, floor: int, steady: Steady | None = None) -> Histogram:
    """The part of a site's histogram that may leave.

    Args:
        full: All that the site has.
        floor: The smallest number of people that it tells.
        steady: Numbers of people as they may be told, given what was told before; as they are if not given.
    """
    names = [full.names(cell) for cell in full.cells]
    numbers: Numbers = dict(zip(names, full.people, strict=True))
    gone = 0
    if steady is not None:
        numbers, gone = steady("people", numbers)
    everybody = sum(numbers.values()) + gone
    told = _tellable(numbers, everybody, floor)
    places = [place for place, each in enumerate(names) if each in told]
    people = tuple(numbers[names[place]] for place in places)
    rest = everybody - sum(people)
    # What is remembered is people: their rows may become fewer while they stay.
    counts = people if steady is not None else tuple(full.counts[place] for place in places)
    hidden = rest if steady is not None else full.hidden + sum(full.counts) - sum(counts)
    chains, cells = _without_others(full, places)
    parts = [(names[place], number) for place, number in zip(places, people, strict=True)]
    sensitive = tuple(
        _values(_named(each, names, column, steady), parts, everybody, floor)
        for column, each in enumerate(full.sensitive)
    )
    return Histogram(
        full.base, chains, full.listed, cells, counts, people, sensitive, hidden if rest >= floor else 0
    )


def _tellable(numbers: Mapping[Key, int], whole: int, floor: int) -> dict[Key, int]:
    """The numbers that may be told of parts of a whole: from the floor on, and what is left is none, or as many."""
    told = {name: number for name, number in numbers.items() if number >= floor}
    rarest = iter(sorted(told, key=lambda name: (told[name], repr(name))))
    while told and (rest := whole - sum(told.values())) != 0 and rest < floor:
        del told[next(rarest)]
    return told


def _without_others(full: Histogram, places: Sequence[int]) -> tuple[Chains, tuple[tuple[int, ...], ...]]:
    """The names of some combinations and of the study's own lists, and the combinations by their new places."""
    used = [
        range(len(chain)) if listed else sorted({full.cells[place][i] for place in places})
        for i, (chain, listed) in enumerate(zip(full.chains, full.listed, strict=True))
    ]
    new = [{old: at for at, old in enumerate(column)} for column in used]
    chains = tuple(tuple(chain[old] for old in of) for chain, of in zip(full.chains, used, strict=True))
    return chains, tuple(
        tuple(at[old] for at, old in zip(new, full.cells[place], strict=True)) for place in places
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """How many people have each sensitive value: with each combination and no other, and at the whole site."""

    values: Names
    having: Numbers
    whole: Numbers


def _named(told: Told, names: Sequence[Names], column: int, steady: Steady | None) -> _Column:
    """What a site has of a sensitive column, as it may be told given what was told before."""
    having: Numbers = {(told.values[value], *names[cell]): count for cell, value, count in told.triples}
    whole: Numbers = {(value,): count for value, count in zip(told.values, told.whole, strict=True)}
    if steady is not None:
        having, whole = steady(f"having {column}", having)[0], steady(f"whole {column}", whole)[0]
    return _Column(told.values, having, whole)


def _values(column: _Column, parts: Sequence[tuple[Names, int]], everybody: int, floor: int) -> Told:
    """What may leave of a sensitive column, given the combinations that do; of the others only how many they are."""
    triples, unsure = [], []
    known = dict.fromkeys(column.values, 0)
    for cell, (names, number) in enumerate(parts):
        mine = {value: column.having.get((value, *names), 0) for value in column.values}
        shown = _tellable(mine, number, floor)
        for value, count in shown.items():
            triples.append((cell, value, count))
            known[value] += count
        unsure.append(number - sum(shown.values()))
    # Of a value as many as the combinations tell, or so many more that nobody stands out among those.
    others = {value: column.whole[(value,)] - known[value] for value in column.values}
    more = _tellable(others, everybody - sum(known.values()), floor)
    totals = {value: known[value] + more.get(value, 0) for value in column.values}
    seen = {value: at for at, value in enumerate(value for value in column.values if totals[value])}
    return Told(
        tuple(seen),
        tuple((cell, seen[value], count) for cell, value, count in triples),
        tuple(unsure),
        tuple(totals[value] for value in seen),
    )
