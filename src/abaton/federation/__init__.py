"""A study as a federation of sites: from consented records to a community model that was judged."""

from abaton.federation.baselines import POOLED, alone, baselines
from abaton.federation.judging import judge_models, site_counts
from abaton.federation.learners import ConsentedLearner, Rows
from abaton.federation.members import Federation, Member, federate
from abaton.federation.reading import Reading, read_sites
from abaton.federation.rolls import Roll
from abaton.federation.running import COMMUNITY, Options, resume_study, run_readings, run_study

__all__ = [
    "COMMUNITY",
    "POOLED",
    "ConsentedLearner",
    "Federation",
    "Member",
    "Options",
    "Reading",
    "Roll",
    "Rows",
    "alone",
    "baselines",
    "federate",
    "judge_models",
    "read_sites",
    "resume_study",
    "run_readings",
    "run_study",
    "site_counts",
]
