"""The site: where a hospital's records are, what it asks beyond the study, and its part of the pipeline."""

from abaton.disclosure.attrition import Funnel, Stage
from abaton.disclosure.release_log import Ledger
from abaton.disclosure.suppression import masked
from abaton.site.centre_client import CentreAway, CentreClient, Sending, SiteSender
from abaton.site.centre_session import Dealings, deal, site_holdings
from abaton.site.config import Limits, PolicyPart, RecordsPart, SiteDocument, SiteRule, SiteRules
from abaton.site.config_reader import (
    SiteError,
    SiteFile,
    load_site,
    not_allowed,
    site_from_toml,
    smallest_count,
    starter,
)
from abaton.site.consent_gate import (
    SAID_NO,
    ConsentGate,
    OptOuts,
    Permission,
    PermittedUse,
    RegisteredConsents,
    StatedGround,
    publish,
    subject_tag,
)
from abaton.site.consent_import import Agreements, read_agreements, read_permit
from abaton.site.factory import gate_of, ledger_places, open_ledger, open_site
from abaton.site.preflight import Check, check_site, checked
from abaton.site.record_pipeline import KeptSubject, Site
from abaton.site.source_profile import SourceInventory, take_inventory
from abaton.site.sources.base import Faults, FileSource, Source
from abaton.site.sources.fhir_server.bulk_export import BulkSource, Wanted
from abaton.site.sources.fhir_server.http_client import ServerError, Web
from abaton.site.sources.fhir_server.search import RestSource
from abaton.site.sources.fhir_server.smart_auth import Tokens
from abaton.site.sources.queries import Query, queries

__all__ = [
    "SAID_NO",
    "Agreements",
    "BulkSource",
    "CentreAway",
    "CentreClient",
    "Check",
    "ConsentGate",
    "Dealings",
    "Faults",
    "FileSource",
    "Funnel",
    "KeptSubject",
    "Ledger",
    "Limits",
    "OptOuts",
    "Permission",
    "PermittedUse",
    "PolicyPart",
    "Query",
    "RecordsPart",
    "RegisteredConsents",
    "RestSource",
    "Sending",
    "ServerError",
    "Site",
    "SiteDocument",
    "SiteError",
    "SiteFile",
    "SiteRule",
    "SiteRules",
    "SiteSender",
    "Source",
    "SourceInventory",
    "Stage",
    "StatedGround",
    "Tokens",
    "Wanted",
    "Web",
    "check_site",
    "checked",
    "deal",
    "gate_of",
    "ledger_places",
    "load_site",
    "masked",
    "not_allowed",
    "open_ledger",
    "open_site",
    "publish",
    "queries",
    "read_agreements",
    "read_permit",
    "site_from_toml",
    "site_holdings",
    "smallest_count",
    "starter",
    "subject_tag",
    "take_inventory",
]
