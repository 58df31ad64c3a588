"""Reports: pure functions from rows to documents that open anywhere, offline."""

from abaton.report.adding import (
    Table,
    differing,
    flat,
    origin,
    setting_rows,
    settings_of,
    times_smaller,
    totals,
)
from abaton.report.model_card_page import card_markdown, card_page
from abaton.report.evaluation_figures import calibration_figure, forest_figure, model_colours, roc_figure
from abaton.report.codecs import accuracy_curves, error_curves, heat_maps, kernel_map
from abaton.report.run_comparison import comparison, letter, short
from abaton.report.course import course, course_figures
from abaton.report.curves import AXES, metric_figure, metric_names, pace_figure
from abaton.report.interpretability_figures import explaining_figures
from abaton.report.profile_page import inventory_page
from abaton.report.lab_run import lab_report
from abaton.report.learner_figures import (
    STATES,
    TITLES,
    activity_figures,
    cycle_figure,
    payload_figure,
    spread_figure,
    timeline_figure,
    weight_figure,
)
from abaton.report.pages import comparison_page, figures_page, lab_page, page_of, privacy_page, run_page
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
from abaton.report.run import cohort_changes, run_report
from abaton.report.told import report_of

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
    "Table",
    "accuracy_curves",
    "accuracy_over_time",
    "activity_figures",
    "calibration_figure",
    "card_markdown",
    "card_page",
    "cohort_changes",
    "community_cost",
    "comparison",
    "comparison_page",
    "course",
    "course_figures",
    "cycle_figure",
    "differing",
    "error_curves",
    "exchanges",
    "explaining_figures",
    "figures_page",
    "flat",
    "forest_figure",
    "heat_maps",
    "inputs_from",
    "inventory_page",
    "kernel_map",
    "lab_page",
    "lab_report",
    "letter",
    "metric_figure",
    "metric_names",
    "model_colours",
    "origin",
    "pace_figure",
    "page_of",
    "partition_figure",
    "payload_figure",
    "privacy_page",
    "privacy_report",
    "report_of",
    "roc_figure",
    "run_page",
    "run_report",
    "setting_rows",
    "settings_of",
    "short",
    "spread_figure",
    "staleness_boxes",
    "timeline_figure",
    "times_smaller",
    "totals",
    "validation_cycles",
    "weight_figure",
]
