"""Whether a subject may take part, judged from the records alone."""

from abaton.study.eligibility.answers import Answer
from abaton.study.eligibility.criterion_evaluation import Judgement, Verdict, judge

__all__ = ["Answer", "Judgement", "Verdict", "judge"]
