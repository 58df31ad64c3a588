"""FHIR records in and out, de-identified before anything else sees them.

The core needs the standard library only, so that the same code runs on a phone. :func:`view` and :func:`anonymise`
work on tables: what they need is loaded when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.records.apart import apart, opened
from abaton.records.deidentify import Deidentifier
from abaton.records.explain import explain
from abaton.records.need import (
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

if TYPE_CHECKING:
    from abaton.records.anonymity.anonymising import anonymise as anonymise
    from abaton.records.views.viewing import view as view

__all__ = [
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
    "anonymise",
    "apart",
    "dump",
    "explain",
    "opened",
    "parse",
    "problems",
    "view",
]

_LATER = {"anonymise": "abaton.records.anonymity.anonymising", "view": "abaton.records.views.viewing"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
