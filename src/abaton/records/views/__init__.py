"""FHIR to tables by HL7's *SQL on FHIR v2*: view definitions compiled once, rows streamed."""

from abaton.records.views.conformance import report
from abaton.records.views.definition import Column, View
from abaton.records.views.needs import elements
from abaton.records.views.tables import frame, write
from abaton.records.views.viewing import load_view, resources_of, view

__all__ = ["Column", "View", "elements", "frame", "load_view", "report", "resources_of", "view", "write"]
