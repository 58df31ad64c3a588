"""Short names of code systems: what people write in documents, and the address that FHIR knows each by."""

from __future__ import annotations

from collections.abc import Mapping

LOINC = "http://loinc.org"
SNOMED = "http://snomed.info/sct"
UCUM = "http://unitsofmeasure.org"
ICD10 = "http://hl7.org/fhir/sid/icd-10"
ICD10_CM = "http://hl7.org/fhir/sid/icd-10-cm"
ICD10_GM = "http://fhir.de/CodeSystem/bfarm/icd-10-gm"
ICD9_CM = "http://hl7.org/fhir/sid/icd-9-cm"
ATC = "http://www.whocc.no/atc"
RXNORM = "http://www.nlm.nih.gov/research/umls/rxnorm"
OPS = "http://fhir.de/CodeSystem/bfarm/ops"
CVX = "http://hl7.org/fhir/sid/cvx"
NDC = "http://hl7.org/fhir/sid/ndc"
CPT = "http://www.ama-assn.org/go/cpt"
HCPCS = "http://terminology.hl7.org/CodeSystem/HCPCS"

SHORT: Mapping[str, str] = {
    "loinc": LOINC,
    "snomed": SNOMED,
    "icd10": ICD10,
    "icd10cm": ICD10_CM,
    "icd10gm": ICD10_GM,
    "icd9cm": ICD9_CM,
    "atc": ATC,
    "rxnorm": RXNORM,
    "ops": OPS,
    "cvx": CVX,
    "ndc": NDC,
    "cpt": CPT,
    "hcpcs": HCPCS,
}
"""Every short name, and the one code system that it stands for."""
