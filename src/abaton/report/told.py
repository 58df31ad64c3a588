"""The report of any run: of a study or of the lab, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from abaton.report.course import Event
from abaton.report.curves import AXES
from abaton.report.lab_run import lab_report
from abaton.report.learner_figures import activity_figures
from abaton.report.run import run_report
from abaton.store import Activity, ModelRow, RunRow


def report_of(
    row: RunRow, models: Sequence[ModelRow], events: Iterable[Event], did: Activity | None = None
) -> dict[str, Any]:
    """Everything there is to tell of a run, ready for JSON.

    Args:
        row: The run.
        models: The versions of its community model.
        events: Its journal.
        did: What its learners did, for the figures of it; without it there are none.

    Raises:
        SettingsError: The run has not ended.
    """
    if "study" in row.recipe and "told" in row.recipe:
        made = run_report(row, events, models)
    else:
        made = lab_report(row, models, events)
    words = AXES["at"] if row.engine == "virtual" else AXES["wall"]
    return {**made, "figures": {} if did is None else activity_figures(did, words=words)}
