"""The best common coarsening of a table: which level every column must be shown on, proven optimal.

A *node* is one level per quasi-identifier. Its loss is ARX's ``Loss``: per column the share of the domain
that a record's name covers (a left-out record covers everything), scaled to 0..1, combined as the geometric
mean of 1 + loss, minus 1; a column with twice the weight enters it twice. Invariants:

(1) Leaving records out only adds loss, so the loss of a node with nobody left out is a lower bound. It is
    separable, hence known for all nodes before any record is counted.
(2) Nodes are visited in the order of that bound; when it exceeds the best loss found, the search is over.
    Of equally good nodes the one with the lower levels wins, the first column first.
(3) A class has no more people than any coarser one that holds it: if a node leaves out too many for k, so do all
    finer nodes, and they are struck off. This holds for k only: diversity and closeness strike off no node.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import Floats, Mask, Table, compact
from abaton.anonymity.privacy_models import safe
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import Refused, SettingsError

Node = tuple[int, ...]

_CACHE_CELLS = 30_000_000
_LARGEST_LATTICE = 50_000_000
_COUNTED, _FAILED = 1, 2
_SAME = 1e-12  # losses this near are equal: a sum in another order must not choose another node


@dataclass(frozen=True, slots=True, eq=False)
class Recoding:
    """The best node, what it loses, and which combinations it leaves out.

    Attributes:
        node: The level of every quasi-identifier.
        loss: ARX's ``Loss``, left-out records included.
        suppressed: How many records are left out.
        kept: Which combinations of the table stay.
        nodes: How many nodes there are.
        evaluated: How many of them had to be counted.
    """

    node: Node
    loss: float
    suppressed: int
    kept: Mask
    nodes: int
    evaluated: int


class Losses:
    """The loss of every node of a table, with and without records left out."""

    def __init__(self, table: Table, weights: tuple[float, ...]) -> None:
        self.table, self.weights = table, weights
        self.records = table.records
        self._shares = [[made.shares(level) for level in range(made.height + 1)] for made in table.ladders]
        leaves = [
            np.bincount(code, weights=table.counts, minlength=len(made.labels[0]))
            for made, code in zip(table.ladders, table.codes, strict=True)
        ]
        self._whole = [
            [float(n @ share) + table.hidden for share in s]
            for n, s in zip(leaves, self._shares, strict=True)
        ]

    def bounds(self) -> Floats:
        """The loss of every node if nobody had to be left out, flat in row-major order of the levels."""
        factors = [
            np.array([(1 + self._scaled(i, raw)) ** self.weights[i] for raw in column])
            for i, column in enumerate(self._whole)
        ]
        flat: Floats = reduce(np.multiply.outer, factors).ravel() - 1.0
        return flat

    def loss(self, node: Node, left_out: NDArray[np.intp]) -> float:
        """The loss of a node when some combinations are left out."""
        counts = self.table.counts[left_out]
        result = 1.0
        for i, level in enumerate(node):
            covered = self._shares[i][level][self.table.codes[i][left_out]]
            raw = self._whole[i][level] + float((counts * (1.0 - covered)).sum())
            result *= (1 + self._scaled(i, raw)) ** self.weights[i]
        return float(result - 1.0)

    def _scaled(self, column: int, raw: float) -> float:
        """From "every value shown" (0) to "every record left out" (1)."""
        least = self.records / self.table.ladders[column].size
        span = self.records - least
        return max((raw - least) / span, 0.0) if span > 0 else 0.0


class Grouping:
    """The classes of any node: each half of the columns is numbered once for all nodes that share it."""

    def __init__(self, table: Table) -> None:
        self._table = table
        middle = (len(table.ladders) + 1) // 2
        self._halves = (range(middle), range(middle, len(table.ladders)))
        self._cache: OrderedDict[tuple[int, Node], tuple[NDArray[np.intp], int]] = OrderedDict()

    def classes(self, node: Node) -> tuple[NDArray[np.intp], int]:
        """The class of every combination, numbered with gaps, and how many numbers are used."""
        (left, lefts), (right, width) = self._half(0, node), self._half(1, node)
        key = left * width + right
        if lefts * width > 20 * len(key) + 1024:
            key = np.unique(key, return_inverse=True)[1]
        return key, int(key.max()) + 1

    def _half(self, half: int, node: Node) -> tuple[NDArray[np.intp], int]:
        columns = self._halves[half]
        if not columns:
            return np.zeros(len(self._table.counts), np.intp), 1
        name = half, tuple(node[i] for i in columns)
        if name in self._cache:
            self._cache.move_to_end(name)
            return self._cache[name]
        ladders, codes = self._table.ladders, self._table.codes
        key = compact(
            [ladders[i].steps[node[i]][codes[i]] for i in columns],
            [len(ladders[i].labels[node[i]]) for i in columns],
        )
        self._cache[name] = key, int(key.max()) + 1
        while len(self._cache) * len(key) > _CACHE_CELLS and len(self._cache) > 2:
            self._cache.popitem(last=False)
        return self._cache[name]


def optimum(table: Table, settings: AnonymitySettings) -> Recoding:
    """Find the node that satisfies the study's models with the least loss; nothing better exists.

    Args:
        table: The combinations of quasi-identifiers and their counts.
        settings: k, diversity, closeness and the suppression limit.

    Returns:
        The best node; of equally good ones the one with the lower levels.

    Raises:
        Refused: No node satisfies the models within the suppression limit.
    """
    search = _Search(table, settings)
    search.run()
    return search.result()


def way_up(table: Table, settings: AnonymitySettings, node: Node) -> list[Node]:
    """From a node to the top, each step the one that adds the least loss."""
    return _Search(table, settings).way_up(node)


class _Search:
    """One best-first walk over the lattice; see the module's invariants."""

    def __init__(self, table: Table, settings: AnonymitySettings) -> None:
        self.shape = tuple(made.height + 1 for made in table.ladders)
        if math.prod(self.shape) > _LARGEST_LATTICE:
            raise SettingsError(
                f"the hierarchies give {math.prod(self.shape):,} nodes, too many to prove an optimum",
                where="privacy.anonymity",
                remedy="use fewer levels or quasi-identifiers, or method = 'mondrian'",
            )
        self.table, self.k, self.floor = table, settings.k, settings.local_floor or 1
        self.limit = math.floor(settings.suppression_limit * table.records)
        self.losses, self.grouping = Losses(table, settings.weights), Grouping(table)
        self.bounds = self.losses.bounds().reshape(self.shape)
        self.state = np.zeros(self.shape, np.int8)
        self.overall = [column.overall for column in table.sensitive]
        self.best: tuple[float, Node, Mask] | None = None
        self.evaluated = 0

    def run(self) -> None:
        bounds, state = self.bounds.ravel(), self.state.ravel()
        for place in np.argsort(bounds, kind="stable"):
            if self.best is not None and bounds[place] > self.best[0] + _SAME:
                return
            if not state[place]:
                self.climb(tuple(int(level) for level in np.unravel_index(place, self.shape)))

    def climb(self, node: Node) -> None:
        """Count a node; if it leaves out too many for k, find by bisection how far above it that stays so.

        The coarsest failure on the way up strikes off more nodes than the finest one.
        """
        if self.visit(node):
            return
        way = self.way_up(node)
        low, high = 0, len(way)
        while high - low > 1:
            middle = (low + high) // 2
            if self.visit(way[middle]):
                high = middle
            else:
                low = middle

    def way_up(self, node: Node) -> list[Node]:
        """From a node to the top, each step the one that adds the least loss."""
        way = [node]
        while above := [
            (*node[:i], level + 1, *node[i + 1 :])
            for i, level in enumerate(node)
            if level + 1 < self.shape[i]
        ]:
            node = min(above, key=lambda coarser: self.bounds[coarser])
            way.append(node)
        return way

    def visit(self, node: Node) -> bool:
        """Count a node and remember it if it is the best so far; false if it leaves out too many for k."""
        if self.state[node]:
            return bool(self.state[node] == _COUNTED)
        self.evaluated += 1
        key, classes = self.grouping.classes(node)
        counted, unseen = local_floor(self.table, key, self.floor), self.table.hidden
        people = self.table.people.per_class(key, classes, counted)
        small = people[key] < self.k
        if counted is not None:
            unseen += int(self.table.counts[~counted].sum())
            small &= counted
        if self.table.counts[small].sum() + unseen > self.limit:
            self.state[tuple(slice(level + 1) for level in node)] = _FAILED
            return False
        self.state[node] = _COUNTED
        kept = safe(key, people, self.k, self.table.sensitive, self.overall, counted)
        left_out = np.flatnonzero(~kept)
        if self.table.counts[left_out].sum() + self.table.hidden <= self.limit:
            loss = self.losses.loss(node, left_out)
            if self.best is None or self._better(loss, node, *self.best[:2]):
                self.best = loss, node, kept
        return True

    @staticmethod
    def _better(loss: float, node: Node, best: float, known: Node) -> bool:
        return loss < best - _SAME or (loss <= best + _SAME and node < known)

    def result(self) -> Recoding:
        if self.best is None:
            raise Refused(
                "no common coarsening of this table satisfies the study's anonymity",
                where="privacy.anonymity",
                remedy="raise suppression_limit, lower k, l or t, or add coarser levels",
            )
        loss, node, kept = self.best
        suppressed = int(self.table.counts[~kept].sum()) + self.table.hidden
        return Recoding(node, loss, suppressed, kept, self.state.size, self.evaluated)


def local_floor(table: Table, key: NDArray[np.intp], floor: int) -> Mask | None:
    """Which combinations their own site has enough people for in a class; ``None`` where nothing is asked."""
    if floor <= 1 or table.sites is None:
        return None
    local = key * (int(table.sites.max()) + 1) + table.sites
    names, place = np.unique(local, return_inverse=True)
    enough: Mask = table.people.per_class(place, len(names))[place] >= floor
    return enough
