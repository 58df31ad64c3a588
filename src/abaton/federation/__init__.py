"""Federated training of one model without a study: sites, settings, engine and run."""

from abaton.federation.engine_factory import EngineFactory, resolve_engine
from abaton.federation.federation import Federation, RunMetadata
from abaton.federation.participants import LearnerContext, LocalSite, Participant
from abaton.federation.run import COMMUNITY, Run

__all__ = [
    "COMMUNITY",
    "EngineFactory",
    "Federation",
    "LearnerContext",
    "LocalSite",
    "Participant",
    "Run",
    "RunMetadata",
    "resolve_engine",
]
