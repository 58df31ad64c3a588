"""FHIR to tables by HL7's *SQL on FHIR v2*: view definitions compiled once, rows streamed."""

from abaton.records.views.conformance import report
from abaton.records.views.definition import Column, View
from abaton.records.views.needs import elements
from abaton.records.views.tables import frame, write

__all__ = ["Column", "View", "elements", "frame", "report", "write"]
