"""The study document: one question, who may take part, what is needed, and how people are protected."""

from abaton.study.bundle import write_bundle
from abaton.study.consent import Consent, Statement
from abaton.study.criteria import Criterion, Eligibility
from abaton.study.document import Centre, Identification, Purpose, Shares, Status, Study
from abaton.study.eligibility import Answer, Judgement, Verdict, judge
from abaton.study.features import Feature, Features, Target
from abaton.study.learning import Evaluation, Learning, Network, PolicyTable, Training
from abaton.study.notes import notes_on
from abaton.study.problems import Problem, StudyError
from abaton.study.reading import StudyReading, load_study, read_study, study_from_json, study_from_toml
from abaton.study.requirements import Requirement
from abaton.study.starting import starter
from abaton.study.summary import describe
from abaton.study.tables import ViewTable
from abaton.study.toml import write_toml
from abaton.study.values import Match, Period, Term

__all__ = [
    "Answer",
    "Centre",
    "Consent",
    "Criterion",
    "Eligibility",
    "Evaluation",
    "Feature",
    "Features",
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
    "Target",
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
