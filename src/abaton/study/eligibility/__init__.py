"""Whether a subject may take part, judged from the records alone."""

from abaton.study.eligibility.criterion_evaluation import Judgement, Verdict, judge
from abaton.study.eligibility.evidence import Answer

__all__ = ["Answer", "Judgement", "Verdict", "judge"]
