"""SQL on FHIR v2: view definitions compiled to rows."""

from abaton.views.api import load_view, resources_of, to_frame, view, write_table
from abaton.views.conformance import conformance_report
from abaton.views.definition import ViewColumnDefinition, ViewDefinition
from abaton.views.required_elements import elements_read_by

__all__ = [
    "ViewColumnDefinition",
    "ViewDefinition",
    "conformance_report",
    "elements_read_by",
    "load_view",
    "resources_of",
    "to_frame",
    "view",
    "write_table",
]
