"""FHIR records in and out, de-identified before anything else sees them."""
