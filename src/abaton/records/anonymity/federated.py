"""Anonymity over several sites: they share counts of names, never records, and k holds over all of them.

Steps: every site counts its records on common levels (:func:`site_histogram`), a coordinator finds the best
node over the sum (:func:`choose`), every site shows its records on that node (:func:`show`). A class counts a
site's records only where the site itself has at least the study's local floor of them, so nobody is shown as
their hospital's only one. All functions are pure; :meth:`Histogram.row` and :meth:`Choice.row` are what travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from abaton.errors import Refused, SettingsError
from abaton.records.anonymity.encoding import ordered_values
from abaton.records.anonymity.hierarchies import Label, Ladder, by_name, ladder_of
from abaton.records.anonymity.lattice import Node, optimum
from abaton.records.anonymity.releases import Release, recoded_as
from abaton.records.anonymity.settings import AnonymitySettings, Sensitive
from abaton.records.anonymity.tables import SensitiveCounts, Table, sizes

Names = tuple[Label, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """What one site shares: how many of its records have each combination of names.

    Attributes:
        base: The finest level shared of every quasi-identifier.
        chains: Per quasi-identifier: the names from the base level up, and how many values they stand for.
        cells: Per combination: a place in each quasi-identifier's chains.
        counts: Records per combination.
        sensitive: Per sensitive column: the values, and (combination, value, count) triples.
        hidden: Records in combinations rarer than the floor: only their number is told.
    """

    base: Node
    chains: tuple[tuple[tuple[Names, int], ...], ...]
    cells: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    sensitive: tuple[tuple[Names, tuple[tuple[int, int, int], ...]], ...]
    hidden: int

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Histogram:
        """Read what :meth:`row` wrote."""
        return cls(
            tuple(row["base"]),
            tuple(tuple((tuple(names), leaves) for names, leaves in column) for column in row["chains"]),
            tuple(tuple(cell) for cell in row["cells"]),
            tuple(row["counts"]),
            tuple((tuple(values), tuple(tuple(t) for t in triples)) for values, triples in row["sensitive"]),
            row["hidden"],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What the coordinator tells every site.

    Attributes:
        node: The level of every quasi-identifier.
        base: The finest level that was shared.
        classes: The names of every class that may be shown.
        loss: What the union loses.
        suppressed: How many records of the union are left out.
        records: How many records the union has.
    """

    node: Node
    base: Node
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
        return cls(
            tuple(row["node"]), tuple(row["base"]), classes, row["loss"], row["suppressed"], row["records"]
        )


def site_histogram(table: Table, base: Sequence[int] | None = None, *, floor: int = 1) -> Histogram:
    """Count a site's records on the levels it is willing to share.

    Args:
        table: The site's own table.
        base: The finest level to share per quasi-identifier; level 0 everywhere if not given.
        floor: Combinations with fewer records are not told, only how many records they hold together.
    """
    node = tuple(base) if base is not None else (0,) * len(table.ladders)
    key, counts = table.classes(node)
    told = np.flatnonzero(counts >= floor)
    place = np.full(len(counts), -1)
    place[told] = np.arange(len(told))
    first = np.unique(key, return_index=True)[1][told]
    chains, columns = [], []
    for made, codes, level in zip(table.ladders, table.codes, node, strict=True):
        step = made.steps[level]
        leaf = [int(np.flatnonzero(step == code)[0]) for code in range(len(made.labels[level]))]
        names = [
            tuple(made.labels[up][made.steps[up][i]] for up in range(level, made.height + 1)) for i in leaf
        ]
        chains.append(tuple(zip(names, made.leaves[level].tolist(), strict=True)))
        columns.append(step[codes[first]].tolist())
    sensitive = tuple((column.values, _triples(column, place[key])) for column in table.sensitive)
    hidden = table.records - int(counts[told].sum())
    shared = tuple(int(count) for count in counts[told])
    return Histogram(node, tuple(chains), tuple(zip(*columns, strict=True)), shared, sensitive, hidden)


