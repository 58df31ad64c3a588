"""Configuration of a site, its record sources, its consent gate and its record pipeline."""

from abaton.disclosure.attrition import Attrition, AttritionStage
from abaton.disclosure.release_log import ReleaseLog
from abaton.site.centre_client import CentreClient, CentreUnavailableError, RecordSender, TransferReport
from abaton.site.centre_session import CentreSession, open_centre_session, retention_targets
from abaton.site.config import (
    RecordsSection,
    SiteConfig,
    SiteDeidentificationRule,
    SiteLimits,
    SitePolicySection,
    SiteRulesSection,
)
from abaton.site.config_reader import (
    LoadedSiteConfig,
    SiteConfigError,
    disallowed_plugins,
    disclosure_level,
    load_site,
    min_cell_count,
    site_from_toml,
    site_template,
)
from abaton.site.consent_gate import (
    WITHDRAWAL_REASONS,
    ConsentGate,
    OptOutGate,
    PermissionDecision,
    PermittedUse,
    RegistryGate,
    StatedLegalBasis,
    publish,
    subject_pseudonym,
)
from abaton.site.consent_import import ImportedConsents, import_site_consents, read_permit
from abaton.site.factory import (
    build_consent_gate,
    build_site,
    open_release_gate,
    open_release_log,
    preview_release_gate,
    release_log_paths,
    release_register_paths,
)
from abaton.site.preflight import PreflightResult, check_site, summarise_pipeline
from abaton.site.record_pipeline import AcceptedSubject, SitePipeline
from abaton.site.source_profile import SourceProfile, profile_source
from abaton.site.sources.base import FileSource, RecordSource, SourceErrors
from abaton.site.sources.fhir_server.bulk_export import BulkExportRequest, BulkExportSource
from abaton.site.sources.fhir_server.http_client import FhirHttpClient, FhirServerError
from abaton.site.sources.fhir_server.search import SearchSource
from abaton.site.sources.fhir_server.smart_auth import SmartTokens
from abaton.site.sources.queries import FhirQuery, build_fhir_queries

__all__ = [
    "WITHDRAWAL_REASONS",
    "AcceptedSubject",
    "Attrition",
    "AttritionStage",
    "BulkExportRequest",
    "BulkExportSource",
    "CentreClient",
    "CentreSession",
    "CentreUnavailableError",
    "ConsentGate",
    "FhirHttpClient",
    "FhirQuery",
    "FhirServerError",
    "FileSource",
    "ImportedConsents",
    "LoadedSiteConfig",
    "OptOutGate",
    "PermissionDecision",
    "PermittedUse",
    "PreflightResult",
    "RecordSender",
    "RecordSource",
    "RecordsSection",
    "RegistryGate",
    "ReleaseLog",
    "SearchSource",
    "SiteConfig",
    "SiteConfigError",
    "SiteDeidentificationRule",
    "SiteLimits",
    "SitePipeline",
    "SitePolicySection",
    "SiteRulesSection",
    "SmartTokens",
    "SourceErrors",
    "SourceProfile",
    "StatedLegalBasis",
    "TransferReport",
    "build_consent_gate",
    "build_fhir_queries",
    "build_site",
    "check_site",
    "disallowed_plugins",
    "disclosure_level",
    "import_site_consents",
    "load_site",
    "min_cell_count",
    "open_centre_session",
    "open_release_gate",
    "open_release_log",
    "preview_release_gate",
    "profile_source",
    "publish",
    "read_permit",
    "release_log_paths",
    "release_register_paths",
    "retention_targets",
    "site_from_toml",
    "site_template",
    "subject_pseudonym",
    "summarise_pipeline",
]
