"""A first study document, with a comment on every section, for a research centre to change."""

from __future__ import annotations

from datetime import date, timedelta
from string import Template

from abaton.study.consent import WORDING, Statement

_TEMPLATE = Template('''\
# A study document. Every key is explained in docs/study-document.md.
# Check it:        abaton study check $file
# See it:          abaton study show $file
# As FHIR Bundle:  abaton study export $file -o study.json

[study]
id = "$id"                      # no other study may have it
version = "1"                   # a new version is a new hash, and needs new consents
title = "Blood pressure and heart failure"
language = "en"
purpose = "diagnostic"          # treatment, prevention, diagnostic, supportive-care, screening,
                                # health-services-research, basic-science or device-feasibility
question = """
Can blood pressure and age foretell heart failure?"""
legal_basis = "Consent: GDPR Article 6(1)(a) and Article 9(2)(a)"
shares = ["updates"]            # what leaves a site: "records", "updates" (of a model), or both
regions = [{ system = "urn:iso:std:iso:3166", code = "IT", display = "Italy" }]
period = { start = $start, end = $end }
enrolment = { start = $start, end = $closes }
retention = "P5Y"               # after the end of the study: P5Y, P6M, P30D ...

# The research centre: who answers for the study and receives what is sent.
[centre]
name = "University Hospital, Research Unit"
kinds = [{ system = "http://terminology.hl7.org/CodeSystem/v3-RoleCode", code = "CVDX" }]
telecom = [{ system = "phone", value = "+39 000 000000" }]
address = { lines = ["Via Esempio 1"], city = "Pisa", country = "IT" }
endpoint = { url = "https://research.example.org/abaton" }

[[contacts]]
name = "The study office"
telecom = [{ system = "email", value = "study@research.example.org" }]

# Who may take part. Criteria are joined by "and", the codes of one criterion by "or".
# What is not known from the records is not eligible.
[eligibility]
name = "Adults with hypertension"

[[eligibility.criteria]]
what = "age"
low = 18                        # years; low and high are included
high = 89

[[eligibility.criteria]]
what = "condition"
codes = [
  { system = "http://hl7.org/fhir/sid/icd-10-cm", code = "I10", match = "startsWith" },
  { system = "http://snomed.info/sct", code = "38341003", display = "Hypertensive disorder" },
]

[[eligibility.criteria]]
what = "procedure"
exclude = true                  # who has had one may not take part
codes = [{ system = "http://snomed.info/sct", code = "32413006", display = "Transplantation of heart" }]

# What the study needs to know; nothing else leaves the de-identifier.
[[data]]
type = "Patient"
function = "element"            # element, ageFromDate, count, summary or data
elements = ["gender", "birthDate"]

[[data]]
type = "Observation"
function = "element"
elements = ["code", "value", "component", "effective"]
[[data.codes]]
path = "code"
any = [
  { system = "http://loinc.org", code = "85354-9", display = "Blood pressure panel" },
  { system = "http://loinc.org", code = "8480-6", display = "Systolic blood pressure" },
]
[[data.dates]]
path = "effective"
last = "P2Y"                    # or: on = 2026-01-31, or: start = ..., end = ...

[[data]]
type = "Condition"
function = "element"
elements = ["code", "onset"]
[[data.codes]]
path = "code"
any = [
  { system = "http://snomed.info/sct", code = "84114007", display = "Heart failure" },
  { system = "http://hl7.org/fhir/sid/icd-10-cm", code = "I50.9", display = "Heart failure, unspecified" },
]

# How every record is de-identified, where it lives.
[deidentification]
mechanism = "pseudonymise"      # or "anonymise"
identity = "pseudonym"          # or "pseudo-identity": random, kept only in the mapping table
dates = "year"                  # or "shift", "remove"
preset = "default"              # or "paper"

# How well each person must hide in the whole table.
[privacy.anonymity]
k = 5
suppression_limit = 0.05
quasi_identifiers = [
  { column = "age", hierarchy = { bins = [5, 10, 20] } },
  { column = "sex" },
]

# From records to tables: view definitions as HL7 writes them (SQL on FHIR v2). They may read nothing but what [[data]]
# lets through. The column "subject" says whose row it is.
[[views]]
name = "patients"
resource = "Patient"
[[views.select]]
column = [
  { name = "subject", path = "getResourceKey()" },
  { name = "sex", path = "gender" },
  { name = "born", path = "birthDate" },
]

[[views]]
name = "pressures"
resource = "Observation"
where = [{ path = "code.coding.where(system = 'http://loinc.org' and code = '8480-6').exists()" }]
[[views.select]]
column = [
  { name = "subject", path = "subject.getReferenceKey(Patient)" },
  { name = "date", path = "effective.ofType(dateTime)" },
  { name = "value", path = "value.ofType(Quantity).value" },
  { name = "unit", path = "value.ofType(Quantity).code" },
]

[[views]]
name = "diagnoses"
resource = "Condition"
[[views.select]]
column = [{ name = "subject", path = "subject.getReferenceKey(Patient)" }]
[[views.select]]
forEach = "code.coding"
column = [{ name = "system", path = "system" }, { name = "code", path = "code" }]

# From tables to numbers: one row per subject, the same columns at every site.
[features]
subject = "subject"
cohort = "patients"             # whose rows: the subjects of this view

[[features.inputs]]
name = "age"
kind = "age"                    # number, category, age, flag or count
view = "patients"
column = "born"
at = $start                # or leave it out, and add [features.index]

[[features.inputs]]
name = "sex"
kind = "category"
view = "patients"
column = "sex"
categories = [{ name = "female", values = ["female"] }, { name = "male", values = ["male"] }]

[[features.inputs]]
name = "systolic"
kind = "number"
view = "pressures"
column = "value"
unit = "mm[Hg]"                 # other units are converted; what cannot be is missing ...
unit_column = "unit"
wrong_unit = "missing"          # ... or "refuse": then the site is told, and has no table
join = "latest"                 # latest, earliest, mean, min or max
when = "date"
missing = "mean"                # of the federation; or "constant" with fill = ..., or "drop" the subject
indicator = true                # one more column says that it was missing

[features.label]
name = "heart_failure"
kind = "any"                    # any, classes, threshold, value or event (within a window of time)
view = "diagnoses"
[features.label.where]
column = "code"
system_column = "system"
codes = [
  { system = "http://snomed.info/sct", code = "84114007" },
  { system = "http://hl7.org/fhir/sid/icd-10-cm", code = "I50", match = "startsWith" },
]

# How the community model is trained and judged.
[learning]
task = "classes"                # or "value"
network = "logistic"            # or "mlp(16)", "mlp(32, 16)"; "linear" for a value
policy = "AsyncDVW(na)"         # SyncFedAvg, SyncDVW, AsyncFedAvg, FedAsync, AsyncDVW(na) or AsyncDVW(a)
codec = "error_feedback | stc(sparsity=0.1)"
rounds = 100
validation = 0.1                # the share of each site's subjects on which others' models are judged

[learning.training]
epochs = 2
batch_size = 32
learning_rate = 0.05

[learning.evaluation]
metrics = ["auroc", "auprc", "calibration", "sensitivity"]
specificity = 0.9               # at which the sensitivity is told
groups = [{ input = "sex" }, { input = "age", bands = [50, 65] }]

# What a person reads before saying yes. The statements must be there; the words are yours.
[consent]
language = "en"
text = """
You are asked to let your hospital use your blood pressure and diagnoses for this study.
Your records do not leave the hospital. You may withdraw at any time."""

[consent.statements]
$statements
''')


def starter(file: str, today: date, *, identifier: str = "my-study") -> str:
    """The text of a first study document.

    Args:
        file: How the file will be called, for the comments.
        today: The study is planned to start on this day.
        identifier: The study's id.

    Returns:
        TOML text that passes ``abaton study check``.
    """
    told = (Statement.MODELS_STAY, Statement.MODELS_ARE_SEEN)
    return _TEMPLATE.substitute(
        file=file,
        id=identifier,
        start=today.isoformat(),
        closes=(today + timedelta(days=365)).isoformat(),
        end=(today + timedelta(days=3 * 365)).isoformat(),
        statements="\n".join(f'{statement.value} = "{WORDING[statement]}"' for statement in told),
    )
