"""The report of any run: of a study or of the lab, as data and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.report.course import Event
from abaton.report.lab_page import lab_page
from abaton.report.lab_run import lab_report
from abaton.report.run import run_report
from abaton.report.run_page import run_page
from abaton.store import ModelRow, RunRow


def report_of(row: RunRow, models: Sequence[ModelRow], events: Iterable[Event]) -> dict[str, Any]:
    """Everything there is to tell of a run, ready for JSON.

    Args:
        row: The run.
        models: The versions of its community model.
        events: Its journal.

    Raises:
        SettingsError: The run has not ended.
    """
    if "study" in row.recipe and "told" in row.recipe:
        return run_report(row, events, models)
    return lab_report(row, models, events)


def page_of(report: Mapping[str, Any]) -> str:
    """The report of a run as one HTML document."""
    return run_page(report) if report["kind"] == "study" else lab_page(report)
