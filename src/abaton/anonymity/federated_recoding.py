"""Federated recoding: k-anonymity over several sites that share generalised histograms and never records.

Steps: every site counts its records on the finest levels that it may release (:func:`site_histogram`) and suppresses
small cells (:func:`~abaton.disclosure.histograms.suppress_histogram`); a coordinator finds the best node over the
sum, on levels that all sites released (:func:`choose_recoding`); every site recodes its records to that node
(:func:`apply_recoding`). A class counts a site's subjects only where the site itself has at least `min_cell_count` of
them. All functions are pure; :meth:`CombinationHistogram.row` and :meth:`RecodingChoice.row` are the messages.

Counts do not show whether two combinations belong to the same subject. So a site counts each subject in one combination
only, and the sum of a class never exceeds the subjects in it. Sensitive values are those of subjects with one
combination and one value; of the others only the number is released, and the worst case is assumed. Subjects of
different sites are assumed to be different persons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import EncodedTable, SensitiveCounts, SubjectIndex, class_sizes
from abaton.anonymity.hierarchies import Hierarchy, Label, chain_sort_key, hierarchy_from_chains
from abaton.anonymity.lattice import Node, optimal_node
from abaton.anonymity.privacy_models import class_counts, restrict_to
from abaton.anonymity.release import TableRelease, release_levels
from abaton.anonymity.settings import AnonymitySettings, SensitiveAttribute
from abaton.anonymity.table_encoding import ordered_values
from abaton.errors import RefusedError, SettingsError

Names = tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class SensitiveShare:
    """Released counts of one sensitive column of a site.

    Attributes:
        values: the values that occur.
        triples: combination, value, and the number of subjects with nothing else.
        unknown_subjects: per combination, the number of subjects with further values or combinations.
        value_totals: the number of the site's subjects per value.
    """

    values: Names
    triples: tuple[tuple[int, int, int], ...]
    unknown_subjects: tuple[int, ...]
    value_totals: tuple[int, ...]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SensitiveShare:
        """Read a site's counts of a sensitive column for the federated recoding from ``asdict`` output."""
        triples = tuple((cell, value, count) for cell, value, count in row["triples"])
        return cls(tuple(row["values"]), triples, tuple(row["unknown_subjects"]), tuple(row["value_totals"]))


@dataclass(frozen=True, slots=True, eq=False)
class CombinationHistogram:
    """Released histogram of a site: records and subjects per combination of names.

    Attributes:
        base: the finest released level of every quasi-identifier.
        chains: per quasi-identifier: the names from the base level up, and the number of values they cover.
        is_listed: per quasi-identifier, whether the study document lists its values.
        cells: per combination: an index into each quasi-identifier's chains.
        counts: records per combination.
        subjects: subjects per combination, each counted once.
        sensitive: per sensitive column, its released counts.
        suppressed: number of records in suppressed combinations.
    """

    base: Node
    chains: tuple[tuple[tuple[Names, int], ...], ...]
    is_listed: tuple[bool, ...]
    cells: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    subjects: tuple[int, ...]
    sensitive: tuple[SensitiveShare, ...]
    suppressed: int

    def names(self, cell: Sequence[int]) -> Names:
        """Return the names of a combination of a site's histogram on the base levels."""
        return tuple(column[index][0][0] for column, index in zip(self.chains, cell, strict=True))

    def subjects_per_class(self, node: Node) -> dict[Names, int]:
        """Return the subjects that a site's histogram releases in each class at the given levels.

        Raises:
            RefusedError: The levels are finer than the released ones.
        """
        steps = [level - low for level, low in zip(node, self.base, strict=True)]
        if min(steps) < 0:
            raise RefusedError("the levels of the recoding are finer than those that the site released")
        totals: dict[Names, int] = {}
        for cell, subjects in zip(self.cells, self.subjects, strict=True):
            names = tuple(
                column[index][0][up] for column, index, up in zip(self.chains, cell, steps, strict=True)
            )
            totals[names] = totals.get(names, 0) + subjects
        return totals

    def row(self) -> dict[str, Any]:
        """Return a site's histogram for the federated recoding as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "sensitive": tuple(asdict(share) for share in self.sensitive)
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> CombinationHistogram:
        """Read a site's histogram for the federated recoding from :meth:`row`."""
        return cls(
            tuple(row["base"]),
            tuple(tuple((tuple(names), leaves) for names, leaves in column) for column in row["chains"]),
            tuple(row["is_listed"]),
            tuple(tuple(cell) for cell in row["cells"]),
            tuple(row["counts"]),
            tuple(row["subjects"]),
            tuple(SensitiveShare.from_row(share) for share in row["sensitive"]),
            row["suppressed"],
        )


