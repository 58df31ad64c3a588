"""A first study document in the short form, from answers to a few questions, for a research centre to change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from string import Template
from typing import Any

_TEMPLATE = Template('''\
# A study document in the short form. Every key is explained in docs/study-document.md.
# Check it, and see what is derived from each line:  abaton study check $file
# The long form, which is hashed and consented to:   abaton study expand $file

[study]
id = $id
title = $title
purpose = $purpose          # treatment, prevention, diagnostic, screening, basic-science, ...
question = $question
legal_basis = "Consent: GDPR Article 6(1)(a) and Article 9(2)(a)"
shares = ["updates"]            # what leaves a site: "records", "updates" (of a model), or both
regions = [$country]
period = { start = $start, end = $end }
enrolment = { start = $start, end = $closes }
retention = "P5Y"               # after the end of the study: P5Y, P6M, P30D ...

[centre]
name = $centre
email = $email
country = $country
url = "https://research.example.org/abaton"

# Who may take part: all of these must be known to hold.
[eligibility]
criteria = [
$criteria
]
$index
# What the model is made of, a line each: codes match exactly, or by how they begin ("E11*").
[inputs]
$inputs

# What is learned.
[outcome]
$outcome

# How every record is de-identified, where it lives.
[deidentification]
mechanism = "pseudonymise"      # or "anonymise"
identity = "pseudonym"          # or "pseudo-identity": random, kept only in the mapping table
dates = $dates
$anonymity
# How the community model is trained and judged.
[learning]
network = "logistic"            # or "mlp(16)", "mlp(32, 16)"; "linear" for a value
policy = "AsyncDVW(na)"         # SyncFedAvg, SyncDVW, AsyncFedAvg, FedAsync, AsyncDVW(na) or AsyncDVW(a)
codec = "error_feedback | stc(sparsity=0.1)"
rounds = 100
training = { epochs = 2, batch_size = 32, learning_rate = 0.05 }
evaluation = { metrics = ["auroc", "auprc", "calibration", "sensitivity"], groups = [$groups] }

# What a person reads before saying yes.
[consent]
text = """
You are asked to let your hospital use $what for this study.
Your records do not leave the hospital. You may withdraw at any time."""
''')
_ANONYMITY = Template("""
# How well each person must hide in the whole table.
[privacy.anonymity]
k = 5
suppression_limit = 0.05
quasi_identifiers = [$columns]
""")
_HIDING = {
    "age": '{ column = "age", hierarchy = { bins = [5, 10, 20] } }',
    "sex": '{ column = "sex" }',
}
_GROUPS = {"age": '{ input = "age", bands = [50, 65] }', "sex": '{ input = "sex" }'}

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """What is asked before a study document is written; the defaults are the example.

    Attributes:
        criteria: Who may take part, as criteria of the short form.
        inputs: The lines of the inputs, by their names.
        outcome: The name and the line of what is learned.
        index: The line of the index date, if events or ages are counted from one.
    """

    title: str = "Blood pressure and heart failure"
    question: str = "Can blood pressure and age foretell heart failure?"
    purpose: str = "diagnostic"
    country: str = "IT"
    centre: str = "University Hospital, Research Unit"
    email: str = "study@research.example.org"
    criteria: tuple[Line, ...] = (
        {"what": "age", "low": 18, "high": 89},
        {"what": "condition", "snomed": "38341003", "icd10": "I10*", "icd10cm": "I10*"},
    )
    inputs: Mapping[str, Line] = field(
        default_factory=lambda: {
            "age": {},
            "sex": {},
            "systolic": {"loinc": "8480-6", "unit": "mm[Hg]", "take": "latest", "indicator": True},
        }
    )
    outcome: tuple[str, Line] = "heart_failure", {"snomed": "84114007", "icd10": "I50*", "icd10cm": "I50*"}
    index: Line | None = None


def starter(file: str, today: date, answers: Answers, *, identifier: str = "my-study") -> str:
    """The text of a first study document.

    Args:
        file: How the file will be called, for the comments.
        today: The study is planned to start on this day.
        answers: What was asked.
        identifier: The study's id.

    Returns:
        TOML text that passes ``abaton study check``.
    """
    inputs = {name: _dated(name, line, answers, today) for name, line in answers.inputs.items()}
    told = [name for name in ("age", "sex") if name in inputs and "loinc" not in inputs[name]]
    name, line = answers.outcome
    columns = ", ".join(_HIDING[each] for each in told)
    event = "within" in line
    return _TEMPLATE.substitute(
        {
            key: _text(getattr(answers, key))
            for key in ("title", "question", "purpose", "country", "centre", "email")
        },
        file=file,
        id=_text(identifier),
        start=today.isoformat(),
        closes=(today + timedelta(days=365)).isoformat(),
        end=(today + timedelta(days=3 * 365)).isoformat(),
        criteria="\n".join(f"  {inline(each)}," for each in answers.criteria),
        index=f"\n# The day from which ages and events are counted.\n[index]\n{_pairs(answers.index)}\n"
        if answers.index
        else "",
        inputs="\n".join(f"{each} = {inline(table)}" for each, table in inputs.items()),
        outcome=f"{name} = {inline(line)}",
        dates='"shift"                 # events are counted in days; else "year" or "remove"'
        if event or answers.index
        else '"year"                  # or "shift", "remove"',
        anonymity=_ANONYMITY.substitute(columns=columns) if columns else "",
        groups=", ".join(_GROUPS[each] for each in reversed(told)),
        what=", ".join(each.replace("_", " ") for each in (*inputs, name)),
    )


def _dated(name: str, line: Line, answers: Answers, today: date) -> Line:
    """An age is told at the index date, or else at the beginning of the study."""
    born = name == "age" and "loinc" not in line
    return {**line, "at": today} if born and answers.index is None else line


def inline(table: Line) -> str:
    """A table in one line of TOML.

    >>> inline({"loinc": ["2093-3"], "indicator": True})
    '{ loinc = ["2093-3"], indicator = true }'
    """
    return f"{{ {', '.join(f'{key} = {_value(value)}' for key, value in table.items())} }}" if table else "{}"


def _pairs(table: Line) -> str:
    return "\n".join(f"{key} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return inline(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, date):
        return value.isoformat()
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    """A text between quotes; TOML and JSON escape alike, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
