"""Script that writes the tables in src/abaton/fhir from the R4 definitions.

``elements.txt`` has one line per type: ``Type name:type…`` where ``!`` marks a required element, ``*`` a repeating one,
``^`` one of the summary, ``/1`` a required choice and ``/0`` an optional one. ``vocabulary.json`` contains the codes of
required bindings and of HL7's code systems.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

import fhir.resources.R4B as models

HERE = Path(__file__).resolve()
PACKAGE = HERE.parents[2] / "src" / "abaton" / "fhir"
SHARED = HERE.parents[3] / "shared"

# Values missing from the models ("+"), or listed only in the value set.
COMPARATOR = "< <= >= >"
WHEN = (
    "MORN MORN.early MORN.late NOON AFT AFT.early AFT.late EVE EVE.early EVE.late NIGHT PHS HS WAKE "
    "C CM CD CV "
    "AC ACM ACD ACV PC PCM PCD PCV"
)
OBSERVATION = "registered preliminary final amended corrected cancelled entered-in-error unknown"
ENCOUNTER = "planned arrived triaged in-progress onleave finished cancelled entered-in-error unknown"
REQUEST = "draft active suspended cancelled completed entered-in-error unknown"
PUBLICATION = "draft active retired unknown"
VERSION = (
    "0.01 0.05 0.06 0.11 0.0.80 0.0.81 0.0.82 0.4.0 0.5.0 1.0.0 1.0.1 1.0.2 1.1.0 1.4.0 1.6.0 "
    "1.8.0 3.0.0 3.0.1 3.3.0 3.5.0 4.0.0 4.0.1"
)
BY_HAND = {
    "Age.comparator": COMPARATOR,
    "Count.comparator": COMPARATOR,
    "Distance.comparator": COMPARATOR,
    "Duration.comparator": COMPARATOR,
    "Quantity.comparator": COMPARATOR,
    "Timing.repeat.when": WHEN,
    "AuditEvent.action": "C R U D E",
    "AuditEvent.outcome": "0 4 8 12",
    "AuditEvent.agent.network.type": "1 2 3 4 5",
    "CapabilityStatement.fhirVersion": VERSION,
    "ImplementationGuide.fhirVersion": VERSION,
    "ImplementationGuide.definition.resource.fhirVersion": VERSION,
    "StructureDefinition.fhirVersion": VERSION,
    "Composition.confidentiality": "U L M N R V",
    "EffectEvidenceSynthesis.status": PUBLICATION,
    "EffectEvidenceSynthesis.resultsByExposure.exposureState": "exposure exposure-alternative",
    "EvidenceVariable.type": "dichotomous continuous descriptive",
    "RiskEvidenceSynthesis.status": PUBLICATION,
    "OperationOutcome.issue.code": (
        "invalid structure required value invariant security login unknown expired forbidden suppressed "
        "processing not-supported duplicate multiple-matches not-found deleted too-long code-invalid "
        "extension "
        "too-costly business-rule conflict transient lock-error no-store exception timeout "
        "incomplete throttled "
        "informational"
    ),
    "DetectedIssue.status": OBSERVATION,
    "Observation.status": OBSERVATION,
    "RiskAssessment.status": OBSERVATION,
    "DiagnosticReport.status": (
        "registered partial preliminary final amended corrected appended cancelled entered-in-error unknown"
    ),
    "Device.udiCarrier.entryType": "barcode rfid manual card self-reported unknown",
    "DeviceUseStatement.status": "active completed entered-in-error intended stopped on-hold",
    "Encounter.status": ENCOUNTER,
    "Encounter.statusHistory.status": ENCOUNTER,
    "Questionnaire.item.type": (
        "group display question boolean decimal integer date dateTime time string text url choice "
        "open-choice "
        "attachment reference quantity"
    ),
    "StructureMap.group.rule.target.transform": (
        "create copy truncate escape cast append translate reference dateOp uuid pointer evaluate cc "
        "c qty id cp"
    ),
    "SupplyRequest.status": REQUEST,
    "Task.status": (
        "draft requested received accepted rejected ready cancelled in-progress on-hold failed completed "
        "entered-in-error"
    ),
}
# Elements of type code that name an R4 type, a media type or a language rather than a listed value.
TYPES = (
    "DataRequirement.type ParameterDefinition.type ActivityDefinition.kind "
    "CapabilityStatement.rest.resource.type "
    "CompartmentDefinition.resource.code ExampleScenario.instance.resourceType GraphDefinition.start "
    "GraphDefinition.link.target.type ImplementationGuide.global.type MessageDefinition.focus.code "
    "OperationDefinition.resource OperationDefinition.parameter.type Questionnaire.subjectType "
    "SearchParameter.base SearchParameter.target TestScript.setup.action.operation.resource "
    "TestScript.setup.action.assert.resource"
)
MEDIA = (
    "Attachment.contentType Binary.contentType Signature.targetFormat Signature.sigFormat "
    "CapabilityStatement.patchFormat Endpoint.payloadMimeType Subscription.channel.payload "
    "TestScript.setup.action.operation.accept TestScript.setup.action.operation.contentType "
    "TestScript.setup.action.assert.contentType"
)
UNITS = "Age.code Count.code Distance.code Duration.code Quantity.code"
HL7 = "http://terminology.hl7.org/CodeSystem/"
# HL7 code systems that are frequent in clinical records.
SYSTEMS = {
    HL7 + "condition-clinical": "active recurrence relapse inactive remission resolved",
    HL7 + "condition-ver-status": "unconfirmed provisional differential confirmed refuted entered-in-error",
    HL7 + "condition-category": "problem-list-item encounter-diagnosis",
    HL7 + "allergyintolerance-clinical": "active inactive resolved",
    HL7 + "allergyintolerance-verification": "unconfirmed presumed confirmed refuted entered-in-error",
    HL7 + "observation-category": (
        "social-history vital-signs imaging laboratory procedure survey exam therapy activity"
    ),
    HL7 + "data-absent-reason": (
        "unknown asked-unknown temp-unknown not-asked asked-declined masked not-applicable "
        "unsupported as-text "
        "error not-a-number negative-infinity positive-infinity not-performed not-permitted"
    ),
    HL7 + "v3-ActCode": "AMB EMER FLD HH IMP ACUTE NONAC OBSENC PRENC SS VR",
    HL7 + "v3-ObservationInterpretation": (
        "A AA HH LL H L N I R S SDD NS B D U W POS NEG IND DET ND E EX HX LX HU LU WR RR NR IE MS VS "
        "< > CAR QCF "
        "TOX OBX UNE NCL SYN-R SYN-S"
    ),
    HL7 + "v3-MaritalStatus": "A C D I L M P S T U W",
    HL7 + "v3-NullFlavor": ("NI INV DER OTH NINF PINF UNC MSK NA UNK ASKU NAV NASK NAVU QS TRC NP"),
    HL7 + "v3-Confidentiality": "L M N R U V",
    HL7 + "v3-ParticipationType": (
        "ADM ATND CALLBCK CON DIS ESC REF AUT INF ENT WIT PRF SPRF PPRF PART LA VRF AUTHEN SBJ CST RESP"
    ),
    HL7 + "v3-ActPriority": "A CR CS CSP CSR EL EM P PRN R RR S T UD UR",
    HL7 + "v2-0074": (
        "AU BG BLB CG CH CP CT CTH CUS EC EN GE HM ICU IMG IMM LAB MB MCB MYC NMR NMS NRS OSL OT OTH "
        "OUS PAR PAT "
        "PF PHR PHY PT RAD RC RT RUS RX SP SR TX URN VR VUS XRC"
    ),
    HL7 + "medicationrequest-category": "inpatient outpatient community discharge",
    HL7 + "medication-statement-category": "inpatient outpatient community patientspecified",
    HL7 + "medication-admin-category": "inpatient outpatient community",
    HL7 + "dose-rate-type": "calculated ordered",
    HL7 + "organization-type": "prov dept team govt ins pay edu reli crs cg bus other",
    HL7 + "diagnosis-role": "AD DD CC CM pre-op post-op billing",
    HL7 + "goal-achievement": (
        "in-progress improving worsening no-change achieved sustaining not-achieved no-progress "
        "not-attainable"
    ),
    HL7 + "goal-priority": "high-priority medium-priority low-priority",
    HL7 + "goal-category": "dietary safety behavioral nursing physiotherapy",
    HL7 + "discharge-disposition": ("home alt-home other-hcf hosp long aadvice exp psy rehab snf oth"),
    HL7 + "admit-source": "hosp-trans emd outp born gp mp nursing psych rehab other",
    HL7 + "location-physical-type": "si bu wi wa lvl co ro bd ve ho ca rd area jdn",
    HL7 + "consentscope": "adr research patient-privacy treatment",
    HL7 + "consentcategorycodes": "acd dnr emrgonly hcd npp polst research rsdid rsreid",
    HL7 + "reaction-event-certainty": "unlikely possible likely confirmed unknown",
    HL7 + "substance-category": "allergen biological body chemical food drug material",
    HL7 + "v3-RouteOfAdministration": (
        "PO SL SC IM IV IVP IVPB TOP INH NASINHL GT NGT PR VAGINSI EYE IO IT ID TRNSDERM BUC EPIDUR INTRA"
    ),
    HL7 + "v3-ObservationValue": "ANONYED PSEUDED MASKED REDACTED SUBSETTED ABSTRED AGGRED",
    HL7 + "v3-ActReason": "TREAT HRESCH PATRQT CAREMGT HOPERAT HPAYMT ETREAT FMLV PUBHLTH",
    HL7 + "claimcareteamrole": "primary assist supervisor other",
    HL7 + "adjudication": "submitted copay eligible deductible unallocdeduct eligpercent tax benefit",
    HL7 + "claiminformationcategory": (
        "info discharge onset related exception material attachment missingtooth prosthesis other "
        "hospitalized "
        "employmentimpacted externalcause patientreasonforvisit"
    ),
    HL7 + "ex-diagnosistype": (
        "admitting clinical differential discharge laboratory nursing prenatal principal radiology remote "
        "retrospective self"
    ),
    HL7 + "ex-serviceplace": (
        "01 03 04 05 06 07 08 09 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 31 32 33 34 41 42 "
        "49 50 51 52 53 "
        "54 55 56 57 60 61 62 65 71 72 81 99"
    ),
    HL7 + "provenance-participant-type": (
        "enterer performer author verifier legal attester informant custodian assembler composer"
    ),
    HL7 + "list-empty-reason": "nilknown notasked withheld unavailable notstarted closed",
    HL7 + "list-order": "user system event-date entry-date priority alphabetic category patient",
    HL7 + "referencerange-meaning": (
        "type normal recommended treatment therapeutic pre post endocrine pre-puberty follicular "
        "midcycle luteal "
        "postmenopausal"
    ),
    HL7 + "immunization-funding-source": "private public",
    HL7 + "immunization-program-eligibility": "ineligible uninsured",
    HL7 + "adverse-event-severity": "mild moderate severe",
    HL7 + "adverse-event-seriousness": "non-serious serious SeriousResultsInDeath SeriousIsLifeThreatening",
    "http://hl7.org/fhir/administrative-gender": "male female other unknown",
    "http://hl7.org/fhir/us/core/CodeSystem/us-core-documentreference-category": "clinical-note",
    "http://hl7.org/fhir/us/core/CodeSystem/condition-category": "health-concern",
    "http://hl7.org/fhir/us/core/CodeSystem/careplan-category": "assess-plan",
    "http://ihe.net/fhir/ihe.formatcode.fhir/CodeSystem/formatcode": (
        "urn:ihe:iti:xds:2017:mimeTypeSufficient"
    ),
    "http://ihe.net/fhir/ValueSet/IHE.FormatCode.codesystem": "urn:ihe:iti:xds:2017:mimeTypeSufficient",
    # Claims of Blue Button (United States), frequent in synthetic and real exports
    "https://bluebutton.cms.gov/resources/codesystem/adjudication": " ".join(
        f"https://bluebutton.cms.gov/resources/variables/line_{name}"
        for name in [
            "coinsrnc_amt",
            "prvdr_pmt_amt",
            "sbmtd_chrg_amt",
            "alowd_chrg_amt",
            "bene_ptb_ddctbl_amt",
            "prcsg_ind_cd",
        ]
    ),
    "https://bluebutton.cms.gov/resources/variables/line_cms_type_srvc_cd": " ".join(
        "0123456789ABCDEFGHIJKLMNPQRSTUVWXYZ"
    ),
    HL7 + "service-category": " ".join(str(n) for n in range(1, 36)),
    HL7 + "claim-type": "institutional oral pharmacy professional vision",
    HL7 + "processpriority": "stat normal deferred",
    HL7 + "immunization-origin": "provider record recall school jurisdiction",
    HL7 + "risk-probability": "negligible low moderate high certain",
    HL7 + "media-type": "image video audio",
    HL7 + "composition-altcode-kind": "alternate deprecated case-insensitive case-sensitive",
}


def _classes() -> dict[str, Any]:
    collected: dict[str, Any] = {}
    for module in pkgutil.iter_modules(models.__path__):
        loaded = importlib.import_module(f"fhir.resources.R4B.{module.name}")
        for _, element_class in inspect.getmembers(loaded, inspect.isclass):
            if element_class.__module__ == loaded.__name__ and hasattr(element_class, "model_fields"):
                collected[element_class.__name__] = element_class
    return collected


def _field(classes: dict[str, Any], type_name: str, element: str) -> dict[str, Any]:
    element_class = classes.get("".join(part[0].upper() + part[1:] for part in type_name.split(".")))
    if element_class is None:
        return {}
    for field in element_class.model_fields.values():
        if field.alias == element:
            return dict(field.json_schema_extra or {})
    return {}


def elements(shared: Path) -> str:
    """Return the element table as text."""
    source = json.loads((shared / "data" / "fhir" / "r4-elements.json").read_text())
    classes = _classes()
    lines = []
    for type_name, fields in source.items():
        tokens = [type_name]
        for name, (kind, least, most, *choice) in fields.items():
            mark = ("!" if least else "") + ("*" if most != "1" else "")
            mark += "^" if _field(classes, type_name, name).get("summary_element_property") else ""
            mark += f"/{choice[0].removeprefix('choice')}" if choice else ""
            tokens.append(f"{name}:{'' if kind == f'{type_name}.{name}' else kind}{mark}")
        lines.append(" ".join(tokens))
    return "\n".join(lines) + "\n"


def _codings(node: Any, collected: dict[str, set[str]]) -> None:
    if isinstance(node, dict):
        system, code = node.get("system"), node.get("code")
        if isinstance(system, str) and isinstance(code, str) and _published(system, code):
            collected.setdefault(system, set()).add(code)
        for child in node.values():
            _codings(child, collected)
    elif isinstance(node, list):
        for child in node:
            _codings(child, collected)


def _published(system: str, code: str) -> bool:
    ours = (HL7, "http://hl7.org/fhir/", "http://interopehrate.eu/fhir/CodeSystem/")
    return system.startswith(ours) and "/sid/" not in system and not system.endswith("/") and code.isascii()


def _profiles(node: Any, collected: set[str]) -> None:
    if isinstance(node, dict):
        meta = node.get("meta")
        if isinstance(meta, dict):
            collected.update(p for p in meta.get("profile", ()) if isinstance(p, str))
        for child in node.values():
            _profiles(child, collected)
    elif isinstance(node, list):
        for child in node:
            _profiles(child, collected)


def vocabulary(shared: Path) -> str:
    """Return the codes of required bindings and of HL7's code systems as JSON."""
    data = shared / "data" / "fhir"
    classes, bound = _classes(), {}
    for type_name, fields in json.loads((data / "r4-elements.json").read_text()).items():
        for name, (kind, *_) in fields.items():
            values = _field(classes, type_name, name).get("enum_values")
            path = f"{type_name}.{name}"
            if kind == "code" and path in BY_HAND:
                bound[path] = BY_HAND[path]
            elif kind == "code" and values:
                bound[path] = " ".join(values)
    systems: dict[str, set[str]] = {name: set(codes.split()) for name, codes in SYSTEMS.items()}
    profiles: set[str] = set()
    for folder in ("hl7-r4-examples", "iehr-examples"):
        for path in sorted((data / folder).glob("*.json")):
            document = json.loads(path.read_text())
            _codings(document, systems)
            _profiles(document, profiles)
    bindings: dict[str, list[str]] = {}
    for path, values in bound.items():
        bindings.setdefault(values, []).append(path)
    element_class = {
        "bindings": {values: " ".join(paths) for values, paths in sorted(bindings.items())},
        "names": {"type": TYPES, "media": MEDIA, "unit": UNITS},
        "systems": {name: " ".join(sorted(codes)) for name, codes in sorted(systems.items())},
        "profiles": sorted(
            p for p in profiles if p.startswith(("http://hl7.org/fhir/", "http://interopehrate.eu/"))
        ),
    }
    return json.dumps(element_class, indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    (PACKAGE / "elements.txt").write_text(elements(SHARED))
    (PACKAGE / "vocabulary.json").write_text(vocabulary(SHARED))
