"""A study on a real network: the same steps as on one machine, with sites that only tell sums, counts and updates."""

from abaton.study_run.site_client import Preparation, Ready
from abaton.study_run.server import Controller, Submission, Wish
from abaton.study_run.site_service import StudyDesk
from abaton.study_run.messages import FIELDS

__all__ = ["FIELDS", "Controller", "Preparation", "Ready", "StudyDesk", "Submission", "Wish"]