@dataclass(frozen=True, slots=True, eq=False)
class RecodingChoice:
    """Recoding that the coordinator sends to every site.

    Attributes:
        node: the level of every quasi-identifier.
        classes: the names of every releasable class.
        loss: the information loss of the union.
        suppressed: the number of suppressed records of the union.
        records: the number of records of the union.
    """

    node: Node
    classes: frozenset[Names]
    loss: float
    suppressed: int
    records: int

    def row(self) -> dict[str, Any]:
        """Return the federated recoding, chosen for all sites, as JSON values."""
        listed = sorted(self.classes, key=lambda names: [label or "" for label in names])
        return {name: getattr(self, name) for name in self.__slots__} | {"classes": listed}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> RecodingChoice:
        """Read the federated recoding, chosen for all sites, from :meth:`row`."""
        classes = frozenset(tuple(names) for names in row["classes"])
        return cls(tuple(row["node"]), classes, row["loss"], row["suppressed"], row["records"])


def site_histogram(table: EncodedTable, base: Sequence[int] | None = None) -> CombinationHistogram:
    """Count a site's records and subjects for the federated recoding, before suppression.

    Args:
        table: the site's table.
        base: the finest level per quasi-identifier; level 0 by default.
    """
    node = tuple(base) if base is not None else (0,) * len(table.hierarchies)
    key, classes = table.classes(node)
    first = np.unique(key, return_index=True)[1]
    chains, columns = [], []
    for hierarchy, codes, level in zip(table.hierarchies, table.codes, node, strict=True):
        step = hierarchy.ancestors[level]
        leaf = np.unique(step, return_index=True)[1].tolist()
        names = [
            tuple(
                hierarchy.labels[up][hierarchy.ancestors[up][i]] for up in range(level, hierarchy.height + 1)
            )
            for i in leaf
        ]
        leaves = (
            _listed_leaves(hierarchy, level)
            if hierarchy.covers is None
            else [hierarchy.covers[level]] * len(names)
        )
        chains.append(tuple(zip(names, leaves, strict=True)))
        columns.append(step[codes[first]].tolist())
    return CombinationHistogram(
        node,
        tuple(chains),
        tuple(hierarchy.covers is None for hierarchy in table.hierarchies),
        tuple(zip(*columns, strict=True)),
        _to_integers(class_sizes(key, table.counts)),
        _to_integers(class_sizes(key, table.subjects.count_once(np.ones(len(key), bool)))),
        tuple(_sensitive_share(column, key, classes) for column in table.sensitive),
        table.suppressed,
    )


def _listed_leaves(hierarchy: Hierarchy, level: int) -> list[int]:
    """Return how many listed values each name of a site's histogram covers, without a missing value."""
    listed = np.array([label is not None for label in hierarchy.labels[0]])
    counted = np.bincount(hierarchy.ancestors[level][listed], minlength=len(hierarchy.labels[level]))
    return [max(int(count), 1) for count in counted]


def merge(histograms: Sequence[CombinationHistogram], settings: AnonymitySettings) -> EncodedTable:
    """Merge the histograms of all sites into one table that keeps the site of each count.

    Its finest levels are those that every site released.

    Raises:
        SettingsError: The sites have different levels or hierarchies.
        RefusedError: No site released any combination.
    """
    if not histograms:
        raise SettingsError(
            "no site has released a histogram", remedy="request a histogram from at least one site"
        )
    if len({_shape(h) for h in histograms if h.cells}) > 1:
        raise SettingsError(
            "the histograms of the sites have different levels", remedy="give all sites the same study"
        )
    if not all(_is_consistent(h) for h in histograms):
        raise SettingsError(
            "the histogram of a site is inconsistent", remedy="run the same version of Abaton at all sites"
        )
    if not any(h.counts for h in histograms):
        raise RefusedError(
            "no site released any combination",
            where="privacy.anonymity",
            remedy="add coarser levels to the study's hierarchies",
        )
    base = common_base(histograms)
    hierarchies = tuple(
        _common(quasi.column, [_coarsened(h.chains[i], base[i] - h.base[i]) for h in histograms if h.cells])
        for i, quasi in enumerate(settings.quasi_identifiers)
    )
    codes = []
    for i, hierarchy in enumerate(hierarchies):
        codes_by_label = {label: code for code, label in enumerate(hierarchy.labels[0])}
        codes.append(
            np.array(
                [
                    codes_by_label[h.chains[i][cell[i]][0][base[i] - h.base[i]]]
                    for h in histograms
                    for cell in h.cells
                ],
                np.int32,
            )
        )
    counts, subjects = (
        np.array([count for row in rows for count in row], np.int64)
        for rows in ([h.counts for h in histograms], [h.subjects for h in histograms])
    )
    sites = np.repeat(np.arange(len(histograms)), [len(h.counts) for h in histograms])
    starts = np.cumsum([0, *(len(h.counts) for h in histograms)])
    suppressed = sum(h.suppressed for h in histograms)
    total_subjects = int(subjects.sum()) + suppressed
    sensitive = tuple(
        _sensitive(attribute, [h.sensitive[i] for h in histograms], starts, total_subjects)
        for i, attribute in enumerate(settings.sensitive)
    )
    return EncodedTable(
        hierarchies, tuple(codes), counts, SubjectIndex(subjects), sensitive, sites, suppressed
    )


