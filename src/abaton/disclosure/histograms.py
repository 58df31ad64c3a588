"""What of a site's counts of combinations may leave it: no number of fewer people than the floor, also by subtraction.

Invariants:
(1) a combination is told only if at least the floor of people have it, and all that are not told hold that many
    together, or nobody; the same holds for the sensitive values within a combination, and for those of the whole site;
(2) a name that only untold combinations have is not told, unless the study's own document lists it;
(3) what leaves depends on the people who are counted and on nobody else; told twice, of others, it could be subtracted:
    a site tells once (`abaton.study_run.site_releases`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from abaton.anonymity.equivalence_classes import Table
from abaton.anonymity.federated_recoding import Histogram, Names, Told, choose, site_histogram
from abaton.anonymity.lattice import Node, optimum, way_up
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import Refused

Key = TypeVar("Key", bound=Hashable)
Chains = tuple[tuple[tuple[Names, int], ...], ...]


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
    if not settings.asks_of_values:
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


def leaving(full: Histogram, floor: int) -> Histogram:
    """The part of a site's histogram that may leave.

    Args:
        full: All that the site has.
        floor: The smallest number of people that it tells.
    """
    everybody = sum(full.people)
    places = sorted(_tellable(dict(enumerate(full.people)), everybody, floor))
    people, counts = (tuple(of[place] for place in places) for of in (full.people, full.counts))
    rest = everybody - sum(people)
    hidden = full.hidden + sum(full.counts) - sum(counts)
    chains, cells = _without_others(full, places)
    sensitive = tuple(_values(each, places, people, everybody, floor) for each in full.sensitive)
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
        sorted(
            {full.cells[place][i] for place in places}
            | {at for at, (names, _) in enumerate(chain) if listed and names[0] is not None}
        )
        for i, (chain, listed) in enumerate(zip(full.chains, full.listed, strict=True))
    ]
    new = [{old: at for at, old in enumerate(column)} for column in used]
    chains = tuple(tuple(chain[old] for old in of) for chain, of in zip(full.chains, used, strict=True))
    return chains, tuple(
        tuple(at[old] for at, old in zip(new, full.cells[place], strict=True)) for place in places
    )


def _values(told: Told, places: Sequence[int], people: Sequence[int], everybody: int, floor: int) -> Told:
    """What may leave of a sensitive column, given the combinations that do; of the others only how many they are."""
    having = {(cell, value): count for cell, value, count in told.triples}
    values = range(len(told.values))
    known = [0] * len(values)
    triples, unsure = [], []
    for cell, (place, number) in enumerate(zip(places, people, strict=True)):
        shown = _tellable({value: having.get((place, value), 0) for value in values}, number, floor)
        for value, count in sorted(shown.items()):
            triples.append((cell, value, count))
            known[value] += count
        unsure.append(number - sum(shown.values()))
    # Of a value as many as the combinations tell, or so many more that nobody stands out among those.
    others = {value: told.whole[value] - known[value] for value in values}
    more = _tellable(others, everybody - sum(known), floor)
    totals = [known[value] + more.get(value, 0) for value in values]
    seen = {value: at for at, value in enumerate(value for value in values if totals[value])}
    return Told(
        tuple(told.values[value] for value in seen),
        tuple((cell, seen[value], count) for cell, value, count in triples),
        tuple(unsure),
        tuple(totals[value] for value in seen),
    )
