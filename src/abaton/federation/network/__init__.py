"""A study on a real network: the same steps as on one machine, with sites that only tell sums, counts and updates."""

from abaton.federation.network.asking import Preparation, Ready
from abaton.federation.network.centre import Controller, Submission, Wish
from abaton.federation.network.desk import StudyDesk
from abaton.federation.network.messages import FIELDS

__all__ = ["FIELDS", "Controller", "Preparation", "Ready", "StudyDesk", "Submission", "Wish"]
