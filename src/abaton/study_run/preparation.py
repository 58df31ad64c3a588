"""Preparation of sites for a federation: anonymity over the union, split of subjects, common scaling.

A site with one class, or with too few subjects for validation and test sets, is excluded with its reason; local
training there would move the model towards a constant prediction. A run starts with the connected sites, because the
common scaling needs the sums of all of them.

Invariants:
(1) a subject is in exactly one of a site's training, validation and test sets;
(2) the common scaling is computed from training and validation rows, never from test rows;
(3) only sums and suppressed counts of a site are used outside it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import CombinationHistogram, RecodingChoice, choose_recoding
from abaton.errors import AbatonError, RefusedError
from abaton.features import (
    ColumnMoments,
    ColumnStatistics,
    FeatureColumn,
    FeatureTable,
    ScaledTable,
    anonymise_table,
    column_statistics,
    combination_histogram,
    pool_statistics,
    row_groups,
    scale_table,
)
from abaton.models.sampling import stratified_split
from abaton.site import LoadedSiteConfig, min_cell_count
from abaton.study import LearningSection, Study
from abaton.study_run.consented_learner import SubjectRows, select_rows
from abaton.study_run.ingest import ONE_CLASS, SiteIngest
from abaton.study_run.preparation_state import (
    CommonScale,
    PreparationState,
    RowAssignment,
    RowIndices,
    assign_rows,
    restore_split,
    split_digest,
)
from abaton.study_run.task_contract import TaskContract, too_few_rows_text

MIN_SITES = 2
NO_RELEASABLE_COMBINATION = "no combination of quasi-identifiers has enough subjects to be released"
NO_COMMON_RECODING = "with its histogram no common k-anonymous recoding exists"


@dataclass(frozen=True, slots=True)
class PreparedSite:
    """Site that takes part in a run.

    Attributes:
        file: Its configuration.
        patient_ids: Patient id of each subject key of the rows; never leaves the site.
        rows: Training and validation rows.
        test: Test rows.
        groups: For each grouping input of the evaluation, the group of every test row.
        min_cell_count: Smallest count of subjects that may be released.
        digest: Digest of its rows, keyed by a secret of the site.
        has_withdrawals: Whether subjects withdrew since the start of the run.
    """

    file: LoadedSiteConfig
    patient_ids: Mapping[str, str] = field(repr=False)
    rows: SubjectRows
    test: ScaledTable
    groups: Mapping[str, tuple[str, ...]] = field(repr=False)
    min_cell_count: int
    digest: str
    has_withdrawals: bool = False

    @property
    def name(self) -> str:
        """The id of the prepared site."""
        return self.file.config.site.id

    @property
    def all_subjects(self) -> tuple[str, ...]:
        """Subject keys of all rows of the prepared site."""
        return (*self.rows.train.subjects, *self.rows.validation.subjects, *self.test.subjects)


@dataclass(frozen=True, slots=True)
class PreparedSites:
    """Sites that take part in a study, and the values that they share.

    Attributes:
        sites: Sorted by id.
        excluded_sites: Reasons by excluded site.
        columns, classes: The same at every site; no classes for regression and survival.
        preparation: Recoding, scaling and splits, for resuming the run.
        anonymity: Anonymity settings and the common recoding, suppressed; None if the study requires no anonymity.
        splits: Tables of the sites before scaling, in the order of the sites; they never leave this machine.
    """

    sites: tuple[PreparedSite, ...]
    excluded_sites: Mapping[str, str]
    columns: tuple[FeatureColumn, ...]
    classes: tuple[str, ...]
    preparation: PreparationState
    anonymity: Mapping[str, Any] | None
    splits: tuple[SplitTable, ...] = field(default=(), repr=False)

    @property
    def label(self) -> tuple[float, float]:
        """Mean and standard deviation of the label over all prepared sites; 0 and 1 for classes."""
        return self.preparation.scale.label


@dataclass(frozen=True, slots=True)
class SplitTable:
    """Table of a site with the row indices of each split."""

    ingest: SiteIngest
    table: FeatureTable
    min_cell_count: int
    train: RowIndices
    validation: RowIndices
    test: RowIndices

    @property
    def without_test(self) -> FeatureTable:
        """Training and validation rows of a site during preparation."""
        return self.table.without(frozenset(self.table.subjects[i] for i in self.test))

    def row_assignments(self) -> list[RowAssignment]:
        """Return a prepared site's assignment of rows to splits, as stored while the run is unfinished."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return assign_rows(self.table, splits, self.ingest.key, self.ingest.pseudonym_for_subject)


