"""Tables, columns and fixed concepts of the OMOP common data model, with their FHIR equivalents.

The equivalents follow HL7's FHIR to OMOP implementation guide in the reverse direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from abaton.fhir import terminology


@dataclass(frozen=True, slots=True)
class CdmTable:
    """One table of events.

    Attributes:
        name: Name of the table.
        key: Column of the primary key.
        types: FHIR resource types of its rows.
        concept: Column of the standard concept.
        source: Column of the source concept.
        date: Column of the date.
        fhir_path: Element of the FHIR resource that holds the concept, by which studies filter.
        date_paths: Elements of the FHIR resource that hold the date.
        required: Further columns of CDM 5.3 and 5.4.
        extra: Columns that may be missing.
    """

    name: str
    key: str
    types: tuple[str, ...]
    concept: str
    source: str
    date: str
    fhir_path: str
    date_paths: tuple[str, ...]
    required: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that must exist in a table of the OMOP CDM schema."""
        return ("person_id", self.key, self.concept, self.date, *self.required)

    @property
    def optional(self) -> tuple[str, ...]:
        """Columns of a table in the OMOP CDM schema that are read if they exist."""
        return (self.source, *self.extra)


TABLES: tuple[CdmTable, ...] = (
    CdmTable(
        "visit_occurrence", "visit_occurrence_id", ("Encounter",), "visit_concept_id", "visit_source_concept_id",
        "visit_start_date", "type", (), ("visit_end_date",), ("visit_start_datetime", "visit_end_datetime"),
    ),
    CdmTable(
        "condition_occurrence", "condition_occurrence_id", ("Condition",), "condition_concept_id",
        "condition_source_concept_id", "condition_start_date", "code", ("onset",), (),
        ("condition_start_datetime", "condition_end_date", "condition_end_datetime"),
    ),
    CdmTable(
        "measurement", "measurement_id", ("Observation",), "measurement_concept_id", "measurement_source_concept_id",
        "measurement_date", "code", ("effective",),
        ("operator_concept_id", "value_as_number", "value_as_concept_id", "unit_concept_id"), ("measurement_datetime",),
    ),
    CdmTable(
        "observation", "observation_id", ("Observation",), "observation_concept_id", "observation_source_concept_id",
        "observation_date", "code", ("effective",),
        ("value_as_number", "value_as_string", "value_as_concept_id", "unit_concept_id"), ("observation_datetime",),
    ),
    CdmTable(
        "drug_exposure", "drug_exposure_id",
        ("MedicationRequest", "MedicationStatement", "MedicationAdministration", "MedicationDispense"),
        "drug_concept_id", "drug_source_concept_id", "drug_exposure_start_date", "medication", ("authoredOn",),
        ("drug_type_concept_id",),
        ("drug_exposure_start_datetime", "drug_exposure_end_date", "drug_exposure_end_datetime"),
    ),
    CdmTable(
        "procedure_occurrence", "procedure_occurrence_id", ("Procedure",), "procedure_concept_id",
        "procedure_source_concept_id", "procedure_date", "code", ("performed",), (),
        ("procedure_datetime", "procedure_end_date", "procedure_end_datetime"),
    ),
    CdmTable(
        "device_exposure", "device_exposure_id", ("Device", "DeviceUseStatement"), "device_concept_id",
        "device_source_concept_id", "device_exposure_start_date", "type", (), (),
        ("device_exposure_start_datetime", "device_exposure_end_date", "device_exposure_end_datetime"),
    ),
)  # fmt: skip

TABLE_NAMES = frozenset(
    {"person", "death", "concept", "concept_relationship", *(table.name for table in TABLES)}
)
"""Tables that are read; other files of a folder are not opened."""
RESOURCE_TYPES = frozenset(name for table in TABLES for name in table.types)
"""FHIR resource types of all event tables."""
PERSON_COLUMNS = ("person_id", "gender_concept_id", "year_of_birth")
PERSON_OPTIONAL = ("month_of_birth", "day_of_birth", "birth_datetime")
CONCEPT_COLUMNS = ("concept_id", "vocabulary_id", "concept_code")
DATE_COLUMNS = frozenset({"visit_end_date", "condition_end_date", "drug_exposure_end_date", "procedure_end_date",
                   "device_exposure_end_date", "death_date", *(table.date for table in TABLES)})  # fmt: skip


def sql_type_of(column: str) -> str:
    """Return the SQL type of an OMOP CDM column by its name: BIGINT, DATE, TIMESTAMP, DOUBLE or VARCHAR.

    >>> sql_type_of("person_id"), sql_type_of("measurement_datetime")
    ('BIGINT', 'TIMESTAMP')
    >>> sql_type_of("value_as_number"), sql_type_of("concept_code")
    ('DOUBLE', 'VARCHAR')
    """
    if column in ("vocabulary_id", "domain_id", "concept_class_id", "relationship_id"):
        return "VARCHAR"
    if column in DATE_COLUMNS:
        return "DATE"
    if column.endswith("_datetime"):
        return "TIMESTAMP"
    if column.endswith(("_id", "_id_1", "_id_2")) or column.endswith("_of_birth"):
        return "BIGINT"
    return "DOUBLE" if column == "value_as_number" else "VARCHAR"


SYSTEMS: Mapping[str, str] = {
    "SNOMED": terminology.SNOMED,
    "LOINC": terminology.LOINC,
    "RxNorm": terminology.RXNORM,
    "UCUM": terminology.UCUM,
    "ICD10": terminology.ICD10,
    "ICD10CM": terminology.ICD10_CM,
    "ICD10GM": terminology.ICD10_GM,
    "ICD9CM": terminology.ICD9_CM,
    "ATC": terminology.ATC,
    "CVX": terminology.CVX,
    "NDC": terminology.NDC,
    "CPT4": terminology.CPT,
    "HCPCS": terminology.HCPCS,
    "OPS": terminology.OPS,
}
"""Code systems in FHIR by OMOP vocabulary; concepts of other vocabularies are counted as unmapped."""

SEX_BY_CONCEPT: Mapping[int, str] = {
    8507: "male",
    8532: "female",
    8521: "other",
    8551: "unknown",
    8570: "other",
}
ENCOUNTER_CLASSES: Mapping[int, str] = {
    9201: "IMP",  # inpatient visit
    8717: "IMP",  # inpatient hospital
    262: "IMP",  # emergency room and inpatient visit
    32037: "IMP",  # intensive care
    9202: "AMB",  # outpatient visit
    581477: "AMB",  # office visit
    9203: "EMER",  # emergency room visit
    8870: "EMER",  # emergency room, hospital
    581476: "HH",  # home visit
    5083: "VR",  # telehealth
    581385: "OBSENC",  # observation room
}
"""Encounter class (HL7 v3 ActCode) by visit concept."""

COMPARATORS: Mapping[int, str] = {4171756: "<", 4171754: "<=", 4171755: ">=", 4172704: ">"}
"""Comparators by operator concept; 4172703, the equals sign, is omitted."""

MEDICATION_TYPES: Mapping[str, frozenset[int]] = {
    "MedicationRequest": frozenset({32838, 38000177, 32839}),  # EHR prescription, prescription written, order
    "MedicationAdministration": frozenset(
        {32818, 38000179, 38000180}
    ),  # EHR administration record, inpatient
    "MedicationDispense": frozenset(
        {32825, 38000175, 38000176, 32869}
    ),  # EHR, pharmacy and mail order dispensing
}
"""Drug type concepts by resource type; all others become a MedicationStatement."""

MIN_LOCAL_CONCEPT_ID = 2_000_000_000
"""Concept ids from this value on are local to a site."""
