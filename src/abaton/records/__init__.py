"""FHIR records in and out, de-identified before anything else sees them.

:func:`deidentify` is the front door. ``fhir`` is FHIR itself, ``deid`` the de-identification; both need the standard
library only, so that the same code runs on a phone.
"""

from abaton.records.deid.deidentifier import Deidentifier
from abaton.records.deid.explain import explain
from abaton.records.deid.need import (
    Allowed,
    Code,
    CodeFilter,
    DateFilter,
    Dates,
    Deidentification,
    Function,
    Identity,
    Mechanism,
    Need,
    Preset,
    Rule,
    Want,
)
from abaton.records.deid.pseudonyms import MappingRow, MappingSink, MemoryMapping, Pseudonyms
from abaton.records.deid.tally import Tally
from abaton.records.fhir.bundles import apart
from abaton.records.fhir.parsing import dump, parse
from abaton.records.fhir.validity import Problem, problems
from abaton.records.front import deidentify
from abaton.records.stages import Consented, Deidentified, Record

__all__ = [
    "Allowed",
    "Code",
    "CodeFilter",
    "Consented",
    "DateFilter",
    "Dates",
    "Deidentification",
    "Deidentified",
    "Deidentifier",
    "Function",
    "Identity",
    "MappingRow",
    "MappingSink",
    "Mechanism",
    "MemoryMapping",
    "Need",
    "Preset",
    "Problem",
    "Pseudonyms",
    "Record",
    "Rule",
    "Tally",
    "Want",
    "apart",
    "deidentify",
    "dump",
    "explain",
    "parse",
    "problems",
]