@dataclass(frozen=True, slots=True)
class SiteSums:
    """Sums of a site for the common scaling of columns and values."""

    columns: ColumnStatistics
    label: ColumnMoments


def prepare_sites(
    study: Study,
    ingests: Sequence[SiteIngest],
    seed: int,
    stored: PreparationState | None = None,
    release_sums: Callable[[SplitTable], SiteSums] | None = None,
) -> PreparedSites:
    """Prepare the sites on this machine that can take part: common recoding, split, common scaling.

    Args:
        study: The study.
        ingests: The sites' ingested data.
        seed: Seed of the split.
        stored: The stored preparation, if the run is resumed.
        release_sums: Returns the sums that a site releases for scaling; its unfiltered sums if not given.

    Raises:
        RefusedError: Too few sites remain, anonymity cannot be reached, or the data of a site differ from the start of
            the run; nothing was trained.
    """
    assert study.learning is not None
    learning = study.learning
    anonymised, anonymity, recoding, histograms = _anonymise_union(
        sorted(ingests, key=lambda ingest: ingest.name), stored
    )
    if stored is None:
        split_tables, anonymised = _split_tables(study, anonymised, seed)
    else:
        tables = [ingest.table for ingest in anonymised if ingest.table is not None]
        split_tables = [
            _restore_split_table(study, ingest, stored.splits[ingest.name], tables)
            for ingest in anonymised
            if ingest.name in stored.splits
        ]
    excluded = {ingest.name: ingest.problem for ingest in anonymised if ingest.problem}
    check_min_sites([split.ingest.name for split in split_tables], excluded)
    if stored is None:
        sums_of = release_sums or (lambda split: sum_columns(learning, split))
        scale = common_scale(learning, [sums_of(split) for split in split_tables])
        splits: Mapping[str, Sequence[RowAssignment]] = {
            split.ingest.name: split.row_assignments() for split in split_tables
        }
    else:
        scale, splits = stored.scale, stored.splits
    sites = tuple(scale_site(study, split, scale, splits[split.ingest.name]) for split in split_tables)
    first = split_tables[0].table
    preparation = PreparationState(recoding, histograms, scale, splits)
    return PreparedSites(
        sites,
        excluded,
        first.columns,
        first.classes,
        preparation,
        anonymity,
        tuple(split_tables),
    )


def check_min_sites(names: Sequence[str], excluded: Mapping[str, str]) -> None:
    """Refuse the preparation of a federation with too few sites.

    Raises:
        RefusedError: With every excluded site and its reason.
    """
    if len(names) < MIN_SITES:
        raise RefusedError(
            f"{len(names)} of {len(names) + len(excluded)} sites can take part, {MIN_SITES} are needed",
            where="; ".join(f"{name}: {reason}" for name, reason in excluded.items()),
            remedy="correct the sites, or add others",
        )


def strictest_settings(candidates: Iterable[AnonymitySettings | None]) -> AnonymitySettings | None:
    """Return the prepared sites' anonymity settings with the largest k; None if no site has any."""
    settings = (candidate for candidate in candidates if candidate is not None)
    return max(settings, key=lambda candidate: candidate.k, default=None)


def anonymity_summary(
    recoding: RecodingChoice,
    settings: AnonymitySettings,
    min_cell_count: int,
    histograms: Mapping[str, CombinationHistogram],
) -> dict[str, Any]:
    """Return a summary of the prepared common recoding, suppressed, and the finest levels of each site."""
    is_small = 0 < recoding.suppressed < min_cell_count
    return {
        "k": settings.k,
        "columns": [quasi.column for quasi in settings.quasi_identifiers],
        "levels": list(recoding.node),
        "records": recoding.records,
        "suppressed": f"<{min_cell_count}" if is_small else str(recoding.suppressed),
        "loss": recoding.loss,
        "finest": {name: list(histogram.base) for name, histogram in histograms.items()},
    }


