"""The privacy report on the command line: what the study says, what other parts supplied, the file written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from abaton.cli.output import note, save
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.report import PrivacyInputs
    from abaton.study import Study


def facts_of(study: Study) -> PrivacyInputs:
    """What the study document itself says for the report."""
    from abaton.report import Custody, PrivacyInputs, StudyFacts

    head = study.study
    purpose = f"{head.purpose.value}: {head.question}" if head.question else head.purpose.value
    facts = StudyFacts(head.title, purpose, head.legal_basis, study.hash)
    return PrivacyInputs(
        study=facts, custody=Custody(retention=head.retention, recipients=(study.centre.name,))
    )


def read_inputs(report: Path | None, supplied: Path | None) -> PrivacyInputs:
    """What other parts supplied, checked before anything is written."""
    import json

    from abaton.report import PrivacyInputs, inputs_from
    from abaton.report.privacy_report import FORMAT, PARTS

    if report is not None and report.suffix.lower() not in (".html", ".json"):
        raise SettingsError("a report is .html or .json", where=str(report), remedy="change its ending")
    if supplied is None:
        return PrivacyInputs()
    try:
        parts = json.loads(supplied.read_text("utf-8"))
    except (OSError, ValueError):
        raise SettingsError("the report's inputs are not readable JSON", where=str(supplied)) from None
    if not isinstance(parts, dict):
        raise SettingsError("the report's inputs must be one JSON object", where=str(supplied))
    if parts.get("format") == FORMAT:  # an earlier report, to be completed
        parts = {name: parts[name] for name in PARTS if parts.get(name) is not None}
    return inputs_from(parts, where=str(supplied))


def completed(supplied: PrivacyInputs, known: PrivacyInputs) -> PrivacyInputs:
    """What was supplied, filled up with what the study document says; its hash is always the document's."""
    study, custody = supplied.study or known.study, supplied.custody or known.custody
    if study is not None and known.study is not None:
        study = replace(study, document_sha256=known.study.document_sha256)
    return replace(supplied, study=study, custody=custody)


def write_report(path: Path, inputs: PrivacyInputs) -> None:
    """Write the report as a page or as JSON, by the file's ending."""
    import json
    from datetime import UTC, datetime

    from abaton import __version__
    from abaton.report import privacy_page, privacy_report

    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    made = privacy_report(inputs, software=f"abaton {__version__}", made_at=made_at)
    text = (
        privacy_page(made)
        if path.suffix.lower() == ".html"
        else json.dumps(made, indent=2, ensure_ascii=False)
    )
    save(path, text)
    note(f"wrote {path}")
