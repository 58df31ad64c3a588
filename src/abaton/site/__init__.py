"""The site: where a hospital's records are, what it asks beyond the study, and its part of the pipeline."""

from abaton.site.agreements import Agreements, read_agreements, read_permit
from abaton.site.answers import ServerError
from abaton.site.bulk import BulkSource, Wanted
from abaton.site.centre import CentreAway, CentreClient
from abaton.site.checking import Check, check_site, checked
from abaton.site.consent import (
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
from abaton.site.dealings import Dealings, deal, site_holdings
from abaton.site.document import Limits, RecordsPart, SiteDocument, SiteRule, SiteRules
from abaton.site.funnel import Funnel, Stage
from abaton.site.inventory import SourceInventory, take_inventory
from abaton.site.ledger import Ledger, ledger_places, open_ledger
from abaton.site.masking import masked
from abaton.site.opening import gate_of, open_site
from abaton.site.parts import not_allowed
from abaton.site.policy import PolicyPart
from abaton.site.queries import Query, queries
from abaton.site.reading import SiteError, SiteFile, load_site, site_from_toml, smallest_count
from abaton.site.rest import RestSource
from abaton.site.sending import Sending, SiteSender
from abaton.site.site import KeptSubject, Site
from abaton.site.smart import Tokens
from abaton.site.sources import Faults, FileSource, Source
from abaton.site.starting import starter
from abaton.site.web import Web

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
