"""The one road to a community model: a federation of sites, whoever holds the rows and whatever carries the tasks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.federation.engine_factory import Carrier, engine_of
from abaton.federation.federation import Dossier, Federation
from abaton.federation.participants import Holding, Making, Participant
from abaton.federation.run import COMMUNITY, Run

if TYPE_CHECKING:
    from abaton.study_run.consent_roster import Roll
    from abaton.study_run.consented_learner import ConsentedLearner, Rows
    from abaton.study_run.coordinator import StudyOptions, resume_study, run_readings, run_study
    from abaton.study_run.evaluation import POOLED, alone, baselines, judge_models, site_counts
    from abaton.study_run.ingest import Reading, read_sites
    from abaton.study_run.preparation import Member, Members, federate

__all__ = [
    "COMMUNITY",
    "POOLED",
    "Carrier",
    "ConsentedLearner",
    "Dossier",
    "Federation",
    "Holding",
    "Making",
    "Member",
    "Members",
    "Participant",
    "Reading",
    "Roll",
    "Rows",
    "Run",
    "StudyOptions",
    "alone",
    "baselines",
    "engine_of",
    "federate",
    "judge_models",
    "read_sites",
    "resume_study",
    "run_readings",
    "run_study",
    "site_counts",
]

# What knows of studies is loaded when it is first used: data and a model need none of it.
_OF_STUDIES = {
    "abaton.study_run.evaluation": ("POOLED", "alone", "baselines", "judge_models", "site_counts"),
    "abaton.study_run.consented_learner": ("ConsentedLearner", "Rows"),
    "abaton.study_run.preparation": ("Member", "Members", "federate"),
    "abaton.study_run.ingest": ("Reading", "read_sites"),
    "abaton.study_run.consent_roster": ("Roll",),
    "abaton.study_run.coordinator": ("StudyOptions", "resume_study", "run_readings", "run_study"),
}
_WHERE = {name: module for module, names in _OF_STUDIES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
