"""Anonymity over several sites: they share counts of names, never records, and k holds over all of them.

Steps: every site counts its records on the finest levels that it can afford to tell of (:func:`site_histogram`) and
tells what may leave (:func:`~abaton.disclosure.histograms.leaving`); a coordinator finds the best node over the
sum, on levels that all have told (:func:`choose`); every site shows its records on that node (:func:`show`). A class
counts a site's people only where the site itself has at least the floor of them, so nobody is shown as their
hospital's only one. All functions are pure; :meth:`Histogram.row` and :meth:`Choice.row` are what travels.

Counts cannot tell whether two combinations are of the same person. So a site counts everybody in one combination only,
and what sums up to k in a class is never more than the people who are in it. The sensitive values are those of people
with one combination and one value; of the others only the number is told, and the worst assumed. People of different
sites are taken for different people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import People, SensitiveCounts, Table, sizes
from abaton.anonymity.hierarchies import Label, Ladder, by_name, ladder_of
from abaton.anonymity.lattice import Node, optimum
from abaton.anonymity.privacy_models import class_counts, only
from abaton.anonymity.release import Release, recoded_as
from abaton.anonymity.settings import AnonymitySettings, Sensitive
from abaton.anonymity.table_encoding import ordered_values
from abaton.errors import Refused, SettingsError

Names = tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What one site shares of a sensitive column.

    Attributes:
        values: The values that occur.
        triples: Combination, value, and how many people have nothing else.
        unsure: Per combination, how many people have something else, too.
        whole: How many people of the site stand for each value.
    """

    values: Names
    triples: tuple[tuple[int, int, int], ...]
    unsure: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Told:
        """Read what ``asdict`` wrote."""
        triples = tuple((cell, value, count) for cell, value, count in row["triples"])
        return cls(tuple(row["values"]), triples, tuple(row["unsure"]), tuple(row["whole"]))


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """What one site shares: how many of its records and people have each combination of names.

    Attributes:
        base: The finest level shared of every quasi-identifier.
        chains: Per quasi-identifier: the names from the base level up, and how many values they stand for.
        listed: Per quasi-identifier, whether the study's own document lists its values.
        cells: Per combination: a place in each quasi-identifier's chains.
        counts: Records per combination.
        people: People per combination, everybody in one only.
        sensitive: Per sensitive column, what is told of it.
        hidden: Records in combinations that are not told: only their number is.
    """

    base: Node
    chains: tuple[tuple[tuple[Names, int], ...], ...]
    listed: tuple[bool, ...]
    cells: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    people: tuple[int, ...]
    sensitive: tuple[Told, ...]
    hidden: int

    def names(self, cell: Sequence[int]) -> Names:
        """The names of a combination on the base levels."""
        return tuple(column[place][0][0] for column, place in zip(self.chains, cell, strict=True))

    def on_levels(self, node: Node) -> dict[Names, int]:
        """How many people are told of in each class on some levels.

        Raises:
            Refused: The levels are finer than what is told, so nobody can know who hides on them.
        """
        by = [level - low for level, low in zip(node, self.base, strict=True)]
        if min(by) < 0:
            raise Refused("the ranges are finer than what the site has told")
        made: dict[Names, int] = {}
        for cell, people in zip(self.cells, self.people, strict=True):
            names = tuple(
                column[place][0][up] for column, place, up in zip(self.chains, cell, by, strict=True)
            )
            made[names] = made.get(names, 0) + people
        return made

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "sensitive": tuple(asdict(told) for told in self.sensitive)
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Histogram:
        """Read what :meth:`row` wrote."""
        return cls(
            tuple(row["base"]),
            tuple(tuple((tuple(names), leaves) for names, leaves in column) for column in row["chains"]),
            tuple(row["listed"]),
            tuple(tuple(cell) for cell in row["cells"]),
            tuple(row["counts"]),
            tuple(row["people"]),
            tuple(Told.from_row(told) for told in row["sensitive"]),
            row["hidden"],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What the coordinator tells every site.

    Attributes:
        node: The level of every quasi-identifier.
        classes: The names of every class that may be shown.
        loss: What the union loses.
        suppressed: How many records of the union are left out.
        records: How many records the union has.
    """

    node: Node
    classes: frozenset[Names]
    loss: float
    suppressed: int
    records: int

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        listed = sorted(self.classes, key=lambda names: [label or "" for label in names])
        return {name: getattr(self, name) for name in self.__slots__} | {"classes": listed}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Choice:
        """Read what :meth:`row` wrote."""
        classes = frozenset(tuple(names) for names in row["classes"])
        return cls(tuple(row["node"]), classes, row["loss"], row["suppressed"], row["records"])


def site_histogram(table: Table, base: Sequence[int] | None = None) -> Histogram:
    """Count a site's records and people on some levels; all that there is, which is more than may leave.

    Args:
        table: The site's own table.
        base: The finest level to count on per quasi-identifier; level 0 everywhere if not given.
    """
    node = tuple(base) if base is not None else (0,) * len(table.ladders)
    key, classes = table.classes(node)
    first = np.unique(key, return_index=True)[1]
    chains, columns = [], []
    for made, codes, level in zip(table.ladders, table.codes, node, strict=True):
        step = made.steps[level]
        leaf = np.unique(step, return_index=True)[1].tolist()
        names = [
            tuple(made.labels[up][made.steps[up][i]] for up in range(level, made.height + 1)) for i in leaf
        ]
        leaves = _listed_leaves(made, level) if made.covers is None else [made.covers[level]] * len(names)
        chains.append(tuple(zip(names, leaves, strict=True)))
        columns.append(step[codes[first]].tolist())
    return Histogram(
        node,
        tuple(chains),
        tuple(made.covers is None for made in table.ladders),
        tuple(zip(*columns, strict=True)),
        _plain(sizes(key, table.counts)),
        _plain(sizes(key, table.people.at_home(np.ones(len(key), bool)))),
        tuple(_told(column, key, classes) for column in table.sensitive),
        table.hidden,
    )


def _listed_leaves(made: Ladder, level: int) -> list[int]:
    """How many of the values that the study lists each name stands for; a missing one is none of them."""
    listed = np.array([label is not None for label in made.labels[0]])
    counted = np.bincount(made.steps[level][listed], minlength=len(made.labels[level]))
    return [max(int(number), 1) for number in counted]


def merge(histograms: Sequence[Histogram], settings: AnonymitySettings) -> Table:
    """Put the histograms of all sites into one table that remembers which site each count is from.

    Its finest levels are those that every site has told of.

    Raises:
        SettingsError: The sites do not share the same levels or hierarchies.
        Refused: No site shares anything.
    """
    if not histograms:
        raise SettingsError("no site has shared a histogram", remedy="ask at least one site")
    if len({_shape(h) for h in histograms if h.cells}) > 1:
        raise SettingsError("the sites counted on different levels", remedy="give all sites the same study")
    if not all(_adds_up(h) for h in histograms):
        raise SettingsError(
            "a site's histogram does not add up", remedy="let all sites run the same version of the software"
        )
    if not any(h.counts for h in histograms):
        raise Refused(
            "every site keeps all its records to itself",
            where="privacy.anonymity",
            remedy="add coarser levels to the study's hierarchies",
        )
    base = common_base(histograms)
    ladders = tuple(
        _common(quasi.column, [_lifted(h.chains[i], base[i] - h.base[i]) for h in histograms if h.cells])
        for i, quasi in enumerate(settings.quasi_identifiers)
    )
    codes = []
    for i, made in enumerate(ladders):
        place = {label: code for code, label in enumerate(made.labels[0])}
        codes.append(
            np.array(
                [place[h.chains[i][cell[i]][0][base[i] - h.base[i]]] for h in histograms for cell in h.cells],
                np.int32,
            )
        )
    counts, people = (
        np.array([number for row in rows for number in row], np.int64)
        for rows in ([h.counts for h in histograms], [h.people for h in histograms])
    )
    sites = np.repeat(np.arange(len(histograms)), [len(h.counts) for h in histograms])
    starts = np.cumsum([0, *(len(h.counts) for h in histograms)])
    hidden = sum(h.hidden for h in histograms)
    everybody = int(people.sum()) + hidden
    sensitive = tuple(
        _sensitive(asked, [h.sensitive[i] for h in histograms], starts, everybody)
        for i, asked in enumerate(settings.sensitive)
    )
    return Table(ladders, tuple(codes), counts, People(people), sensitive, sites, hidden)


def common_base(histograms: Sequence[Histogram]) -> Node:
    """The finest levels that all sites have told of; who tells of nobody has no say."""
    return tuple(max(levels) for levels in zip(*(h.base for h in histograms if h.cells), strict=True))


def _shape(told: Histogram) -> tuple[Any, ...]:
    """What must be the same at all sites: how many columns, and how many levels each has."""
    levels = [
        {low + len(names) for names, _ in column} for low, column in zip(told.base, told.chains, strict=False)
    ]
    return len(told.base), len(told.chains), len(told.sensitive), *map(frozenset, levels)


def _lifted(chains: Sequence[tuple[Names, int]], by: int) -> tuple[tuple[Names, int], ...]:
    """A column's names some levels higher, each with the values of all that it stands for there."""
    found: dict[Names, int] = {}
    for names, leaves in chains:
        found[names[by:]] = found.get(names[by:], 0) + leaves
    return tuple(found.items())


def _adds_up(told: Histogram) -> bool:
    """Whether every combination has its counts, no more people than records, and every place is one."""
    cells = len(told.cells)
    if not len(told.counts) == len(told.people) == cells or len(told.base) != len(told.chains):
        return False
    if not all(names for column in told.chains for names, _ in column):
        return False
    widths = [len(column) for column in told.chains]
    return (
        all(0 <= p <= n for p, n in zip(told.people, told.counts, strict=True))
        and all(len(cell) == len(widths) for cell in told.cells)
        and all(0 <= i < width for cell in told.cells for i, width in zip(cell, widths, strict=True))
        and all(_column_adds_up(each, cells) for each in told.sensitive)
    )


def _column_adds_up(told: Told, cells: int) -> bool:
    values = len(told.values)
    return (
        (len(told.unsure), len(told.whole)) == (cells, values)
        and min((*told.unsure, *told.whole), default=0) >= 0
        and all(0 <= cell < cells and 0 <= value < values and n > 0 for cell, value, n in told.triples)
    )


def choose(histograms: Sequence[Histogram], settings: AnonymitySettings) -> Choice:
    """Find the node that loses least over all sites, and the classes that may be shown.

    Raises:
        Refused: No node satisfies the study's models over the union within its suppression limit.
    """
    union = merge(histograms, settings)
    found = optimum(union, settings)
    columns = [
        np.array(made.labels[level], object)[made.steps[level][codes[found.kept]]]
        for made, codes, level in zip(union.ladders, union.codes, found.node, strict=True)
    ]
    base = common_base(histograms)
    node = tuple(low + level for low, level in zip(base, found.node, strict=True))
    classes = frozenset(zip(*(column.tolist() for column in columns), strict=True))
    return Choice(node, classes, found.loss, found.suppressed, union.records)


def show(table: Table, told: Histogram, choice: Choice, floor: int = 1) -> Release:
    """What one site may show: its records in the chosen classes, where it has enough people itself.

    Args:
        table: The site's own table.
        told: What the site has told; what was not told then is not shown now.
        choice: What the coordinator found.
        floor: The smallest number of its people that a class may hold, as they are now.

    Raises:
        Refused: The ranges are finer than what the site has told, so nobody can know who hides in them.
    """
    known, allowed = (
        {told.names(cell) for cell in told.cells},
        choice.classes & told.on_levels(choice.node).keys(),
    )
    mask = np.array([names in known for names in _names_on(table, told.base)], bool)
    shown = recoded_as(table, choice.node, mask)
    mask &= np.array([names in allowed for names in _names_on(table, choice.node)], bool)
    # Counted as the coordinator counts: otherwise a class could show people it was not checked with.
    home = np.where(mask, table.people.at_home(np.ones(len(mask), bool)), 0)
    return recoded_as(table, choice.node, mask & (sizes(shown.key, home)[shown.key] >= floor))


def _names_on(table: Table, node: Node) -> list[Names]:
    """The names of every combination on some levels."""
    columns = [
        np.array(made.labels[level], object)[made.steps[level][codes]].tolist()
        for made, codes, level in zip(table.ladders, table.codes, node, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _told(column: SensitiveCounts, place: Any, cells: int) -> Told:
    """What is told of a sensitive column: who has one combination and value, and how many have more."""
    width = len(column.values)
    pair = place[column.tuples] * width + column.codes
    weight = column.counts
    unsure = np.zeros(cells, np.int64)
    if (several := column.several) is not None:
        # Who has several combinations below the base or several rows with one value has one of each there.
        cell = place[several.tuples]
        owned = np.unique((several.people * (cells + 1) + cell + 1) * width + several.codes)
        who, cell = owned // width // (cells + 1), owned // width % (cells + 1) - 1
        who, own, cell = who[cell >= 0], (cell * width + owned % width)[cell >= 0], cell[cell >= 0]
        once = np.bincount(who)[who] == 1
        pair, weight = np.append(pair, own[once]), np.append(weight, np.ones(once.sum(), np.int64))
        many = np.unique(who[~once] * cells + cell[~once]) % cells if cells else who[:0]
        unsure = np.bincount(many, minlength=cells)
    pairs, found = np.unique(pair, return_inverse=True)
    counts = np.bincount(found, weights=weight)
    kept = pairs >= 0
    triples = zip(pairs[kept] // width, pairs[kept] % width, counts[kept], strict=True)
    listed = tuple((int(cell), int(value), int(count)) for cell, value, count in triples)
    wanted = only(column, place >= 0)
    whole = np.zeros(width, np.int64)
    if len(wanted.tuples) or (wanted.several is not None and len(wanted.several.tuples)):
        stand = class_counts(wanted, np.zeros(len(place), np.intp), 1, np.ones(width))
        whole = np.bincount(stand.values, stand.counts, width).astype(np.int64)
    return Told(column.values, listed, _plain(unsure), _plain(whole))


def _plain(numbers: NDArray[Any]) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers)


def _common(column: str, shared: Sequence[tuple[tuple[Names, int], ...]]) -> Ladder:
    """One ladder for all sites; a value must have the same coarser names everywhere."""
    chains: dict[Label, Names] = {}
    weights: dict[Label, int] = {}
    for names, leaves in (entry for site in shared for entry in site):
        if chains.setdefault(names[0], names) != names:
            raise SettingsError(
                "two sites coarsen the same value differently",
                where=f"column '{column}'",
                remedy="give all sites the study's hierarchy",
            )
        weights[names[0]] = max(weights.get(names[0], 0), leaves)
    ordered = sorted(chains.values(), key=by_name)
    return ladder_of(column, ordered, [weights[names[0]] for names in ordered])


def _sensitive(asked: Sensitive, shared: Sequence[Told], starts: Any, everybody: int) -> SensitiveCounts:
    values = ordered_values(list({value for told in shared for value in told.values}), asked)
    place = {value: i for i, value in enumerate(values)}
    triples = [
        (cell + int(start), place[told.values[value]], count)
        for told, start in zip(shared, starts[:-1], strict=True)
        for cell, value, count in told.triples
    ]
    tuples, codes, counts = np.array(triples, np.int64).reshape(-1, 3).T
    unsure = np.array([number for told in shared for number in told.unsure], np.int64)
    whole = np.zeros(len(values), np.int64)
    for told in shared:
        for value, number in zip(told.values, told.whole, strict=True):
            whole[place[value]] += number
    return SensitiveCounts(
        asked,
        values,
        tuples.astype(np.intp),
        codes.astype(np.intp),
        counts,
        unsure=unsure if unsure.any() else None,
        whole=whole,
        untold=max(0.0, 1 - int(whole.sum()) / everybody),
    )
