"""The rule tables that ship with Abaton: its own, and one that gives what the paper prints.

Read a table from top to bottom: the first line that finds an element decides. Types without a line are
walked into; plain values without a line are dropped and counted.
"""

from __future__ import annotations

from abaton.deid.settings import Allowed, Dates, Deidentification, Preset, Rule
from abaton.deid.rules import read_table

_PERSONS = """
# People: what identifies them directly goes, a valid stand-in stays where profiles demand one.
Patient.name                                substitute value=[{"family":"Anonymous"}]
Practitioner.name                           substitute value=[{"family":"Anonymous"}]
Patient.birthDate                           generalise to=year cap=89
Patient.photo                               redact
Patient.contact                             redact
Patient.communication                       redact
Patient.generalPractitioner                 redact
Patient.managingOrganization                redact
Patient.link                                redact
Patient.maritalStatus                       redact
Patient.multipleBirth                       redact
Practitioner.birthDate                      redact
Practitioner.photo                          redact
Practitioner.qualification                  redact
Practitioner.communication                  redact
FamilyMemberHistory.bornDate                generalise to=year cap=89
FamilyMemberHistory.bornPeriod.start        generalise to=year cap=89
FamilyMemberHistory.bornPeriod.end          generalise to=year cap=89
RelatedPerson.birthDate                     redact
RelatedPerson.photo                         redact
RelatedPerson.communication                 redact
Person.birthDate                            redact
Person.photo                                redact
Person.link                                 redact
nodesByType('HumanName')                    redact
nodesByType('ContactPoint')                 redact
nodesByType('ContactDetail')                redact
nodesByType('Contributor')                  redact
"""
_PLACES = """
# Places and stays
nodesByType('Address')                      redact
Location.position                           redact
Encounter.participant                       redact
Encounter.location                          redact
Encounter.statusHistory                     redact
Encounter.classHistory                      redact
Encounter.hospitalization                   redact
AuditEvent.agent.network                    redact
Device.udiCarrier                           redact
"""
_TEXT = """
# Free text, files, signatures
nodesByType('Narrative')                    redact
nodesByType('Annotation')                   redact
nodesByType('Signature')                    redact
nodesByType('RelatedArtifact')              redact
DiagnosticReport.presentedForm              redact
nodesByType('Attachment').contentType       terminology
nodesByType('Attachment').language          terminology
nodesByType('Attachment').size              redact
nodesByType('Attachment')                   mask
nodesByType('Identifier')                   redact
"""
_STRUCTURE = """
# Names inside a document that link its parts
Questionnaire.item.linkId                   pseudonymise
Questionnaire.item.enableWhen.question      pseudonymise
QuestionnaireResponse.item.linkId           pseudonymise
ImagingStudy.series.uid                     pseudonymise
ImagingStudy.series.instance.uid            pseudonymise
nodesByType('Reference')                    remap
"""
_VALUES = """
# What research needs: codes, numbers no longer than a count, coarse time
nodesByType('Coding')                       terminology
nodesByType('code')                         terminology
nodesByType('Quantity')                     measure cap=89 digits=6
nodesByType('Age')                          measure cap=89 digits=6
nodesByType('Count')                        measure cap=89 digits=6
nodesByType('Distance')                     measure cap=89 digits=6
nodesByType('Duration')                     measure cap=89 digits=6
nodesByType('boolean')                      keep
nodesByType('integer')                      keep digits=6
nodesByType('positiveInt')                  keep digits=6
nodesByType('unsignedInt')                  keep digits=6
nodesByType('decimal')                      keep digits=6
"""
_TIME = {
    Dates.YEAR: """
nodesByType('date')                         generalise to=year cap=89
nodesByType('dateTime')                     generalise to=year cap=89
nodesByType('instant')                      generalise to=year cap=89
""",
    Dates.SHIFT: """
nodesByType('date')                         shift
nodesByType('dateTime')                     shift
nodesByType('instant')                      shift
""",
    Dates.REMOVE: """
nodesByType('date')                         redact
nodesByType('dateTime')                     redact
nodesByType('instant')                      redact
""",
}
# The paper keeps the words beside codes and units; everything else of the table stays in force.
_PAPER = """
nodesByType('CodeableConcept').text         keep
nodesByType('Coding').system                keep
nodesByType('Coding').code                  keep
nodesByType('Coding').display               keep
nodesByType('Quantity').unit                keep
nodesByType('Quantity').code                keep
nodesByType('Quantity').system              keep
"""
_COUNTRY = "Patient.address.country  terminology\n"
_US = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-"


def _us_core() -> str:
    """Race and ethnicity with their codes, sex at birth and gender identity; never the words beside them."""
    rows = []
    for name in ("race", "ethnicity"):
        at = f"Patient.extension.where(url='{_US}{name}')"
        rows += [f"{at}.url keep", f"{at}.extension.where(url='ombCategory').url keep"]
        rows += [f"{at}.extension.where(url='ombCategory').valueCoding terminology"]
        rows += [f"{at}.extension.where(url='detailed').url keep"]
        rows += [f"{at}.extension.where(url='detailed').valueCoding terminology"]
    for name, method in (
        ("birthsex", "valueCode keep among=F|M|OTH|UNK|ASKU"),
        ("sex", "valueCode keep among=248152002|248153007|asked-declined|unknown"),
        ("genderIdentity", "valueCodeableConcept.coding terminology"),
    ):
        at = f"Patient.extension.where(url='{_US}{name}')"
        rows += [f"{at}.url keep", f"{at}.{method}"]
    return "\n".join(rows) + "\n"


_ALLOWED = {
    Allowed.US_CORE: _us_core(),
    Allowed.ZIP3: "Patient.address.postalCode  generalise to=zip3\nPatient.address.state  keep among="
    + "|".join(
        [
            "AL",
            "AK",
            "AZ",
            "AR",
            "CA",
            "CO",
            "CT",
            "DE",
            "DC",
            "FL",
            "GA",
            "HI",
            "ID",
            "IL",
            "IN",
            "IA",
            "KS",
            "KY",
            "LA",
            "ME",
            "MD",
            "MA",
            "MI",
            "MN",
            "MS",
            "MO",
            "MT",
            "NE",
            "NV",
            "NH",
            "NJ",
            "NM",
            "NY",
            "NC",
            "ND",
            "OH",
            "OK",
            "OR",
            "PA",
            "RI",
            "SC",
            "SD",
            "TN",
            "TX",
            "UT",
            "VT",
            "VA",
            "WA",
            "WV",
            "WI",
            "WY",
            "AS",
            "GU",
            "MP",
            "PR",
            "VI",
        ]
    )
    + "\n",
}


def rules(wish: Deidentification) -> tuple[Rule, ...]:
    """The whole table for what a study wishes: its own rules first, then the preset's.

    >>> rules(Deidentification())[0].path
    'Patient.name'
    """
    text = _COUNTRY if wish.keep_country else ""
    text += "".join(_ALLOWED[name] for name in wish.allow)
    if wish.preset is Preset.PAPER:
        text += _PAPER
    text += _PERSONS + _PLACES + _TEXT + _STRUCTURE + _VALUES + _TIME[wish.dates]
    return wish.rules + read_table(text)
