"""Remarks on valid study documents for their authors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from abaton.study.data_requirements import RequirementSection, has_element
from abaton.study.document import Study
from abaton.study.question_similarity import similar_questions


def lint_study(study: Study, today: date) -> list[str]:
    """Lint a study: return remarks where it is valid but may not be what its author intends.

    Args:
        study: The study.
        today: The date for which enrolment is checked.

    Returns:
        One sentence per remark.
    """
    remarks = []
    identification = study.study
    if study.consent is None:
        remarks.append("consent: there is no consent text, so subjects cannot be enrolled")
    if identification.legal_basis is None:
        remarks.append("study.legal_basis: the legal basis is not stated")
    if identification.retention is None:
        remarks.append("study.retention: the retention period is not stated")
    if identification.enrolment.end and identification.enrolment.end < today:
        remarks.append(f"study.enrolment: enrolment closed on {identification.enrolment.end.isoformat()}")
    if identification.period.end and identification.period.end < today:
        remarks.append(f"study.period: the study ended on {identification.period.end.isoformat()}")
    if study.learning is not None and study.learning.evaluation.internal_external:
        remarks.append("learning.evaluation.internal_external: on one machine only; a network run is refused")
    for i, criterion in enumerate(study.eligibility.criteria):
        if criterion.type == "lifespan" or (
            criterion.has_bounds and criterion.type not in ("age", "observation")
        ):
            remarks.append(f"eligibility.criteria[{i}]: always unknown, so no subject is eligible")
    for i, requirement in enumerate(study.data):
        remarks += [f"data[{i}]{remark}" for remark in _on_filters(requirement)]
    if study.learning and study.learning.plugins and (plugins := study.learning.site_plugins):
        packages = ", ".join(f"{package} {version}" for package, version in study.learning.plugins.items())
        names = " and ".join(f"the {kind} '{name}'" for kind, name in plugins)
        remarks.append(
            f"learning.plugins: {names} would run at sites, each of which must allow it ({packages})"
        )
    if study.features and study.privacy.anonymity:
        known = {study.features.label.name, *(spec.name for spec in study.features.inputs)}
        columns = study.privacy.anonymity.columns
        remarks += [
            f"privacy.anonymity: '{name}' is not an input or the label, so it cannot be enforced on the feature table"
            for name in columns
            if name not in known
        ]
    return remarks + similar_questions(study)


def _on_filters(requirement: RequirementSection) -> Iterator[str]:
    paths = [rule.path for rule in requirement.codes] + [rule.path for rule in requirement.dates]
    for path in paths:
        if not has_element(requirement.type, path):
            yield f": {requirement.type} has no '{path}', so the filter matches nothing"
    for j, code_filter in enumerate(requirement.codes):
        if not code_filter.any_of:
            yield f".codes[{j}]: sites cannot evaluate a value set; list its codes"
