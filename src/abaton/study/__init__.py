"""The study document: one question, who may take part, what is needed, and how people are protected."""

from abaton.documents.fields import Match, Period, Term
from abaton.documents.problems import Problem
from abaton.study.components import Network
from abaton.study.criteria import Criterion, Eligibility
from abaton.study.data_requirements import Requirement
from abaton.study.document import Centre, Identification, Purpose, Shares, Status, Study
from abaton.study.eligibility import Answer, Judgement, Verdict, judge
from abaton.study.evaluation_section import Evaluation, Explanation
from abaton.study.fhir_bundle import write_bundle
from abaton.study.learning import Learning, PolicyTable, Training
from abaton.study.lint import notes_on
from abaton.study.sections import Consent, Statement, ViewTable
from abaton.study.study_reader import (
    StudyError,
    StudyReading,
    load_study,
    read_study,
    study_from_json,
    study_from_toml,
    write_toml,
)
from abaton.study.summary import describe
from abaton.study.template import Answers, starter

__all__ = [
    "Answer",
    "Answers",
    "Centre",
    "Consent",
    "Criterion",
    "Eligibility",
    "Evaluation",
    "Explanation",
    "Identification",
    "Judgement",
    "Learning",
    "Match",
    "Network",
    "Period",
    "PolicyTable",
    "Problem",
    "Purpose",
    "Requirement",
    "Shares",
    "Statement",
    "Status",
    "Study",
    "StudyError",
    "StudyReading",
    "Term",
    "Training",
    "Verdict",
    "ViewTable",
    "describe",
    "judge",
    "load_study",
    "notes_on",
    "read_study",
    "starter",
    "study_from_json",
    "study_from_toml",
    "write_bundle",
    "write_toml",
]
