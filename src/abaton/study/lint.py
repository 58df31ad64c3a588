"""What a study document leaves open although it is valid: remarks for its author, not errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from abaton.study.data_requirements import Requirement, has_element
from abaton.study.document import Study


def notes_on(study: Study, today: date) -> list[str]:
    """Remarks on a study that is valid but may not be what its author means.

    Args:
        study: The study.
        today: The day on which enrolment is looked at.

    Returns:
        One sentence each; none if nothing is open.
    """
    made = []
    head = study.study
    if study.consent is None:
        made.append("consent: there is no consent text, so nobody can be asked to take part")
    if head.legal_basis is None:
        made.append("study.legal_basis: the legal ground is not stated")
    if head.retention is None:
        made.append("study.retention: it is not said how long records are kept")
    if head.enrolment.end and head.enrolment.end < today:
        made.append(f"study.enrolment: enrolment closed on {head.enrolment.end.isoformat()}")
    if head.period.end and head.period.end < today:
        made.append(f"study.period: the study ended on {head.period.end.isoformat()}")
    for i, criterion in enumerate(study.eligibility.criteria):
        if criterion.what == "lifespan" or (
            criterion.bounded and criterion.what not in ("age", "observation")
        ):
            made.append(f"eligibility.criteria[{i}]: records cannot answer this, so nobody will be eligible")
    for i, requirement in enumerate(study.data):
        made += [f"data[{i}]{remark}" for remark in _on_filters(requirement)]
    if study.learning and study.learning.parts and (strange := study.learning.own_parts):
        named = ", ".join(f"{package} {version}" for package, version in study.learning.parts.items())
        parts = " and ".join(f"the {kind} '{name}'" for kind, name in strange)
        made.append(f"learning.parts: {parts} would run at sites, each of which must allow it ({named})")
    if study.features and study.privacy.anonymity:
        known = {study.features.label.name, *(each.name for each in study.features.inputs)}
        asked = study.privacy.anonymity.columns
        made += [
            f"privacy.anonymity: '{name}' is no input of [features], so it cannot be enforced on the model's table"
            for name in asked
            if name not in known
        ]
    return made


def _on_filters(requirement: Requirement) -> Iterator[str]:
    paths = [rule.path for rule in requirement.codes] + [rule.path for rule in requirement.dates]
    for path in paths:
        if not has_element(requirement.type, path):
            yield f": {requirement.type} has no '{path}', so the filter finds nothing"
    for j, rule in enumerate(requirement.codes):
        if not rule.any:
            yield f".codes[{j}]: sites cannot evaluate this filter; list its codes"
