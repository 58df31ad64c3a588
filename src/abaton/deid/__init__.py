"""De-identification of FHIR records: compiled rule tables, pseudonyms, references, ages and counts of changes.

The package needs the standard library only, so that the same code runs in a browser.
"""

from abaton.deid.api import deidentify, explain
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.mapping_table import MappingRow, MappingSink, MemoryMapping
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import (
    CodeFilter,
    CodePattern,
    DataRequest,
    DataRequirement,
    DateFilter,
    DateHandling,
    DeidentificationRule,
    DeidentificationSettings,
    Mechanism,
    PseudonymScheme,
    RequirementPurpose,
    RuleOptIn,
    RulePreset,
)
from abaton.deid.transform_counts import TransformCounts

__all__ = [
    "CodeFilter",
    "CodePattern",
    "DataRequest",
    "DataRequirement",
    "DateFilter",
    "DateHandling",
    "DeidentificationRule",
    "DeidentificationSettings",
    "Deidentifier",
    "MappingRow",
    "MappingSink",
    "Mechanism",
    "MemoryMapping",
    "PseudonymScheme",
    "Pseudonyms",
    "RequirementPurpose",
    "RuleOptIn",
    "RulePreset",
    "TransformCounts",
    "deidentify",
    "explain",
]
