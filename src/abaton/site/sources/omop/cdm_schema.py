"""The tables of the common data model that are read: their columns, and the FHIR types that they hold.

OMOP's fixed concepts and vocabularies, and what FHIR calls them (HL7's FHIR to OMOP guide, read backwards).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from abaton.fhir import terminology


@dataclass(frozen=True, slots=True)
class CdmTable:
    """One table of events.

    Attributes:
        name: What it is called; its key is ``<key>_id``.
        types: The FHIR types that its rows become.
        concept: The column of the standard concept.
        source: The column of the concept that the source had.
        date: The column of the day.
        path: The element of the FHIR resource that the concept becomes, which studies filter by.
        dated: The elements that the day becomes.
        needed: Other columns that 5.3 and 5.4 both have.
        more: Columns that may be missing.
    """

    name: str
    key: str
    types: tuple[str, ...]
    concept: str
    source: str
    date: str
    path: str
    dated: tuple[str, ...]
    needed: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a table must have."""
        return ("person_id", self.key, self.concept, self.date, *self.needed)

    @property
    def optional(self) -> tuple[str, ...]:
        """All columns that are read where they are."""
        return (self.source, *self.more)


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

KNOWN = frozenset(name for table in TABLES for name in table.types)
"""Every FHIR type that is made of a table of events."""
PERSON = ("person_id", "gender_concept_id", "year_of_birth")
PERSON_MORE = ("month_of_birth", "day_of_birth", "birth_datetime")
CONCEPT = ("concept_id", "vocabulary_id", "concept_code")
DATES = frozenset({"visit_end_date", "condition_end_date", "drug_exposure_end_date", "procedure_end_date",
                   "device_exposure_end_date", "death_date", *(table.date for table in TABLES)})  # fmt: skip


def kind_of(column: str) -> str:
    """The type of a column, by its name: INTEGER, DATE, TIMESTAMP, DOUBLE or VARCHAR.

    >>> kind_of("person_id"), kind_of("measurement_datetime"), kind_of("value_as_number"), kind_of("concept_code")
    ('BIGINT', 'TIMESTAMP', 'DOUBLE', 'VARCHAR')
    """
    if column in ("vocabulary_id", "domain_id", "concept_class_id", "relationship_id"):
        return "VARCHAR"
    if column in DATES:
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
"""The vocabularies whose codes have a system in FHIR; concepts of all others are local, and counted as unmapped."""

SEXES: Mapping[int, str] = {8507: "male", 8532: "female", 8521: "other", 8551: "unknown", 8570: "other"}
SETTINGS: Mapping[int, str] = {
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
"""Where somebody was seen, in HL7's v3 ActCode."""

COMPARATORS: Mapping[int, str] = {4171756: "<", 4171754: "<=", 4171755: ">=", 4172704: ">"}
"""Signs before a number; 4172703 is the equals sign, which nobody writes."""

MEDICINES: Mapping[str, frozenset[int]] = {
    "MedicationRequest": frozenset({32838, 38000177, 32839}),  # EHR prescription, prescription written, order
    "MedicationAdministration": frozenset(
        {32818, 38000179, 38000180}
    ),  # EHR administration record, inpatient
    "MedicationDispense": frozenset(
        {32825, 38000175, 38000176, 32869}
    ),  # EHR, pharmacy and mail order dispensing
}
"""The types of a drug exposure that say how it came about; all others become a MedicationStatement."""

LOCAL = 2_000_000_000
"""Concepts from here on are a site's own."""
