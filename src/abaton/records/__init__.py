"""FHIR records in and out, de-identified before anything else sees them.

The core needs the standard library only, so that the same code runs on a phone.
"""

from abaton.records.apart import apart
from abaton.records.deidentify import Deidentifier
from abaton.records.explain import explain
from abaton.records.need import (
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
from abaton.records.parsing import dump, parse
from abaton.records.pseudonyms import MappingRow, MappingSink, MemoryMapping, Pseudonyms
from abaton.records.stages import Consented, Deidentified, Record
from abaton.records.tally import Tally
from abaton.records.validity import Problem, problems

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
    "dump",
    "explain",
    "parse",
    "problems",
]
