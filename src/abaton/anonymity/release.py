"""Release of a table: the generalised names and class of every combination, and the suppressed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import EncodedTable, Mask
from abaton.anonymity.hierarchies import Label
from abaton.anonymity.lattice import Node, Recoding, optimal_node
from abaton.anonymity.mondrian import MondrianPartition, mondrian_partition
from abaton.anonymity.privacy_models import satisfying_combinations
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import RefusedError


@dataclass(frozen=True, slots=True, eq=False)
class TableRelease:
    """Table as it would be released.

    Attributes:
        method: ``as is``, ``recode`` or ``mondrian``.
        key: the class of every combination.
        classes: the number of classes.
        covered: per quasi-identifier, the number of domain values that the name of each combination covers.
        names: per quasi-identifier, the names in use.
        indices: per quasi-identifier, an index into its names for every combination.
        retained: which combinations are released; the others are suppressed.
        node: the level of every quasi-identifier, where all records share one.
        nodes: the number of nodes of the lattice, where one was searched.
        evaluated: the number of nodes that were counted.
    """

    method: str
    key: NDArray[np.intp]
    classes: int
    covered: tuple[NDArray[np.int64], ...]
    names: tuple[tuple[Label, ...], ...]
    indices: tuple[NDArray[np.intp], ...]
    retained: Mask
    node: Node | None = None
    nodes: int = 0
    evaluated: int = 0


def release_unchanged(table: EncodedTable) -> TableRelease:
    """Return the release of the unchanged table, without suppression."""
    node = (0,) * len(table.hierarchies)
    return release_levels(table, node, np.ones(len(table.counts), bool), method="as is")


def release_recoding(table: EncodedTable, recoding: Recoding) -> TableRelease:
    """Return the release of a table at the levels of a search result."""
    release = release_levels(table, recoding.node, recoding.retained)
    return replace(release, nodes=recoding.nodes, evaluated=recoding.evaluated)


def make_release(table: EncodedTable, settings: AnonymitySettings) -> TableRelease:
    """Make the anonymous release of a table by the method of the study.

    Args:
        table: the combinations of quasi-identifiers and their counts.
        settings: the study's settings; with method ``measure`` the table is released unchanged or refused.

    Returns:
        The release; every class of it satisfies k, diversity and closeness.

    Raises:
        RefusedError: The study's anonymity cannot be reached within its suppression limit.
    """
    if settings.method == "recode":
        return release_recoding(table, optimal_node(table, settings))
    if settings.method == "mondrian":
        return _release_partition(table, mondrian_partition(table, settings))
    if not is_satisfied(table, release_unchanged(table), settings):
        raise RefusedError(
            "the unchanged table does not satisfy the study's anonymity models",
            where="privacy.anonymity",
            remedy="set method = 'recode' or 'mondrian' to generalise it",
        )
    return release_unchanged(table)


def is_satisfied(table: EncodedTable, release: TableRelease, settings: AnonymitySettings) -> bool:
    """Return whether a release satisfies every privacy model and the suppression limit."""
    overall = [column.overall for column in table.sensitive]
    subjects = table.subjects.per_class(release.key, release.classes, release.retained)
    satisfying = satisfying_combinations(
        release.key, subjects, settings.k, table.sensitive, overall, release.retained
    )
    suppressed = int(table.counts[~release.retained].sum()) + table.suppressed
    is_within_limit = suppressed <= settings.suppression_limit * table.records
    return bool(satisfying[release.retained].all()) and is_within_limit


def release_levels(
    table: EncodedTable, node: Sequence[int], retained: Mask, *, method: str = "recode"
) -> TableRelease:
    """Return the release of a table at the given levels with the retained combinations."""
    key, classes = table.classes(node)
    indices = tuple(
        hierarchy.ancestors[level][code].astype(np.intp)
        for hierarchy, code, level in zip(table.hierarchies, table.codes, node, strict=True)
    )
    levels = list(zip(table.hierarchies, node, strict=True))
    covered = tuple(
        hierarchy.leaves[level][index] for (hierarchy, level), index in zip(levels, indices, strict=True)
    )
    names = tuple(hierarchy.labels[level] for hierarchy, level in levels)
    return TableRelease(method, key, classes, covered, names, indices, retained, tuple(node))


def _release_partition(table: EncodedTable, partition: MondrianPartition) -> TableRelease:
    key = partition.key
    covered = tuple((high - low + 1)[key] for low, high in partition.ranges)
    indices = tuple(index[key] for index in partition.indices)
    retained = np.ones(len(table.counts), bool)
    return TableRelease("mondrian", key, int(key.max()) + 1, covered, partition.names, indices, retained)
