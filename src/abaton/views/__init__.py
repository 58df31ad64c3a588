"""FHIR to tables by HL7's *SQL on FHIR v2*: view definitions compiled once, rows streamed."""

from abaton.views.api import frame, load_view, resources_of, view, write
from abaton.views.conformance import report
from abaton.views.definition import Column, View
from abaton.views.required_elements import elements

__all__ = ["Column", "View", "elements", "frame", "load_view", "report", "resources_of", "view", "write"]
