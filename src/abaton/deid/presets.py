"""Built-in rule tables: the default, and one with the output of the paper.

The first matching rule of a table applies. Elements of complex types without a rule are
processed element by element; primitive values without a rule are dropped and counted.
"""

from __future__ import annotations

from abaton.deid.rules import read_table
from abaton.deid.settings import (
    DateHandling,
    DeidentificationRule,
    DeidentificationSettings,
    RuleOptIn,
    RulePreset,
)

_PERSONS = """
# Persons: direct identifiers are removed; a valid replacement remains where profiles require one.
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
_PLACE_RULES = """
# Locations and encounters
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
# Identifiers that link parts of a document
Questionnaire.item.linkId                   pseudonymise
Questionnaire.item.enableWhen.question      pseudonymise
QuestionnaireResponse.item.linkId           pseudonymise
ImagingStudy.series.uid                     pseudonymise
ImagingStudy.series.instance.uid            pseudonymise
nodesByType('Reference')                    remap
"""
_VALUES = """
# Values for research: codes, short numbers, coarse dates
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
    DateHandling.YEAR: """
nodesByType('date')                         generalise to=year cap=89
nodesByType('dateTime')                     generalise to=year cap=89
nodesByType('instant')                      generalise to=year cap=89
""",
    DateHandling.SHIFT: """
nodesByType('date')                         shift
nodesByType('dateTime')                     shift
nodesByType('instant')                      shift
""",
    DateHandling.REMOVE: """
nodesByType('date')                         redact
nodesByType('dateTime')                     redact
nodesByType('instant')                      redact
""",
}
# The paper keeps displays and unit texts; all other rules of the table apply.
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
    """Return the preset rules of the opt-in ``us-core``: codes of race, ethnicity, sex at birth and gender."""
    rows = []
    for name in ("race", "ethnicity"):
        path = f"Patient.extension.where(url='{_US}{name}')"
        rows += [f"{path}.url keep", f"{path}.extension.where(url='ombCategory').url keep"]
        rows += [f"{path}.extension.where(url='ombCategory').valueCoding terminology"]
        rows += [f"{path}.extension.where(url='detailed').url keep"]
        rows += [f"{path}.extension.where(url='detailed').valueCoding terminology"]
    for name, method in (
        ("birthsex", "valueCode keep among=F|M|OTH|UNK|ASKU"),
        ("sex", "valueCode keep among=248152002|248153007|asked-declined|unknown"),
        ("genderIdentity", "valueCodeableConcept.coding terminology"),
    ):
        path = f"Patient.extension.where(url='{_US}{name}')"
        rows += [f"{path}.url keep", f"{path}.{method}"]
    return "\n".join(rows) + "\n"


_ALLOWED = {
    RuleOptIn.US_CORE: _us_core(),
    RuleOptIn.ZIP3: "Patient.address.postalCode  generalise to=zip3\nPatient.address.state  keep among="
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


def preset_rules(settings: DeidentificationSettings) -> tuple[DeidentificationRule, ...]:
    """Return the rule table of a study: its own rules first, then those of its preset.

    >>> preset_rules(DeidentificationSettings())[0].path
    'Patient.name'
    """
    text = _COUNTRY if settings.keep_country else ""
    text += "".join(_ALLOWED[name] for name in settings.opt_ins)
    if settings.preset is RulePreset.PAPER:
        text += _PAPER
    text += _PERSONS + _PLACE_RULES + _TEXT + _STRUCTURE + _VALUES + _TIME[settings.dates]
    return settings.rules + read_table(text)