def split_table(study: Study, ingest: SiteIngest, table: FeatureTable, seed: int) -> SplitTable:
    """Prepare a site's splits: assign subjects to training, validation and test rows.

    Raises:
        RefusedError: The site is too small for that.
    """
    assert study.learning is not None
    learning, cell_count = study.learning, min_cell_count(ingest.file.config, study)
    if table.classes and len(np.unique(table.y)) < 2:
        raise RefusedError(ONE_CLASS)
    rng = np.random.default_rng([seed, zlib.crc32(ingest.name.encode())])  # frozen: part of the bytes
    labels = table.y if table.classes else np.zeros(len(table), np.int64)
    if table.is_survival:
        labels = table.y[:, 1].astype(np.int64)
    indices = np.arange(len(table), dtype=np.int64)
    remaining, test = stratified_split(
        labels, indices, rng=rng, fraction=learning.evaluation.test_fraction, learner=ingest.name
    )
    train, validation = stratified_split(
        labels, remaining, rng=rng, fraction=learning.validation_fraction, learner=ingest.name
    )
    if len(train) < cell_count:
        raise RefusedError(f"fewer than {cell_count} subjects remain to train on")
    policy = ingest.file.config.policy
    if len(train) < policy.min_rows and not TaskContract(study).may_admit_small_sites:
        raise RefusedError(too_few_rows_text(policy))
    return SplitTable(ingest, table, cell_count, train, validation, test)


def sum_columns(learning: LearningSection, split: SplitTable) -> SiteSums:
    """Return a site's sums for the preparation of the common scaling; labels are only summed for regression.

    Raises:
        RefusedError: Too few subjects remain.
    """
    y = split.without_test.y
    label = (
        ColumnMoments()
        if learning.task != "regression"
        else ColumnMoments(len(y), float(y.sum()), float(np.dot(y, y)))
    )
    return SiteSums(column_statistics(split.without_test), label)


def common_scale(learning: LearningSection, sums: Sequence[SiteSums]) -> CommonScale:
    """Prepare the common scaling from the sums of all sites; labels are only scaled for regression."""
    columns = pool_statistics(site.columns for site in sums)
    if learning.task != "regression":
        return CommonScale(columns, (0.0, 1.0))
    label = pool_statistics(ColumnStatistics({"label": site.label}) for site in sums).columns["label"]
    return CommonScale(columns, (label.mean, label.std))


def scale_site(
    study: Study, split: SplitTable, scale: CommonScale, assignments: Sequence[RowAssignment]
) -> PreparedSite:
    """Return a prepared site with scaled rows; its digest is that of the rows at the start of the run."""
    assert study.learning is not None
    assert study.features is not None
    learning, days = study.learning, study.features.label.window_days
    table, label = scale_table(split.table, scale.columns), scale.label
    if learning.task == "survival" and days:
        table = replace(table, y=(split.table.y / (days, 1)).astype(np.float32))  # fractions of the follow-up
    if learning.task == "regression":
        table = replace(table, y=((split.table.y - label[0]) / label[1]).astype(np.float32))
    groups = {
        group.input: row_groups(split.table, group.input, group.bands) for group in learning.evaluation.groups
    }
    return PreparedSite(
        split.ingest.file,
        {subject: split.ingest.patient_ids[subject] for subject in split.table.subjects},
        SubjectRows(select_rows(table, split.train), select_rows(table, split.validation)),
        select_rows(table, split.test),
        {name: tuple(labels[i] for i in split.test) for name, labels in groups.items()},
        split.min_cell_count,
        split_digest(assignments, [column.name for column in split.table.columns], split.ingest.key),
        has_withdrawals=len(split.table) < len(assignments),
    )


def choose_common_recoding(
    histograms: Mapping[str, CombinationHistogram], k: Mapping[str, int], settings: AnonymitySettings
) -> tuple[RecodingChoice, AnonymitySettings, str]:
    """Prepare the common recoding for the strictest k; return its settings and a site excluded for it too.

    Args:
        histograms: Histogram of each site.
        k: k of each site.
        settings: The study's anonymity settings.

    Raises:
        AbatonError: No recoding exists, whichever site is excluded.
    """

    def recode(names: Iterable[str]) -> tuple[RecodingChoice, AnonymitySettings]:
        strictest = replace(settings, k=max(k[name] for name in names))
        return choose_recoding([histograms[name] for name in sorted(names)], strictest), strictest

    try:
        return *recode(histograms), ""
    except AbatonError:
        for excluded in sorted(histograms, key=lambda name: (-k[name], name)):
            others = [name for name in histograms if name != excluded]
            if len(others) >= MIN_SITES:
                with suppress(AbatonError):
                    return *recode(others), excluded
        raise


