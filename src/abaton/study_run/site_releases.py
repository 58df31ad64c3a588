"""Control of what a site releases outside training: attrition by its release gate, and by its release log the rest.

A value that may not be released again because too few subjects changed is released as before, or not at all.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import CombinationHistogram, RecodingChoice
from abaton.canonical_json import canonical_digest
from abaton.disclosure.attrition import RELEASED_STAGES, attrition_steps
from abaton.disclosure.levels import DisclosureLevel
from abaton.disclosure.release_gate import Question, ReleaseGate, SumShare, sum_shares
from abaton.errors import RefusedError
from abaton.features import ColumnMoments, ColumnStatistics, FeatureTable, combination_histogram
from abaton.site import ReleaseLog
from abaton.study import LearningSection, Study
from abaton.study_run.ingest import IngestedCohort
from abaton.study_run.preparation import PreparedSite, SiteSums, SplitTable, sum_columns
from abaton.study_run.preparation_state import CommonScale

_LOG = logging.getLogger(__name__)
_MAX_STDS = 10.0  # by which the common scaling may differ from the site's own statistics


def released_cohort(gate: ReleaseGate, study: Study, cohort: IngestedCohort) -> dict[str, Any]:
    """Return what a site releases about its cohort as JSON values: one table of disjoint cells, and remarks.

    If the table may not be released, for example because the privacy budget is used up, it is None and the run goes on.
    Remarks depend on single records, so only those of level `exact` are released.
    """
    question = Question("attrition", study.study.id, {"document": study.hash, "cells": list(cohort.cells)})
    try:
        counts = gate.table(question, cohort.cells).to_row()
    except RefusedError as error:
        _LOG.warning("the attrition is not released: %s", error)
        counts = None
    is_exact = gate.level is DisclosureLevel.EXACT
    return {
        "counts": counts,
        "threshold": gate.settings.threshold,
        "remarks": list(cohort.remarks if is_exact else [cohort.legal_basis]),
    }


def cohort_share(gate: ReleaseGate, study: Study, cohort: IngestedCohort, names: Sequence[str]) -> SumShare:
    """Return a site's part of the attrition summed over the named sites; it may enter a secure sum only."""
    question = Question("attrition", study.study.id, {"document": study.hash, "cells": list(cohort.cells)})
    subjects = [subject for members in cohort.cells.values() for subject in members]
    cells = np.repeat(np.arange(len(cohort.cells)), [len(members) for members in cohort.cells.values()])
    rows = np.eye(len(cohort.cells))[cells]
    # A change of cell moves the sum by the square root of 2.
    bound, digest = math.sqrt(2), canonical_digest(sorted(names))
    return gate.share(question, subjects, rows, bound, gate.settings.table_sd, len(names), digest)


def summed_cohort(shares: Sequence[SumShare], cells: Sequence[str], threshold: int) -> dict[str, Any]:
    """Return the attrition summed over sites in the form of `released_cohort`; small counts are suppressed."""
    values = {name: float(round(n)) for name, n in sum_shares(shares, cells).values.items()}
    suppressed = sorted(name for name, n in values.items() if 0 < n < threshold)
    known = {name: n for name, n in values.items() if name not in suppressed}
    return {
        "counts": {"values": known, "sd": 0.0, "suppressed": suppressed},
        "threshold": threshold,
        "remarks": [],
    }