def common_base(histograms: Sequence[CombinationHistogram]) -> Node:
    """Return the finest levels that all sites released; sites without released combinations are ignored."""
    return tuple(max(levels) for levels in zip(*(h.base for h in histograms if h.cells), strict=True))


def _shape(histogram: CombinationHistogram) -> tuple[Any, ...]:
    """Return what must be equal in all sites' histograms: the columns, and the levels of each."""
    levels = [
        {low + len(names) for names, _ in column}
        for low, column in zip(histogram.base, histogram.chains, strict=False)
    ]
    return len(histogram.base), len(histogram.chains), len(histogram.sensitive), *map(frozenset, levels)


def _coarsened(chains: Sequence[tuple[Names, int]], steps: int) -> tuple[tuple[Names, int], ...]:
    """Return the names of a site's column at a coarser level, each with the number of values it covers."""
    leaves_by_names: dict[Names, int] = {}
    for names, leaves in chains:
        leaves_by_names[names[steps:]] = leaves_by_names.get(names[steps:], 0) + leaves
    return tuple(leaves_by_names.items())


def _is_consistent(histogram: CombinationHistogram) -> bool:
    """Return whether a site's histogram has counts, no more subjects than records, and valid indices."""
    cells = len(histogram.cells)
    if not len(histogram.counts) == len(histogram.subjects) == cells or len(histogram.base) != len(
        histogram.chains
    ):
        return False
    if not all(names for column in histogram.chains for names, _ in column):
        return False
    widths = [len(column) for column in histogram.chains]
    return (
        all(0 <= p <= n for p, n in zip(histogram.subjects, histogram.counts, strict=True))
        and all(len(cell) == len(widths) for cell in histogram.cells)
        and all(0 <= i < width for cell in histogram.cells for i, width in zip(cell, widths, strict=True))
        and all(_is_share_consistent(share, cells) for share in histogram.sensitive)
    )


def _is_share_consistent(share: SensitiveShare, cells: int) -> bool:
    values = len(share.values)
    return (
        (len(share.unknown_subjects), len(share.value_totals)) == (cells, values)
        and min((*share.unknown_subjects, *share.value_totals), default=0) >= 0
        and all(0 <= cell < cells and 0 <= value < values and n > 0 for cell, value, n in share.triples)
    )


def choose_recoding(
    histograms: Sequence[CombinationHistogram], settings: AnonymitySettings
) -> RecodingChoice:
    """Choose the federated recoding: the node with the smallest loss over all sites, and its classes.

    Raises:
        RefusedError: No node satisfies the study's models over the union within its suppression limit.
    """
    union = merge(histograms, settings)
    recoding = optimal_node(union, settings)
    columns = [
        np.array(hierarchy.labels[level], object)[hierarchy.ancestors[level][codes[recoding.retained]]]
        for hierarchy, codes, level in zip(union.hierarchies, union.codes, recoding.node, strict=True)
    ]
    base = common_base(histograms)
    node = tuple(low + level for low, level in zip(base, recoding.node, strict=True))
    classes = frozenset(zip(*(column.tolist() for column in columns), strict=True))
    return RecodingChoice(node, classes, recoding.loss, recoding.suppressed, union.records)


def apply_recoding(
    table: EncodedTable, released: CombinationHistogram, choice: RecodingChoice, min_cell_count: int = 1
) -> TableRelease:
    """Apply the federated recoding at a site: release chosen classes where it has enough subjects itself.

    Args:
        table: the site's table.
        released: the site's released histogram; combinations outside it stay suppressed.
        choice: the coordinator's recoding.
        min_cell_count: the smallest number of the site's current subjects in a class.

    Raises:
        RefusedError: The levels are finer than the released ones.
    """
    released_combinations, releasable_classes = (
        {released.names(cell) for cell in released.cells},
        choice.classes & released.subjects_per_class(choice.node).keys(),
    )
    retained = np.array([names in released_combinations for names in _names_on(table, released.base)], bool)
    release = release_levels(table, choice.node, retained)
    retained &= np.array([names in releasable_classes for names in _names_on(table, choice.node)], bool)
    # Counted as in the coordinator: otherwise a class could contain subjects that were not checked.
    subjects = np.where(retained, table.subjects.count_once(np.ones(len(retained), bool)), 0)
    return release_levels(
        table, choice.node, retained & (class_sizes(release.key, subjects)[release.key] >= min_cell_count)
    )


