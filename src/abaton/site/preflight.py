"""Preflight of a site (``abaton site check``): exact attrition with reasons, skipped records and remarks.

The numbers are for the site itself and do not leave it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from abaton.disclosure.attrition import Attrition, AttritionStage
from abaton.features import DataQualityIssue, DataQualityReport, MissingReason
from abaton.site.record_pipeline import SitePipeline
from abaton.site.sources.base import TRUNCATED_FILE
from abaton.site.sources.queries import required_types

# Counts of subjects are in the attrition; these issues have no count.
_SUBJECT_REASONS = frozenset(
    {
        MissingReason.BEFORE,
        MissingReason.CENSORED,
        MissingReason.DROPPED,
        MissingReason.EMPTY_COHORT,
        MissingReason.NO_LABEL,
        MissingReason.ONE_CLASS,
        MissingReason.SHORT_FOLLOW_UP,
        MissingReason.TOO_FEW,
    }
)


@dataclass(frozen=True)
class PreflightResult:
    """Result of a preflight, with exact counts of subjects and records.

    Attributes:
        attrition: Subjects by stage, and reasons for exclusion.
        records_read: Number of records by required resource type, and of all others.
        skipped: Number of records that could not be read or assigned, by reason, with locations.
        withheld: Number of records withheld by the site's rules or by consents, by reason.
        remarks: Further findings in plain words.
        may_participate: Whether any subject reaches the last stage.
    """

    attrition: Attrition
    records_read: dict[str, int]
    skipped: dict[str, tuple[int, tuple[str, ...]]]
    withheld: dict[str, int]
    remarks: tuple[str, ...]
    may_participate: bool

    def to_row(self) -> dict[str, Any]:
        """Return the preflight result of a site as JSON values."""
        return {
            "attrition": [
                {
                    "stage": stage.value,
                    "subjects": self.attrition.reached[stage],
                    "excluded": [
                        {"reason": reason, "subjects": count}
                        for reason, count in sorted(self.attrition.excluded.get(stage, {}).items())
                    ],
                }
                for stage in self.attrition.stages
            ],
            "records": self.records_read,
            "skipped": [
                {"reason": reason, "count": count, "locations": list(locations)}
                for reason, (count, locations) in self.skipped.items()
            ],
            "withheld": self.withheld,
            "remarks": list(self.remarks),
            "may_participate": self.may_participate,
        }


def check_site(site: SitePipeline) -> PreflightResult:
    """Run a site's preflight: its pipeline to the end without storing records; return the counts."""
    if site.study.features is not None:
        return summarise_pipeline(site, site.table().report)
    for _ in site.accepted_subjects():
        pass
    return summarise_pipeline(site)


def summarise_pipeline(site: SitePipeline, report: DataQualityReport | None = None) -> PreflightResult:
    """Return the preflight result of a pipeline that has run: counts, and data quality if there is a table."""
    may_participate = True
    remarks: tuple[str, ...] = ("the study has no features, so no rows are counted",)
    if report is not None:
        may_participate = report.is_sufficient
        remarks = tuple(dict.fromkeys(_format_issue(issue) for issue in report.issues))
    attrition, errors = site.attrition, site.errors
    assert attrition.adds_up
    read, last = attrition.reached[AttritionStage.READ], attrition.reached[attrition.stages[-1]]
    return PreflightResult(
        attrition,
        _records_by_type(site),
        {
            reason: (count, tuple(errors.locations.get(reason, ())))
            for reason, count in sorted(errors.reasons.items())
        },
        dict(sorted(site.withheld.items())),
        (*_remarks(site, read, last), *remarks, site.gate.legal_basis_text()),
        may_participate and last > 0,
    )


def _format_issue(issue: DataQualityIssue) -> str:
    """Return an issue of the preflight in plain words; row counts are included, subject counts are not."""
    system = f" ({issue.system})" if issue.system else ""
    count = "" if issue.reason in _SUBJECT_REASONS else f", {issue.count}"
    return f"{issue.subject}: {issue.reason.value}{system}{count}; {issue.remedy}"


def _records_by_type(site: SitePipeline) -> dict[str, int]:
    types = sorted(required_types(site.data_request, site.study.eligibility))
    counts = {name: site.records_read[name] for name in types}
    others = sum(count for name, count in site.records_read.items() if name not in counts)
    if others:
        counts["other types, not required"] = others
    return counts


def _remarks(site: SitePipeline, read: int, last: int) -> Iterable[str]:
    if not site.records_read:
        yield "no record was read: check [records]"
    elif not read:
        yield "no Patient was read, so there are no subjects: add the Patients to the records"
    elif not last:
        yield "no subject reaches the last stage: see the reasons for exclusion"
    if any("another system" in reason for reason in site.attrition.excluded.get(AttritionStage.ELIGIBLE, ())):
        yield "records use another code system than the study: ask the centre to add their codes to the study"
    if any(reason == TRUNCATED_FILE or "gzip" in reason for reason in site.errors.reasons):
        yield "a file is incomplete, so subjects may be missing: export or copy it again"