def merge(histograms: Sequence[Histogram], settings: AnonymitySettings) -> Table:
    """Put the histograms of all sites into one table that remembers which site each count is from.

    Raises:
        SettingsError: The sites do not share the same levels or hierarchies.
        Refused: No site shares anything.
    """
    if not histograms:
        raise SettingsError("no site has shared a histogram", remedy="ask at least one site")
    if len({(h.base, len(h.chains), len(h.sensitive)) for h in histograms}) > 1:
        raise SettingsError(
            "the sites counted on different levels", remedy="give all sites the same study and base"
        )
    if not any(h.counts for h in histograms):
        raise Refused(
            "every site keeps all its records to itself",
            where="privacy.anonymity",
            remedy="share coarser levels or lower the floor",
        )
    ladders = tuple(
        _common(quasi.column, [histogram.chains[i] for histogram in histograms])
        for i, quasi in enumerate(settings.quasi_identifiers)
    )
    codes = []
    for i, made in enumerate(ladders):
        place = {label: code for code, label in enumerate(made.labels[0])}
        codes.append(
            np.array([place[h.chains[i][cell[i]][0][0]] for h in histograms for cell in h.cells], np.int32)
        )
    counts = np.array([count for h in histograms for count in h.counts], np.int64)
    sites = np.repeat(np.arange(len(histograms)), [len(h.counts) for h in histograms])
    starts = np.cumsum([0, *(len(h.counts) for h in histograms)])
    sensitive = tuple(
        _sensitive(asked, [h.sensitive[i] for h in histograms], starts)
        for i, asked in enumerate(settings.sensitive)
    )
    return Table(ladders, tuple(codes), counts, sensitive, sites, sum(h.hidden for h in histograms))


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
    base = histograms[0].base
    node = tuple(low + level for low, level in zip(base, found.node, strict=True))
    classes = frozenset(zip(*(column.tolist() for column in columns), strict=True))
    return Choice(node, base, classes, found.loss, found.suppressed, union.records)


def show(table: Table, choice: Choice, settings: AnonymitySettings, *, floor: int = 1) -> Release:
    """What one site may show: its records in the chosen classes, where it has enough of them itself.

    Args:
        table: The site's own table.
        choice: What the coordinator found.
        settings: The study's, for the local floor.
        floor: The one given to :func:`site_histogram`; what was not told then is not shown now.
    """
    base_key, base_counts = table.classes(choice.base)
    told = base_counts[base_key] >= floor
    shown = recoded_as(table, choice.node, told)
    columns = [np.array(names, object)[place] for names, place in zip(shown.names, shown.places, strict=True)]
    allowed = np.array(
        [names in choice.classes for names in zip(*(c.tolist() for c in columns), strict=True)]
    )
    own = sizes(shown.key, np.where(told, table.counts, 0))[shown.key] >= settings.local_floor
    return recoded_as(table, choice.node, told & allowed & own)


def _triples(column: SensitiveCounts, place: Any) -> tuple[tuple[int, int, int], ...]:
    cell = place[column.tuples]
    width = len(column.values)
    pairs, pair = np.unique(cell * width + column.codes, return_inverse=True)
    counts = np.bincount(pair, weights=column.counts)
    told = pairs >= 0
    found = zip(pairs[told] // width, pairs[told] % width, counts[told], strict=True)
    return tuple((int(cell), int(value), int(count)) for cell, value, count in found)


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


def _sensitive(
    asked: Sensitive, shared: Sequence[tuple[Names, tuple[tuple[int, int, int], ...]]], starts: Any
) -> SensitiveCounts:
    values = ordered_values(list({value for names, _ in shared for value in names}), asked)
    place = {value: i for i, value in enumerate(values)}
    triples = [
        (cell + int(start), place[names[value]], count)
        for (names, found), start in zip(shared, starts[:-1], strict=True)
        for cell, value, count in found
    ]
    tuples, codes, counts = (np.array(part, np.int64) for part in zip(*triples, strict=True))
    return SensitiveCounts(asked, values, tuples.astype(np.intp), codes.astype(np.intp), counts)
