"""The names that InteropEHRate's implementation guide gives to profiles, extensions and code systems."""

from __future__ import annotations

_PROFILE = "http://interopehrate.eu/fhir/StructureDefinition/"
_SYSTEM = "http://interopehrate.eu/fhir/CodeSystem/"
_TERMS = "http://terminology.hl7.org/CodeSystem/"

STUDY = _PROFILE + "ResearchStudy-IEHR"
COHORT = _PROFILE + "Group-Cohort-IEHR"
CENTRE = _PROFILE + "Location-ReferenceResearchCenter-IEHR"

ENROLMENT = _PROFILE + "EnrollmentPeriodExtension-IEHR"
ANONYMISATION = _PROFILE + "AnonymizationExtension-IEHR"
DATA_SET = _PROFILE + "DataSetDefinitionExtension-IEHR"
QUESTIONNAIRE = _PROFILE + "QuestionnaireExtension-IEHR"
FREQUENCY = _PROFILE + "FrequencyExtension-IEHR"
FUNCTION = _PROFILE + "FunctionExtension-IEHR"
OPERATOR = _PROFILE + "Operator-Extension-IEHR"

ANONYMISATION_TYPES = _SYSTEM + "AnonymizationType-IEHR"
FUNCTION_CODES = _SYSTEM + "Function-Codes-IEHR"
OPERATOR_CODES = _SYSTEM + "CodingOperator-IEHR"

PURPOSES = _TERMS + "research-study-prim-purp-type"
GENDERS = "http://hl7.org/fhir/administrative-gender"
UCUM = "http://unitsofmeasure.org"

# What the guide has no code for travels in extensions of our own.
DETAILS = "urn:abaton:study:details"
NOTE = "urn:abaton:study:note"
