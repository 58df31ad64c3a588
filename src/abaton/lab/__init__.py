"""Experiments: cohorts, heterogeneity, and runs that can be repeated from a recipe."""

from abaton.lab.cohort import cohort
from abaton.lab.experiment import Experiment, build, resume, simulate, start

__all__ = ["Experiment", "build", "cohort", "resume", "simulate", "start"]
