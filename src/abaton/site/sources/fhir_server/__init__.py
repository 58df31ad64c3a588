"""FHIR server as a record source."""
