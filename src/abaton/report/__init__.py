"""Reports: pure functions from rows to documents that open anywhere, offline."""

from abaton.report.clinical import calibration_figure, forest_figure, roc_figure
from abaton.report.codecs import accuracy_curves, error_curves, figures_page, heat_maps, kernel_map
from abaton.report.comparison import comparison, differences
from abaton.report.comparison_page import comparison_figures, comparison_page
from abaton.report.course import course, course_figures
from abaton.report.curves import AXES, metric_figure, metric_names, pace_figure
from abaton.report.lab_page import lab_figures, lab_page
from abaton.report.lab_run import lab_report
from abaton.report.learners import (
    STATES,
    TITLES,
    activity_figures,
    cycle_figure,
    payload_figure,
    spread_figure,
    timeline_figure,
    weight_figure,
)
from abaton.report.partition import partition_figure
from abaton.report.policies import (
    accuracy_over_time,
    community_cost,
    exchanges,
    staleness_boxes,
    validation_cycles,
)
from abaton.report.privacy import (
    Checks,
    Consents,
    Custody,
    Element,
    ModelUtility,
    PrivacyInputs,
    Residual,
    Signature,
    StudyFacts,
    inputs_from,
    privacy_report,
)
from abaton.report.privacy_page import privacy_page
from abaton.report.run import cohort_changes, run_report
from abaton.report.run_page import run_figures, run_page
from abaton.report.told import page_of, report_of

__all__ = [
    "AXES",
    "STATES",
    "TITLES",
    "Checks",
    "Consents",
    "Custody",
    "Element",
    "ModelUtility",
    "PrivacyInputs",
    "Residual",
    "Signature",
    "StudyFacts",
    "accuracy_curves",
    "accuracy_over_time",
    "activity_figures",
    "calibration_figure",
    "cohort_changes",
    "community_cost",
    "comparison",
    "comparison_figures",
    "comparison_page",
    "course",
    "course_figures",
    "cycle_figure",
    "differences",
    "error_curves",
    "exchanges",
    "figures_page",
    "forest_figure",
    "heat_maps",
    "inputs_from",
    "kernel_map",
    "lab_figures",
    "lab_page",
    "lab_report",
    "metric_figure",
    "metric_names",
    "pace_figure",
    "page_of",
    "partition_figure",
    "payload_figure",
    "privacy_page",
    "privacy_report",
    "report_of",
    "roc_figure",
    "run_figures",
    "run_page",
    "run_report",
    "spread_figure",
    "staleness_boxes",
    "timeline_figure",
    "validation_cycles",
    "weight_figure",
]
