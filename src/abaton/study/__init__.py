"""Study document: question, eligibility, data requirements, de-identification, features and learning."""

from abaton.documents.fields import CodePrefix, Coding, DatePeriod
from abaton.documents.problems import DocumentProblem
from abaton.study.components import ModelSpec
from abaton.study.criteria import Criterion, Eligibility
from abaton.study.data_requirements import RequirementSection
from abaton.study.document import Identification, Purpose, ResearchCentre, SharedData, Study, StudyStatus
from abaton.study.eligibility import CriterionResult, EligibilityResult, Ternary, evaluate_eligibility
from abaton.study.evaluation_section import EvaluationSection, InterpretabilitySection
from abaton.study.fhir_bundle import write_bundle
from abaton.study.learning import LearningSection, StrategySection, TrainingSection
from abaton.study.lint import lint_study
from abaton.study.sections import ConsentSection, ConsentStatement, ViewSection
from abaton.study.study_reader import (
    StudyError,
    StudyFile,
    load_study,
    read_study,
    study_from_json,
    study_from_toml,
    write_toml,
)
from abaton.study.summary import describe
from abaton.study.template import TemplateAnswers, study_template

__all__ = [
    "CodePrefix",
    "Coding",
    "ConsentSection",
    "ConsentStatement",
    "Criterion",
    "CriterionResult",
    "DatePeriod",
    "DocumentProblem",
    "Eligibility",
    "EligibilityResult",
    "EvaluationSection",
    "Identification",
    "InterpretabilitySection",
    "LearningSection",
    "ModelSpec",
    "Purpose",
    "RequirementSection",
    "ResearchCentre",
    "SharedData",
    "StrategySection",
    "Study",
    "StudyError",
    "StudyFile",
    "StudyStatus",
    "TemplateAnswers",
    "Ternary",
    "TrainingSection",
    "ViewSection",
    "describe",
    "evaluate_eligibility",
    "lint_study",
    "load_study",
    "read_study",
    "study_from_json",
    "study_from_toml",
    "study_template",
    "write_bundle",
    "write_toml",
]
