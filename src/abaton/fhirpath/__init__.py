"""FHIRPath subset of SQL on FHIR."""
