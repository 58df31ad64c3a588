"""FHIR records in and out, de-identified before anything else sees them.

The front doors are :func:`deidentify`, :func:`view` and :func:`anonymise`. ``fhir`` is FHIR itself, ``deid`` the
de-identification; both need the standard library only, so that the same code runs on a phone. What works on tables is
loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abaton.deid.api import deidentify, explain
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.mapping_table import MappingRow, MappingSink, MemoryMapping
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import (
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
from abaton.deid.transform_counts import Tally
from abaton.fhir.bundles import apart, opened
from abaton.fhir.json_format import dump, parse
from abaton.fhir.validation import ValidityProblem, problems
from abaton.record_types import Consented, Deidentified, Record

if TYPE_CHECKING:
    from abaton.anonymity.api import anonymise as anonymise
    from abaton.views.api import view as view

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
    "Pseudonyms",
    "Record",
    "Rule",
    "Tally",
    "ValidityProblem",
    "Want",
    "anonymise",
    "apart",
    "deidentify",
    "dump",
    "explain",
    "opened",
    "parse",
    "problems",
    "view",
]

_LATER = {"anonymise": "abaton.anonymity.api", "view": "abaton.views.api"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