def cohort_report(released: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cohort report of a run from what a site released: steps of the attrition, noise and remarks."""
    counts, threshold = released["counts"], released["threshold"]
    steps = [] if counts is None else attrition_steps(
        RELEASED_STAGES, counts["values"], counts["suppressed"], threshold, is_noisy=counts["sd"] > 0
    )  # fmt: skip
    return {
        "attrition": steps,
        "sd": 0.0 if counts is None else counts["sd"],
        "threshold": threshold,
        "remarks": list(released["remarks"]),
    }


def released_sums(release_log: ReleaseLog, study: Study, seed: int, split: SplitTable) -> SiteSums:
    """Return the scaling sums that a site releases: of the same subjects, or of a sufficiently different group.

    Raises:
        RefusedError: Too few subjects changed since the last release, or too few remain.
    """
    assert study.learning is not None
    sums, key = sum_columns(study.learning, split), f"sums/{study.hash}/{seed}"
    patient_ids = [split.ingest.patient_ids[subject] for subject in split.without_test.subjects]
    if release_log.may_release("sums", patient_ids):
        release_log.replace_release(key, _sums_to_row(sums))
        return sums
    last = release_log.last_release(key)
    if last is None:
        raise RefusedError(
            f"sums for scaling would differ from an earlier release by fewer than {release_log.min_cell_count} subjects"
        )
    return _sums_from_row(last)


def released_histogram(
    release_log: ReleaseLog, study: Study, table: FeatureTable, settings: AnonymitySettings
) -> CombinationHistogram:
    """Return the combination histogram as the site first released it for the study; it is never updated.

    This holds for all versions of a study and any change of the cohort, so differencing is not possible.

    Raises:
        RefusedError: An earlier version of the study used other columns or hierarchies.
    """
    hierarchies = [(quasi.column, asdict(quasi.hierarchy)) for quasi in settings.quasi_identifiers]
    request = [hierarchies, [attribute.column for attribute in settings.sensitive], settings.missing_values]
    current = _json_round_trip({"request": request, "row": combination_histogram(table, settings).row()})
    released = release_log.first_release(f"histogram/{study.study.id}", current)
    if released["request"] != current["request"]:
        raise RefusedError(
            "combinations were already released for other columns or ranges (privacy.anonymity): use the released "
            "ones, or give the study a new id"
        )
    return CombinationHistogram.from_row(released["row"])


def check_recoding(
    release_log: ReleaseLog,
    study: Study,
    histogram: CombinationHistogram,
    recoding: RecodingChoice,
    settings: AnonymitySettings,
) -> RecodingChoice:
    """Refuse a recoding by which the centre could make a site release groups of the centre's choice.

    Classes that are k-anonymous at the site alone must be kept, unless there are sensitive attributes. Of the others,
    which depend on other sites, one selection is accepted per study.

    Raises:
        RefusedError: The levels are finer than the released ones, or the suppressed classes are not acceptable.
    """
    classes = histogram.subjects_per_class(recoding.node)
    suppressed = {names: subjects for names, subjects in classes.items() if names not in recoding.classes}
    if not suppressed:
        return recoding
    if not settings.has_sensitive_models and max(suppressed.values()) >= settings.k:
        raise RefusedError("the recoding suppresses subjects that are k-anonymous at the site alone")
    current = _json_round_trip([recoding.node, sorted(suppressed, key=repr)])
    if release_log.first_release(f"suppressed/{study.study.id}", current) != current:
        raise RefusedError(
            "an earlier recoding of this study suppressed other classes: a study has one recoding"
        )
    return recoding


def _json_round_trip(value: Any) -> Any:
    """Return a site's release as the JSON value that the release log would return."""
    return json.loads(json.dumps(value))


def check_same_seed(release_log: ReleaseLog, study: Study, seed: int) -> int:
    """Check a seed against the site's earlier releases: subjects are split once, by the study's first seed.

    Raises:
        RefusedError: The study had another seed before.
    """
    if release_log.first_release(f"seed/{study.hash}", seed) != seed:
        raise RefusedError("subjects were split with another seed before: a study has one seed")
    return seed


def check_scale(learning: LearningSection, scale: CommonScale, local: SiteSums) -> CommonScale:
    """Refuse a scaling by which single values would stand out in a site's releases.

    Raises:
        RefusedError: The mean or standard deviation of a column is far from the site's own.
    """
    columns = {
        name: (local.columns.columns[name], moments)
        for name, moments in scale.columns.columns.items()
        if name in local.columns.columns
    }
    if columns.keys() != local.columns.columns.keys():
        raise RefusedError("the common scaling has other columns than the study")
    differing = [
        name
        for name, (local_moments, common) in columns.items()
        if local_moments.count and not _is_consistent(local_moments, common)
    ]
    mean, std = scale.label
    if learning.task == "regression" and local.label.count and not _is_close(local.label, mean, std):
        differing.append("label")
    if differing:
        raise RefusedError(
            f"the common scaling differs from this site's statistics by more than {_MAX_STDS:g} standard deviations "
            f"(column '{differing[0]}')"
        )
    return scale


def releasable_subjects(
    release_log: ReleaseLog, site: PreparedSite, eligible: frozenset[str]
) -> frozenset[str]:
    """Return the subjects whose test rows a site may use for releases: all eligible, or none if too few changed."""
    patient_ids = [site.patient_ids[subject] for subject in site.test.subjects if subject in eligible]
    return eligible if release_log.may_release("test", patient_ids) else frozenset()


def _is_consistent(local: ColumnMoments, common: ColumnMoments) -> bool:
    return common.count >= local.count and _is_close(local, common.mean, common.std)


def _is_close(local: ColumnMoments, mean: float, std: float) -> bool:
    local_std = local.std
    return (
        std > 0 and local_std <= _MAX_STDS * std and abs(local.mean - mean) <= _MAX_STDS * max(local_std, std)
    )


def _sums_to_row(sums: SiteSums) -> dict[str, Any]:
    columns = {
        name: [moments.count, moments.sum, moments.squared_sum]
        for name, moments in sums.columns.columns.items()
    }
    return {"columns": columns, "label": [sums.label.count, sums.label.sum, sums.label.squared_sum]}


def _sums_from_row(row: Mapping[str, Any]) -> SiteSums:
    columns = ColumnStatistics({name: ColumnMoments(*moments) for name, moments in row["columns"].items()})
    return SiteSums(columns, ColumnMoments(*row["label"]))
