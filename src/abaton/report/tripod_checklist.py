"""TRIPOD+AI checklist of a run: which items the report fills, and which a person must write.

The items are those of Collins et al. (BMJ 2024;385:e078378), in our words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abaton.report.run_tables import Row, Table

FILLED, PARTLY, PERSON = "report", "partly", "person"
"""Who fills an item: the report, the report in part, or a person."""

ITEMS: tuple[tuple[str, str, str, str], ...] = (
    ("1", "Title: development or evaluation, population, outcome", PERSON, "the study's title is a start"),
    ("2", "Abstract by the checklist for abstracts", PERSON, ""),
    ("3", "Background: clinical context, purpose, users, known inequalities", PERSON, ""),
    ("4", "Objectives: development, validation or both", PARTLY, "Method: question and purpose"),
    ("5", "Data: sources, representativeness, dates", PARTLY, "Cohort; a person adds setting and dates"),
    ("6", "Participants: setting, eligibility, treatments", PARTLY, "study document: eligibility"),
    ("7", "Data preparation, also by group", FILLED, "study document: views and inputs; Cohort: exclusions"),
    ("8", "Outcome: definition, time horizon, assessment", PARTLY, "study document: label; a person adds assessors"),
    ("9", "Predictors: choice, definition, time", PARTLY, "study document: inputs; a person adds reasons"),
    ("10", "Sample size and how it was determined", PARTLY, "Cohort: events per parameter; a person adds reasons"),
    ("11", "Missing data: amount and handling", FILLED, "Cohort: missing values; study document: imputation"),
    ("12", "Analysis: use of data, model, tuning, heterogeneity, measures, recalibration", FILLED,
     "Method; Evaluation; Heterogeneity between sites"),
    ("13", "Class imbalance: methods and recalibration", PARTLY, "Evaluation: calibration; no method is applied"),
    ("14", "Fairness: approach and reason", PARTLY, "Evaluation: groups; a person adds the choice of groups"),
    ("15", "Model output: what it is, thresholds", FILLED, "model card: output; no threshold is set"),
    ("16", "Differences between training and evaluation data", FILLED, "Cohort: random split at each site"),
    ("17", "Ethical approval and consent", PARTLY, "Privacy: legal basis and consent; a person adds the approval"),
    ("18", "Open science: funding, conflicts, protocol, registration, data, code", PARTLY,
     "Provenance: document and versions; a person adds the others"),
    ("19", "Involvement of patients and the public", PERSON, ""),
    ("20", "Results on participants: flow, characteristics, missing values", FILLED, "Cohort"),
    ("21", "Numbers of participants and events in each analysis", FILLED, "Cohort: attrition and events per parameter"),
    ("22", "Full model: how to obtain predictions", FILLED, "abaton model export; Interpretability: coefficients"),
    ("23", "Performance with intervals, by group and by cluster", FILLED, "Evaluation; Heterogeneity between sites"),
    ("24", "Model updating and its results", PARTLY, "Evaluation: recalibration; Local benefit: personal models"),
    ("25", "Interpretation of the results, also on fairness", PERSON, ""),
    ("26", "Limitations", PARTLY, "Privacy: limitations; a person adds those of the design"),
    ("27", "Usability: poor data, users, next steps", PARTLY, "model card: inputs and limits; a person adds users"),
)  # fmt: skip
"""Number, subject, who fills it, and where it is or what helps."""

_NEEDS = {
    "11": "cohort_description",
    "20": "cohort_description",
    "21": "cohort_description",
    "23": "performance",
}


def checklist_table(results: Mapping[str, Any]) -> Table:
    """Return the TRIPOD+AI checklist of a run; an item whose data the run does not have is filled in part."""
    rows: list[Row] = []
    for number, subject, filled_by, location in ITEMS:
        if filled_by == FILLED and number in _NEEDS and not results.get(_NEEDS[number]):
            filled_by, location = PARTLY, f"{location}; not available in this run"
        rows.append((number, subject, filled_by, location or "–"))
    return ("item", "subject", "filled by", "where"), rows
