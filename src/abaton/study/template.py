"""Shorthand study document from answers to a few questions, as a template for a research centre."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from string import Template
from typing import Any

_TEMPLATE = Template('''\
# Study document in shorthand; docs/study-document.md explains every key.
# Check it, and list what is derived from each line:   abaton study check $file
# Full form, which is hashed and referred to by consents: abaton study expand $file

[study]
id = $id
title = $title
purpose = $purpose          # treatment, prevention, diagnostic, screening, basic-science, ...
question = $question
legal_basis = "Consent: GDPR Article 6(1)(a) and Article 9(2)(a)"
shared_data = ["updates"]       # what leaves a site: "records", "updates" (of a model), or both
regions = [$country]
period = { start = $start, end = $end }
enrolment = { start = $start, end = $closes }
retention = "P5Y"               # after the end of the study: P5Y, P6M, P30D ...

[centre]
name = $centre
email = $email
country = $country
url = "https://research.example.org/abaton"

# Eligibility: all criteria must be met.
[eligibility]
criteria = [
$criteria
]
$index_date
# Model inputs, one line each: codes match exactly, or by prefix ("E11*").
[inputs]
$inputs

# Outcome to predict.
[outcome]
$outcome

# De-identification of every record, at the site.
[deidentification]
mechanism = "pseudonymise"      # or "anonymise"
identity = "pseudonym"          # or "pseudo-identity": random, kept only in the mapping table
dates = $dates
$anonymity
# Training and evaluation of the community model.
[learning]
model = "logistic"              # or "mlp(16)", "mlp(32, 16)"; "linear" for regression
strategy = "AsyncDVW(na)"       # SyncFedAvg, SyncDVW, AsyncFedAvg, FedAsync, AsyncDVW(na) or AsyncDVW(a)
codec = "error_feedback | stc(sparsity=0.1)"
rounds = 100
training = { epochs = 2, batch_size = 32, learning_rate = 0.05 }
evaluation = { metrics = ["auroc", "auprc", "calibration", "sensitivity"], groups = [$groups] }

# Consent text for subjects.
[consent]
text = """
You are asked to let your hospital use $data for this study.
Your records do not leave the hospital. You may withdraw at any time."""
''')
_ANONYMITY = Template("""
# Anonymity required of the feature table.
[privacy.anonymity]
k = 5
suppression_limit = 0.05
quasi_identifiers = [$columns]
""")
_QUASI_IDENTIFIERS = {
    "age": '{ column = "age", hierarchy = { bins = [5, 10, 20] } }',
    "sex": '{ column = "sex" }',
}
_GROUPS = {"age": '{ input = "age", bands = [50, 65] }', "sex": '{ input = "sex" }'}

Shorthand = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TemplateAnswers:
    """Answers from which a study document is written; the defaults are the example.

    Attributes:
        criteria: Eligibility criteria in shorthand.
        inputs: Inputs in shorthand, by name.
        outcome: Name and shorthand of the outcome.
        index_date: Shorthand of the index date, if ages or events are counted from one.
    """

    title: str = "Blood pressure and heart failure"
    question: str = "Do blood pressure and age predict heart failure?"
    purpose: str = "diagnostic"
    country: str = "IT"
    centre: str = "University Hospital, Research Unit"
    email: str = "study@research.example.org"
    criteria: tuple[Shorthand, ...] = (
        {"type": "age", "low": 18, "high": 89},
        {"type": "condition", "snomed": "38341003", "icd10": "I10*", "icd10cm": "I10*"},
    )
    inputs: Mapping[str, Shorthand] = field(
        default_factory=lambda: {
            "age": {},
            "sex": {},
            "systolic": {
                "loinc": "8480-6",
                "unit": "mm[Hg]",
                "aggregation": "latest",
                "missing_indicator": True,
            },
        }
    )
    outcome: tuple[str, Shorthand] = (
        "heart_failure",
        {"snomed": "84114007", "icd10": "I50*", "icd10cm": "I50*"},
    )
    index_date: Shorthand | None = None


def study_template(file: str, today: date, answers: TemplateAnswers, *, identifier: str = "my-study") -> str:
    """Return the template of a study document as TOML text, from the author's answers.

    Args:
        file: The file's name, for the comments.
        today: The planned start of the study.
        answers: The answers.
        identifier: The study's id.

    Returns:
        TOML text that passes ``abaton study check``.
    """
    inputs = {
        name: _with_reference_date(name, shorthand, answers, today)
        for name, shorthand in answers.inputs.items()
    }
    patient_inputs = [name for name in ("age", "sex") if name in inputs and "loinc" not in inputs[name]]
    name, outcome = answers.outcome
    columns = ", ".join(_QUASI_IDENTIFIERS[input_name] for input_name in patient_inputs)
    is_event = "outcome_window" in outcome
    return _TEMPLATE.substitute(
        {
            key: _quoted(getattr(answers, key))
            for key in ("title", "question", "purpose", "country", "centre", "email")
        },
        file=file,
        id=_quoted(identifier),
        start=today.isoformat(),
        closes=(today + timedelta(days=365)).isoformat(),
        end=(today + timedelta(days=3 * 365)).isoformat(),
        criteria="\n".join(f"  {inline_table(criterion)}," for criterion in answers.criteria),
        index_date=f"\n# Date from which ages and events are counted.\n[index_date]\n{_pairs(answers.index_date)}\n"
        if answers.index_date
        else "",
        inputs="\n".join(f"{input_name} = {inline_table(table)}" for input_name, table in inputs.items()),
        outcome=f"{name} = {inline_table(outcome)}",
        dates='"shift"                 # events are counted in days; else "year" or "remove"'
        if is_event or answers.index_date
        else '"year"                  # or "shift", "remove"',
        anonymity=_ANONYMITY.substitute(columns=columns) if columns else "",
        groups=", ".join(_GROUPS[input_name] for input_name in reversed(patient_inputs)),
        data=", ".join(input_name.replace("_", " ") for input_name in (*inputs, name)),
    )


def _with_reference_date(name: str, shorthand: Shorthand, answers: TemplateAnswers, today: date) -> Shorthand:
    """Add the study's start as reference date to an age input of the template without an index date."""
    is_patient_age = name == "age" and "loinc" not in shorthand
    if not is_patient_age or answers.index_date is not None:
        return shorthand
    return {**shorthand, "reference_date": today}


def inline_table(table: Shorthand) -> str:
    """Format a table of the study template as a TOML inline table.

    >>> inline_table({"loinc": ["2093-3"], "missing_indicator": True})
    '{ loinc = ["2093-3"], missing_indicator = true }'
    """
    return f"{{ {', '.join(f'{key} = {_value(value)}' for key, value in table.items())} }}" if table else "{}"


def _pairs(table: Shorthand) -> str:
    return "\n".join(f"{key} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return inline_table(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, date):
        return value.isoformat()
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """Quote a text for the study template; TOML and JSON escape alike except for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
