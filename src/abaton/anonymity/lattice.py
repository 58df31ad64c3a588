"""Optimal full-domain generalisation: the level of every column with the smallest loss, with proof of optimality.

A *node* is one level per quasi-identifier. Its loss is ARX's ``Loss``: per column the share of the domain that a
record's name covers (1 for a suppressed record), scaled to 0..1, combined as the geometric mean of 1 + loss, minus 1;
a column with twice the weight counts twice. Invariants:

(1) Suppression only adds loss, so the loss of a node without suppression is a lower bound. It is separable and hence
    known for all nodes before any record is counted.
(2) Nodes are visited in the order of that bound; the search ends when it exceeds the best loss found. Of equally good
    nodes the one with the lower levels is used, the first column first.
(3) A class has at most as many subjects as a coarser class that contains it, so a node that fails k prunes all finer
    nodes. This holds for k only; l-diversity and t-closeness prune no node.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import EncodedTable, Floats, Mask, number_rows
from abaton.anonymity.privacy_models import satisfying_combinations
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import RefusedError, SettingsError

Node = tuple[int, ...]

_CACHE_CELLS = 30_000_000
_MAX_NODES = 50_000_000
_COUNTED, _FAILED = 1, 2
_TOLERANCE = 1e-12  # closer losses are equal: the order of a sum must not change the chosen node


@dataclass(frozen=True, slots=True, eq=False)
class Recoding:
    """Optimal node with its loss and retained combinations.

    Attributes:
        node: the level of every quasi-identifier.
        loss: ARX's ``Loss``, including suppressed records.
        suppressed: the number of suppressed records.
        retained: which combinations of the table stay.
        nodes: the number of nodes of the lattice.
        evaluated: the number of nodes that were counted.
    """

    node: Node
    loss: float
    suppressed: int
    retained: Mask
    nodes: int
    evaluated: int


class InformationLosses:
    """Loss of every node of a table, with and without suppression."""

    def __init__(self, table: EncodedTable, weights: tuple[float, ...]) -> None:
        self.table, self.weights = table, weights
        self.records = table.records
        self._shares = [
            [hierarchy.shares(level) for level in range(hierarchy.height + 1)]
            for hierarchy in table.hierarchies
        ]
        leaves = [
            np.bincount(code, weights=table.counts, minlength=len(hierarchy.labels[0]))
            for hierarchy, code in zip(table.hierarchies, table.codes, strict=True)
        ]
        self._raw_losses = [
            [float(n @ share) + table.suppressed for share in s]
            for n, s in zip(leaves, self._shares, strict=True)
        ]

    def bounds(self) -> Floats:
        """Return the loss of every lattice node without suppression, flat in row-major order of the levels."""
        factors = [
            np.array([(1 + self._scaled(i, raw)) ** self.weights[i] for raw in column])
            for i, column in enumerate(self._raw_losses)
        ]
        flat: Floats = reduce(np.multiply.outer, factors).ravel() - 1.0
        return flat

    def loss(self, node: Node, suppressed: NDArray[np.intp]) -> float:
        """Return the information loss of a lattice node with suppressed combinations."""
        counts = self.table.counts[suppressed]
        result = 1.0
        for i, level in enumerate(node):
            covered = self._shares[i][level][self.table.codes[i][suppressed]]
            raw = self._raw_losses[i][level] + float((counts * (1.0 - covered)).sum())
            result *= (1 + self._scaled(i, raw)) ** self.weights[i]
        return float(result - 1.0)

    def _scaled(self, column: int, raw: float) -> float:
        """Scale the raw loss of a lattice node from unchanged values (0) to suppression of all records (1)."""
        minimum = self.records / self.table.hierarchies[column].size
        span = self.records - minimum
        return max((raw - minimum) / span, 0.0) if span > 0 else 0.0


class LatticeClasses:
    """Classes of any node: each half of the columns is numbered once for all nodes that share it."""

    def __init__(self, table: EncodedTable) -> None:
        self._table = table
        middle = (len(table.hierarchies) + 1) // 2
        self._halves = (range(middle), range(middle, len(table.hierarchies)))
        self._cache: OrderedDict[tuple[int, Node], tuple[NDArray[np.intp], int]] = OrderedDict()

    def classes(self, node: Node) -> tuple[NDArray[np.intp], int]:
        """Return the class of every combination at a lattice node, numbered with gaps, and the number of codes."""
        (left, left_width), (right, width) = self._half(0, node), self._half(1, node)
        key = left * width + right
        if left_width * width > 20 * len(key) + 1024:
            key = np.unique(key, return_inverse=True)[1]
        return key, int(key.max()) + 1

    def _half(self, half: int, node: Node) -> tuple[NDArray[np.intp], int]:
        columns = self._halves[half]
        if not columns:
            return np.zeros(len(self._table.counts), np.intp), 1
        cache_key = half, tuple(node[i] for i in columns)
        if cache_key in self._cache:
            self._cache.move_to_end(cache_key)
            return self._cache[cache_key]
        hierarchies, codes = self._table.hierarchies, self._table.codes
        key = number_rows(
            [hierarchies[i].ancestors[node[i]][codes[i]] for i in columns],
            [len(hierarchies[i].labels[node[i]]) for i in columns],
        )
        self._cache[cache_key] = key, int(key.max()) + 1
        while len(self._cache) * len(key) > _CACHE_CELLS and len(self._cache) > 2:
            self._cache.popitem(last=False)
        return self._cache[cache_key]


def optimal_node(table: EncodedTable, settings: AnonymitySettings) -> Recoding:
    """Search the lattice for the node with the smallest loss that satisfies the study's models.

    Args:
        table: the combinations of quasi-identifiers and their counts.
        settings: k, diversity, closeness and the suppression limit.

    Returns:
        The optimal node; of equally good ones the one with the lower levels.

    Raises:
        RefusedError: No node satisfies the models within the suppression limit.
    """
    search = _Search(table, settings)
    search.run()
    return search.result()


def generalisation_path(table: EncodedTable, settings: AnonymitySettings, node: Node) -> list[Node]:
    """Return the path from a lattice node to the top, each step with the smallest added loss."""
    return _Search(table, settings).path_to_top(node)


class _Search:
    """Best-first search of the lattice; see the invariants of the module."""

    def __init__(self, table: EncodedTable, settings: AnonymitySettings) -> None:
        self.shape = tuple(hierarchy.height + 1 for hierarchy in table.hierarchies)
        if math.prod(self.shape) > _MAX_NODES:
            raise SettingsError(
                f"the hierarchies have {math.prod(self.shape):,} nodes, more than {_MAX_NODES:,}",
                where="privacy.anonymity",
                remedy="use fewer levels or quasi-identifiers, or method = 'mondrian'",
            )
        self.table, self.k, self.min_cell_count = table, settings.k, settings.min_cell_count or 1
        self.limit = math.floor(settings.suppression_limit * table.records)
        self.losses, self.grouping = InformationLosses(table, settings.weights), LatticeClasses(table)
        self.bounds = self.losses.bounds().reshape(self.shape)
        self.state = np.zeros(self.shape, np.int8)
        self.overall = [column.overall for column in table.sensitive]
        self.best: tuple[float, Node, Mask] | None = None
        self.evaluated = 0

    def run(self) -> None:
        bounds, state = self.bounds.ravel(), self.state.ravel()
        for index in np.argsort(bounds, kind="stable"):
            if self.best is not None and bounds[index] > self.best[0] + _TOLERANCE:
                return
            if not state[index]:
                self.climb(tuple(int(level) for level in np.unravel_index(index, self.shape)))

    def climb(self, node: Node) -> None:
        """Count a lattice node; if it fails k, find the coarsest failing node above it by bisection.

        The coarsest failure on the path prunes more nodes than the finest one.
        """
        if self.visit(node):
            return
        path = self.path_to_top(node)
        low, high = 0, len(path)
        while high - low > 1:
            middle = (low + high) // 2
            if self.visit(path[middle]):
                high = middle
            else:
                low = middle

    def path_to_top(self, node: Node) -> list[Node]:
        """Return the path from a lattice node to the top, each step with the smallest added loss."""
        path = [node]
        while above := [
            (*node[:i], level + 1, *node[i + 1 :])
            for i, level in enumerate(node)
            if level + 1 < self.shape[i]
        ]:
            node = min(above, key=lambda coarser: self.bounds[coarser])
            path.append(node)
        return path

    def visit(self, node: Node) -> bool:
        """Count a lattice node and store it if it is the best so far; return false if it fails k."""
        if self.state[node]:
            return bool(self.state[node] == _COUNTED)
        self.evaluated += 1
        key, classes = self.grouping.classes(node)
        counted, unreleased = local_min_cell_mask(self.table, key, self.min_cell_count), self.table.suppressed
        subjects = self.table.subjects.per_class(key, classes, counted)
        is_small = subjects[key] < self.k
        if counted is not None:
            unreleased += int(self.table.counts[~counted].sum())
            is_small &= counted
        if self.table.counts[is_small].sum() + unreleased > self.limit:
            self.state[tuple(slice(level + 1) for level in node)] = _FAILED
            return False
        self.state[node] = _COUNTED
        retained = satisfying_combinations(key, subjects, self.k, self.table.sensitive, self.overall, counted)
        suppressed = np.flatnonzero(~retained)
        if self.table.counts[suppressed].sum() + self.table.suppressed <= self.limit:
            loss = self.losses.loss(node, suppressed)
            if self.best is None or self._is_better(loss, node, *self.best[:2]):
                self.best = loss, node, retained
        return True

    @staticmethod
    def _is_better(loss: float, node: Node, best: float, known: Node) -> bool:
        return loss < best - _TOLERANCE or (loss <= best + _TOLERANCE and node < known)

    def result(self) -> Recoding:
        if self.best is None:
            raise RefusedError(
                "no generalisation of this table satisfies the study's anonymity models",
                where="privacy.anonymity",
                remedy="raise suppression_limit, lower k, l or t, or add coarser levels",
            )
        loss, node, retained = self.best
        suppressed = int(self.table.counts[~retained].sum()) + self.table.suppressed
        return Recoding(node, loss, suppressed, retained, self.state.size, self.evaluated)


def local_min_cell_mask(table: EncodedTable, key: NDArray[np.intp], min_cell_count: int) -> Mask | None:
    """Return, for a lattice node, the combinations whose site has enough subjects in their class, or None."""
    if min_cell_count <= 1 or table.sites is None:
        return None
    local = key * (int(table.sites.max()) + 1) + table.sites
    pairs, index = np.unique(local, return_inverse=True)
    is_sufficient: Mask = table.subjects.per_class(index, len(pairs))[index] >= min_cell_count
    return is_sufficient
