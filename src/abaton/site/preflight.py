"""Preflight of a site (``abaton site check``): suppressed attrition with reasons, skipped records and remarks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from abaton.disclosure.attrition import AttritionStage
from abaton.disclosure.suppression import Steps, suppress_attrition
from abaton.features import DataQualityIssue, DataQualityReport, MissingReason, data_quality
from abaton.site.config_reader import min_cell_count
from abaton.site.consent_gate import earlier_studies
from abaton.site.record_pipeline import SitePipeline
from abaton.site.sources.base import TRUNCATED_FILE
from abaton.site.sources.queries import required_types
from abaton.study.question_similarity import similar_questions, similar_studies

# Counts of subjects are in the attrition, where they are suppressed consistently; these issues have no count.
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
    """Result of a preflight, with suppressed counts.

    Attributes:
        attrition: Subjects by stage, and reasons for exclusion.
        records_read: Number of records by required resource type, and of all others.
        skipped: Number of records that could not be read or assigned, by reason, with locations.
        withheld: Number of records withheld by the site's rules or by consents, by reason.
        remarks: Further findings in plain words.
        min_cell_count: Minimum cell count.
        may_participate: Whether any subject reaches the last stage.
    """

    attrition: Steps
    records_read: dict[str, str]
    skipped: dict[str, tuple[str, tuple[str, ...]]]
    withheld: dict[str, str]
    remarks: tuple[str, ...]
    min_cell_count: int
    may_participate: bool

    def to_row(self) -> dict[str, Any]:
        """Return the preflight result of a site as JSON values."""
        return {
            "attrition": [
                {
                    "stage": step.stage.value,
                    "subjects": step.reached.text,
                    "excluded": [
                        {"reason": reason, "subjects": count.text} for reason, count in step.reasons.items()
                    ],
                }
                for step in self.attrition
            ],
            "records": self.records_read,
            "skipped": [
                {"reason": reason, "count": count, "locations": list(locations)}
                for reason, (count, locations) in self.skipped.items()
            ],
            "withheld": self.withheld,
            "remarks": list(self.remarks),
            "min_cell_count": self.min_cell_count,
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
    threshold = min_cell_count(site.config, site.study)
    attrition, errors = site.attrition, site.errors
    assert attrition.adds_up
    read, last = attrition.reached[AttritionStage.READ], attrition.reached[attrition.stages[-1]]
    return PreflightResult(
        suppress_attrition(attrition, threshold),
        _records_by_type(site, threshold),
        {
            reason: (data_quality.suppress_count(count, threshold), tuple(errors.locations.get(reason, ())))
            for reason, count in sorted(errors.reasons.items())
        },
        {
            reason: data_quality.suppress_count(count, threshold)
            for reason, count in sorted(site.withheld.items())
        },
        (*_remarks(site, read, last), *remarks, site.gate.legal_basis_text()),
        threshold,
        may_participate and last > 0,
    )


def _format_issue(issue: DataQualityIssue) -> str:
    """Return an issue of the preflight in plain words; row counts are included, subject counts are not."""
    system = f" ({issue.system})" if issue.system else ""
    count = "" if issue.reason in _SUBJECT_REASONS else f", {issue.count}"
    return f"{issue.subject}: {issue.reason.value}{system}{count}; {issue.remedy}"


def _records_by_type(site: SitePipeline, threshold: int) -> dict[str, str]:
    types = sorted(required_types(site.data_request, site.study.eligibility))
    counts = {name: data_quality.suppress_count(site.records_read[name], threshold) for name in types}
    others = sum(count for name, count in site.records_read.items() if name not in counts)
    if others:
        counts["other types, not required"] = data_quality.suppress_count(others, threshold)
    return counts


def _remarks(site: SitePipeline, read: int, last: int) -> Iterable[str]:
    if not site.records_read:
        yield "no record was read: check [records]"
    elif not read:
        yield "no Patient was read, so there are no subjects: add the Patients to the records"
    elif not last:
        yield "no subject reaches the last stage: see the reasons for exclusion"
    yield from similar_questions(site.study)
    yield from similar_studies(site.study, earlier_studies(site.gate))
    if any("another system" in reason for reason in site.attrition.excluded.get(AttritionStage.ELIGIBLE, ())):
        yield "records use another code system than the study: ask the centre to add their codes to the study"
    if any(reason == TRUNCATED_FILE or "gzip" in reason for reason in site.errors.reasons):
        yield "a file is incomplete, so subjects may be missing: export or copy it again"
