"""Study runs on one machine or over a network: the same steps on both.

Names are imported on first use, because a site, the centre and a notebook need different modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abaton.study_run.baselines import POOLED, local_only_name, train_baselines
    from abaton.study_run.consent_roster import ConsentRoster
    from abaton.study_run.consented_learner import ConsentedLearner, SubjectRows
    from abaton.study_run.coordinator import StudyOptions, resume_study, run_prepared_study, run_study
    from abaton.study_run.evaluation import evaluate_at_site, evaluate_models
    from abaton.study_run.ingest import SiteIngest, ingest_sites
    from abaton.study_run.messages import FIELDS
    from abaton.study_run.preparation import PreparedSite, PreparedSites, prepare_sites
    from abaton.study_run.server import ControllerJob, NetworkController, NetworkRunOptions
    from abaton.study_run.site_client import PreparationResult, RemotePreparation
    from abaton.study_run.site_service import StudySiteService

__all__ = [
    "FIELDS",
    "POOLED",
    "ConsentRoster",
    "ConsentedLearner",
    "ControllerJob",
    "NetworkController",
    "NetworkRunOptions",
    "PreparationResult",
    "PreparedSite",
    "PreparedSites",
    "RemotePreparation",
    "SiteIngest",
    "StudyOptions",
    "StudySiteService",
    "SubjectRows",
    "evaluate_at_site",
    "evaluate_models",
    "ingest_sites",
    "local_only_name",
    "prepare_sites",
    "resume_study",
    "run_prepared_study",
    "run_study",
    "train_baselines",
]

_MODULES = {
    "baselines": "POOLED local_only_name train_baselines",
    "consent_roster": "ConsentRoster",
    "consented_learner": "ConsentedLearner SubjectRows",
    "coordinator": "StudyOptions resume_study run_prepared_study run_study",
    "evaluation": "evaluate_at_site evaluate_models",
    "ingest": "SiteIngest ingest_sites",
    "messages": "FIELDS",
    "preparation": "PreparedSite PreparedSites prepare_sites",
    "server": "ControllerJob NetworkController NetworkRunOptions",
    "site_client": "PreparationResult RemotePreparation",
    "site_service": "StudySiteService",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