def _anonymise_union(
    ingests: Sequence[SiteIngest], stored: PreparationState | None
) -> tuple[
    list[SiteIngest], Mapping[str, Any] | None, RecodingChoice | None, Mapping[str, CombinationHistogram]
]:
    """Prepare anonymity over the union of the tables, by the strictest k of all sites, or a stored recoding.

    On one machine the histograms are not released, so each run computes them again.
    """
    tables = {ingest.name: ingest.table for ingest in ingests if ingest.table is not None}
    settings = strictest_settings(ingest.anonymity for ingest in ingests if ingest.table is not None)
    if settings is None:
        return list(ingests), None, None, {}
    problems: dict[str, str] = {}
    if stored is not None and stored.recoding is not None:
        recoding, histograms = stored.recoding, dict(stored.histograms)
    else:
        histograms = {name: combination_histogram(table, settings) for name, table in tables.items()}
        problems = dict.fromkeys(
            (name for name, histogram in histograms.items() if not histogram.cells), NO_RELEASABLE_COMBINATION
        )
        histograms = {name: histogram for name, histogram in histograms.items() if histogram.cells}
        excluded = {ingest.name: ingest.problem for ingest in ingests if ingest.problem}
        check_min_sites(list(histograms), excluded | problems)
        k = {ingest.name: ingest.anonymity.k for ingest in ingests if ingest.anonymity is not None}
        recoding, settings, without_recoding = choose_common_recoding(histograms, k, settings)
        if without_recoding:
            problems[without_recoding] = NO_COMMON_RECODING
            del histograms[without_recoding]
    recoded = {
        name: anonymise_table(table, histograms[name], recoding, settings)
        for name, table in tables.items()
        if name in histograms
    }
    anonymised = [
        ingest.as_excluded(problems[ingest.name])
        if ingest.name in problems
        else replace(ingest, table=recoded.get(ingest.name))
        for ingest in ingests
    ]
    smallest = min(table.min_cell_count for table in tables.values())
    return anonymised, anonymity_summary(recoding, settings, smallest, histograms), recoding, histograms


def _restore_split_table(
    study: Study, ingest: SiteIngest, assignments: Sequence[RowAssignment], tables: Sequence[FeatureTable]
) -> SplitTable:
    """Prepare a site again with its splits at the start of the run, without withdrawn subjects.

    A site with too few remaining subjects has no rows, and the other sites continue.
    """
    cell_count = min_cell_count(ingest.file.config, study)
    if ingest.table is not None:
        splits = restore_split(
            assignments,
            ingest.table,
            ingest.key,
            ingest.pseudonym_for_subject,
            ingest.is_removed,
            ingest.name,
        )
        return SplitTable(ingest, ingest.table, cell_count, **splits)
    withdrawn = set(map(ingest.pseudonym_for_patient, ingest.patients_without_consent)) - {""}
    remaining = sum(assignment.subject_pseudonym not in withdrawn for assignment in assignments)
    if not tables or remaining >= cell_count:
        raise RefusedError(
            f"the data of {ingest.name} differ from the start of the run",
            where=ingest.problem,
            remedy="correct the site, or start a new run",
        )
    empty = tables[0].without(frozenset(tables[0].subjects))
    none = np.arange(0, dtype=np.int64)
    return SplitTable(ingest, empty, cell_count, none, none, none)


def _split_tables(
    study: Study, ingests: Sequence[SiteIngest], seed: int
) -> tuple[list[SplitTable], list[SiteIngest]]:
    """Prepare the splits of every site's subjects; a site that is too small is excluded."""
    split_tables, checked = [], []
    for ingest in ingests:
        if ingest.table is None:
            checked.append(ingest)
            continue
        try:
            split_tables.append(split_table(study, ingest, ingest.table, seed))
            checked.append(ingest)
        except AbatonError as error:
            checked.append(ingest.as_excluded(error.what))
    return split_tables, checked
