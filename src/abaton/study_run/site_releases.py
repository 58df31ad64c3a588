"""Control of what a site releases outside training, using its release log: attrition, histograms, sums, test rows.

A value that may not be released again because too few subjects changed is released as before, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import CombinationHistogram, RecodingChoice
from abaton.errors import RefusedError
from abaton.features import ColumnMoments, ColumnStatistics, FeatureTable, combination_histogram
from abaton.site import ReleaseLog
from abaton.study import LearningSection, Study
from abaton.study_run.preparation import PreparedSite, SiteSums, SplitTable, sum_columns
from abaton.study_run.preparation_state import CommonScale

_MAX_STDS = 10.0  # by which the common scaling may differ from the site's own statistics


def released_attrition(release_log: ReleaseLog, study: Study, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cohort report that a site releases: the last one unless all counts changed by `min_cell_count`."""
    key = f"attrition/{study.hash}"
    last = release_log.last_release(key)
    if last is not None and not _differ_enough(
        dict(_flatten(last)), dict(_flatten(report)), release_log.min_cell_count
    ):
        return dict(last)
    release_log.replace_release(key, dict(report))
    return dict(report)


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


def _differ_enough(last: Mapping[str, str], current: Mapping[str, str], min_cell_count: int) -> bool:
    """Return whether a site's new release differs by at least `min_cell_count` in every count that changed."""
    differing = [name for name in last.keys() | current.keys() if last.get(name) != current.get(name)]
    pairs = [(last.get(name, ""), current.get(name, "")) for name in differing]
    return all(a.isdigit() and b.isdigit() and abs(int(a) - int(b)) >= min_cell_count for a, b in pairs)


def _flatten(content: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _flatten(value, f"{path}/{key}")
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            yield from _flatten(value, f"{path}/{index}")
    else:
        yield path, str(content)
