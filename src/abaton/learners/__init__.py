"""Learners and evaluators: local training on one site's data."""

from abaton.learners.learner import EpochResult, Learner, LearnerUpdate, TrainingMonitor, should_end_cycle
from abaton.learners.parallel_trainer import ParallelTrainer, ParallelTrainingError
from abaton.learners.personal_layers import PersonalLayersModel
from abaton.learners.process_pool import TrainingJob
from abaton.learners.site_policy import AllowAllPolicy, SignedModel, SitePolicy, SiteReply, SiteRequest

__all__ = [
    "AllowAllPolicy",
    "EpochResult",
    "Learner",
    "LearnerUpdate",
    "ParallelTrainer",
    "ParallelTrainingError",
    "PersonalLayersModel",
    "SignedModel",
    "SitePolicy",
    "SiteReply",
    "SiteRequest",
    "TrainingJob",
    "TrainingMonitor",
    "should_end_cycle",
]
