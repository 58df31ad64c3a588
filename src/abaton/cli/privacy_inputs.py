"""Privacy report of the command line: its inputs, and the file written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from abaton.cli.output import note, save
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.report import PrivacyInputs
    from abaton.study import Study


def inputs_of_study(study: Study) -> PrivacyInputs:
    """Return the privacy report's input sections that follow from the study document."""
    from abaton.report import CustodySummary, PrivacyInputs, StudyFacts

    header = study.study
    purpose = f"{header.purpose.value}: {header.question}" if header.question else header.purpose.value
    facts = StudyFacts(header.title, purpose, header.legal_basis, study.hash)
    return PrivacyInputs(
        study=facts, custody=CustodySummary(retention=header.retention, recipients=(study.centre.name,))
    )


def read_inputs(report: Path | None, inputs_file: Path | None) -> PrivacyInputs:
    """Return the privacy report's sections of an inputs file, checked before anything is written."""
    import json

    from abaton.report import PrivacyInputs, inputs_from
    from abaton.report.privacy_report import FORMAT, SECTIONS

    if report is not None and report.suffix.lower() not in (".html", ".json"):
        raise SettingsError(
            f"'{report.suffix}' is not a suffix of a report", where=str(report), remedy="use .html or .json"
        )
    if inputs_file is None:
        return PrivacyInputs()
    try:
        sections = json.loads(inputs_file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        raise SettingsError("the report inputs are not valid JSON", where=str(inputs_file)) from None
    if not isinstance(sections, dict):
        raise SettingsError("the report inputs are not a JSON object", where=str(inputs_file))
    if sections.get("format") == FORMAT:  # an earlier report, to be fill_inputs
        sections = {name: sections[name] for name in SECTIONS if sections.get(name) is not None}
    return inputs_from(sections, where=str(inputs_file))


def fill_inputs(inputs: PrivacyInputs, defaults: PrivacyInputs) -> PrivacyInputs:
    """Return privacy report inputs with missing sections from the study document, and always its hash."""
    study, custody = inputs.study or defaults.study, inputs.custody or defaults.custody
    if study is not None and defaults.study is not None:
        study = replace(study, document_sha256=defaults.study.document_sha256)
    return replace(inputs, study=study, custody=custody)


def write_report(path: Path, inputs: PrivacyInputs) -> None:
    """Write the privacy report from its inputs as HTML or JSON, by the suffix of the file."""
    import json
    from datetime import UTC, datetime

    from abaton import __version__
    from abaton.report import make_privacy_report, render_privacy_report

    created = datetime.now(UTC).isoformat(timespec="seconds")
    report = make_privacy_report(inputs, software=f"abaton {__version__}", created=created)
    text = (
        render_privacy_report(report)
        if path.suffix.lower() == ".html"
        else json.dumps(report, indent=2, ensure_ascii=False)
    )
    save(path, text)
    note(f"wrote {path}")
