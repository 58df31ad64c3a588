"""OMOP CDM 5.3 and 5.4 as a source of records, by HL7's FHIR to OMOP guide read backwards."""