def _names_on(table: EncodedTable, node: Node) -> list[Names]:
    """Return the names of every combination of a site at the levels of the federated recoding."""
    columns = [
        np.array(hierarchy.labels[level], object)[hierarchy.ancestors[level][codes]].tolist()
        for hierarchy, codes, level in zip(table.hierarchies, table.codes, node, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _sensitive_share(column: SensitiveCounts, index: Any, cells: int) -> SensitiveShare:
    """Return a site's released counts of a sensitive column, for the federated recoding."""
    width = len(column.values)
    pair = index[column.combinations] * width + column.codes
    weight = column.counts
    unknown_subjects = np.zeros(cells, np.int64)
    if (multi_value := column.multi_value_subjects) is not None:
        # Several combinations below the base level, or several rows with one value, count once.
        cell = index[multi_value.combinations]
        owned = np.unique((multi_value.subjects * (cells + 1) + cell + 1) * width + multi_value.codes)
        subject, cell = owned // width // (cells + 1), owned // width % (cells + 1) - 1
        subject, own_pair, cell = (
            subject[cell >= 0],
            (cell * width + owned % width)[cell >= 0],
            cell[cell >= 0],
        )
        is_single = np.bincount(subject)[subject] == 1
        pair, weight = (
            np.append(pair, own_pair[is_single]),
            np.append(weight, np.ones(is_single.sum(), np.int64)),
        )
        unknown_cells = (
            np.unique(subject[~is_single] * cells + cell[~is_single]) % cells if cells else subject[:0]
        )
        unknown_subjects = np.bincount(unknown_cells, minlength=cells)
    pairs, pair_index = np.unique(pair, return_inverse=True)
    counts = np.bincount(pair_index, weights=weight)
    is_included = pairs >= 0
    triples = zip(pairs[is_included] // width, pairs[is_included] % width, counts[is_included], strict=True)
    listed = tuple((int(cell), int(value), int(count)) for cell, value, count in triples)
    included = restrict_to(column, index >= 0)
    value_totals = np.zeros(width, np.int64)
    if len(included.combinations) or (
        included.multi_value_subjects is not None and len(included.multi_value_subjects.combinations)
    ):
        totals = class_counts(included, np.zeros(len(index), np.intp), 1, np.ones(width))
        value_totals = np.bincount(totals.values, totals.counts, width).astype(np.int64)
    return SensitiveShare(column.values, listed, _to_integers(unknown_subjects), _to_integers(value_totals))


def _to_integers(values: NDArray[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _common(column: str, shared: Sequence[tuple[tuple[Names, int], ...]]) -> Hierarchy:
    """Return one hierarchy for all sites; a value must have the same coarser names at all of them."""
    chains: dict[Label, Names] = {}
    weights: dict[Label, int] = {}
    for names, leaves in (entry for site in shared for entry in site):
        if chains.setdefault(names[0], names) != names:
            raise SettingsError(
                "two sites generalise the same value differently",
                where=f"column '{column}'",
                remedy="use the study's hierarchy at all sites",
            )
        weights[names[0]] = max(weights.get(names[0], 0), leaves)
    ordered = sorted(chains.values(), key=chain_sort_key)
    return hierarchy_from_chains(column, ordered, [weights[names[0]] for names in ordered])


def _sensitive(
    attribute: SensitiveAttribute, shared: Sequence[SensitiveShare], starts: Any, total_subjects: int
) -> SensitiveCounts:
    values = ordered_values(list({value for share in shared for value in share.values}), attribute)
    index = {value: i for i, value in enumerate(values)}
    triples = [
        (cell + int(start), index[share.values[value]], count)
        for share, start in zip(shared, starts[:-1], strict=True)
        for cell, value, count in share.triples
    ]
    combinations, codes, counts = np.array(triples, np.int64).reshape(-1, 3).T
    unknown_subjects = np.array([total for share in shared for total in share.unknown_subjects], np.int64)
    value_totals = np.zeros(len(values), np.int64)
    for share in shared:
        for value, total in zip(share.values, share.value_totals, strict=True):
            value_totals[index[value]] += total
    return SensitiveCounts(
        attribute,
        values,
        combinations.astype(np.intp),
        codes.astype(np.intp),
        counts,
        unknown_subjects=unknown_subjects if unknown_subjects.any() else None,
        value_totals=value_totals,
        unreported_fraction=max(0.0, 1 - int(value_totals.sum()) / total_subjects),
    )
