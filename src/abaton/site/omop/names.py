"""OMOP's fixed concepts and vocabularies, and what FHIR calls them (HL7's FHIR to OMOP guide, read backwards)."""

from __future__ import annotations

from collections.abc import Mapping

from abaton.records.fhir import systems

SYSTEMS: Mapping[str, str] = {
    "SNOMED": systems.SNOMED,
    "LOINC": systems.LOINC,
    "RxNorm": systems.RXNORM,
    "UCUM": systems.UCUM,
    "ICD10": systems.ICD10,
    "ICD10CM": systems.ICD10_CM,
    "ICD10GM": systems.ICD10_GM,
    "ICD9CM": systems.ICD9_CM,
    "ATC": systems.ATC,
    "CVX": systems.CVX,
    "NDC": systems.NDC,
    "CPT4": systems.CPT,
    "HCPCS": systems.HCPCS,
    "OPS": systems.OPS,
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
