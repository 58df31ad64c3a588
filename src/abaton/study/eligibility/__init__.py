"""Eligibility of a subject, evaluated on the subject's records only."""

from abaton.study.eligibility.criterion_evaluation import (
    CriterionResult,
    EligibilityResult,
    evaluate_eligibility,
)
from abaton.study.eligibility.evidence import Ternary

__all__ = ["CriterionResult", "EligibilityResult", "Ternary", "evaluate_eligibility"]
