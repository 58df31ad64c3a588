"""Suppression of a site's combination histogram before its release.

Histograms are released once per study. Updating each count after a change of `min_cell_count` was rejected, because
separately updated counts can be subtracted from each other.

Invariants:
(1) a combination is released only if at least `min_cell_count` subjects have it, and all suppressed combinations hold
    no subject or at least as many together; the same holds for the sensitive values within a combination, and for
    those of the whole site;
(2) a label that only suppressed combinations have is not released, unless the study document lists it;
(3) the output depends only on the counted subjects; a second release about other subjects would allow differencing, so
    a site releases its histogram once (`abaton.study_run.site_releases`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from abaton.anonymity.equivalence_classes import EncodedTable
from abaton.anonymity.federated_recoding import (
    CombinationHistogram,
    Names,
    SensitiveShare,
    choose_recoding,
    site_histogram,
)
from abaton.anonymity.lattice import Node, generalisation_path, optimal_node
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import RefusedError

Key = TypeVar("Key", bound=Hashable)
LabelChains = tuple[tuple[tuple[Names, int], ...], ...]


def releasable_levels(table: EncodedTable, settings: AnonymitySettings, min_cell_count: int) -> Node:
    """Return the finest levels for a site's releasable histogram that stay within the suppression limit.

    With sensitive attributes the levels are coarse enough for the released values to satisfy the study's criteria.

    Args:
        table: The site's own table.
        settings: The study's settings; their k applies to the union of all sites.
        min_cell_count: The smallest count of subjects that the site releases.
    """
    site_settings = replace(settings, k=min_cell_count, min_cell_count=None)
    finest = _finest_releasable(replace(table, sensitive=()), replace(site_settings, sensitive=()))
    if not settings.has_sensitive_models:
        return finest
    path = generalisation_path(table, site_settings, finest)
    return next(
        (
            node
            for node in path
            if _satisfies(suppress_histogram(site_histogram(table, node), min_cell_count), site_settings)
        ),
        path[-1],
    )


def _finest_releasable(table: EncodedTable, site_settings: AnonymitySettings) -> Node:
    for limit in dict.fromkeys((site_settings.suppression_limit, 0.0)):
        try:
            node = optimal_node(table, replace(site_settings, suppression_limit=limit)).node
        except RefusedError:
            continue
        if (
            suppress_histogram(site_histogram(table, node), site_settings.k).suppressed
            <= site_settings.suppression_limit * table.records
        ):
            return node
    return tuple(hierarchy.height for hierarchy in table.hierarchies)


def _satisfies(histogram: CombinationHistogram, site_settings: AnonymitySettings) -> bool:
    try:
        return bool(choose_recoding([histogram], site_settings).classes)
    except RefusedError:
        return False


def suppress_histogram(full: CombinationHistogram, min_cell_count: int) -> CombinationHistogram:
    """Return the part of a site's combination histogram that may be released.

    Args:
        full: The unsuppressed histogram.
        min_cell_count: The smallest count of subjects that the site releases.
    """
    total = sum(full.subjects)
    indices = sorted(_releasable_counts(dict(enumerate(full.subjects)), total, min_cell_count))
    subjects, counts = (tuple(column[index] for index in indices) for column in (full.subjects, full.counts))
    remainder = total - sum(subjects)
    suppressed = full.suppressed + sum(full.counts) - sum(counts)
    chains, cells = _reindex(full, indices)
    sensitive = tuple(
        _suppress_sensitive(share, indices, subjects, total, min_cell_count) for share in full.sensitive
    )
    return CombinationHistogram(
        full.base,
        chains,
        full.is_listed,
        cells,
        counts,
        subjects,
        sensitive,
        suppressed if remainder >= min_cell_count else 0,
    )


def _releasable_counts(counts: Mapping[Key, int], total: int, min_cell_count: int) -> dict[Key, int]:
    """Return the histogram counts that may be released; the remainder is zero or at least `min_cell_count`."""
    released = {name: count for name, count in counts.items() if count >= min_cell_count}
    rarest = iter(sorted(released, key=lambda name: (released[name], repr(name))))
    while released and (remainder := total - sum(released.values())) != 0 and remainder < min_cell_count:
        del released[next(rarest)]
    return released


def _reindex(
    full: CombinationHistogram, indices: Sequence[int]
) -> tuple[LabelChains, tuple[tuple[int, ...], ...]]:
    """Return a histogram's label chains that are used or listed by the study, and its combinations reindexed."""
    used = [
        sorted(
            {full.cells[index][i] for index in indices}
            | {j for j, (names, _) in enumerate(chain) if listed and names[0] is not None}
        )
        for i, (chain, listed) in enumerate(zip(full.chains, full.is_listed, strict=True))
    ]
    new_indices = [{old: new for new, old in enumerate(column)} for column in used]
    chains = tuple(
        tuple(chain[old] for old in column) for chain, column in zip(full.chains, used, strict=True)
    )
    return chains, tuple(
        tuple(column[old] for column, old in zip(new_indices, full.cells[index], strict=True))
        for index in indices
    )


def _suppress_sensitive(
    share: SensitiveShare, indices: Sequence[int], subjects: Sequence[int], total: int, min_cell_count: int
) -> SensitiveShare:
    """Return the releasable histogram of a sensitive column; outside released combinations only totals."""
    counts = {(cell, value): count for cell, value, count in share.triples}
    values = range(len(share.values))
    released = [0] * len(values)
    triples, unknown_subjects = [], []
    for cell, (index, in_cell) in enumerate(zip(indices, subjects, strict=True)):
        cell_counts = _releasable_counts(
            {value: counts.get((index, value), 0) for value in values}, in_cell, min_cell_count
        )
        for value, count in sorted(cell_counts.items()):
            triples.append((cell, value, count))
            released[value] += count
        unknown_subjects.append(in_cell - sum(cell_counts.values()))
    # The total of a value is the sum over released combinations, or exceeds it by at least `min_cell_count`.
    unreleased = {value: share.value_totals[value] - released[value] for value in values}
    additional = _releasable_counts(unreleased, total - sum(released), min_cell_count)
    totals = [released[value] + additional.get(value, 0) for value in values]
    new_indices = {value: i for i, value in enumerate(value for value in values if totals[value])}
    return SensitiveShare(
        tuple(share.values[value] for value in new_indices),
        tuple((cell, new_indices[value], count) for cell, value, count in triples),
        tuple(unknown_subjects),
        tuple(totals[value] for value in new_indices),
    )
