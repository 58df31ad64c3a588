"""Public functions: `deidentify` records, and `explain` which rule applied to each element (without values)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple, TypeVar

from abaton.deid.deidentifier import Deidentifier
from abaton.deid.pseudonyms import Pseudonyms, check_key
from abaton.deid.reference_index import index_documents
from abaton.deid.rules import read_table
from abaton.deid.settings import (
    DataRequest,
    DateHandling,
    DeidentificationRule,
    DeidentificationSettings,
    Mechanism,
    RuleOptIn,
    RulePreset,
)
from abaton.errors import RefusedError, SettingsError, did_you_mean
from abaton.fhir.file_reader import RecordInputs, read_records
from abaton.record_types import Json, Record

Choice = TypeVar("Choice", bound=StrEnum)


def deidentify(
    records: RecordInputs,
    rules: str | Sequence[DeidentificationRule] = "default",
    key: bytes | None = None,
    *,
    study: str = "deidentify",
    dates: str = "year",
    opt_ins: Iterable[str] = (),
    year: int | None = None,
) -> Json | list[Json] | None:
    r"""De-identify FHIR R4 records, the public function: elements that no rule keeps are dropped.

    Args:
        records: A resource or a Bundle as a dict; the text of a file, or the path of a file or folder; or several of
            them: dicts, lines of NDJSON, paths.
        rules: The name of a preset (``default``, ``paper``), or rules that precede the default ones:
            a table of lines ``path method name=value``, or :class:`DeidentificationRule` objects.
        key: At least 32 random bytes. With a key subjects get pseudonyms, the same in every call with that key; without
            one the records are anonymised with a random key that is not stored.
        study: The study's name; two studies never share a pseudonym.
        dates: ``year``, ``shift`` or ``remove``.
        opt_ins: Named sets of rules that keep more: ``us-core``, ``zip3``.
        year: The current year, for the cap of ages.

    Returns:
        A dict for a dict (None if the resource is dropped), otherwise a list of dicts.

    Raises:
        RefusedError: A record is invalid or not R4; the error names the record and contains no value of it.
        SettingsError: A name or a rule is invalid.

    >>> patient = {"resourceType": "Patient", "id": "7", "birthDate": "1980-02-03", "name": [{"family": "Rossi"}]}
    >>> output = deidentify(patient, key=bytes(range(32)))
    >>> output["birthDate"], output["name"]
    ('1980', [{'family': 'Anonymous'}])
    >>> lines = b'{"resourceType":"Patient","id":"7"}\n{"resourceType":"Observation","id":"1","status":"final"}'
    >>> [resource["resourceType"] for resource in deidentify(lines, "Observation.status redact")]
    ['Patient', 'Observation']
    """
    if year is not None and (isinstance(year, bool) or not isinstance(year, int)):
        raise SettingsError(f"year is {year!r}", where="deidentify()", remedy="use an integer such as 2026")
    is_pseudonymised = key is not None
    settings = DeidentificationSettings(
        Mechanism.PSEUDONYMISE if is_pseudonymised else Mechanism.ANONYMISE,
        dates=_choice(DateHandling, dates, "dates"),
        preset=_preset(rules),
        rules=_rules(rules),
        opt_ins=tuple(
            _choice(RuleOptIn, name, "opt_ins")
            for name in ([opt_ins] if isinstance(opt_ins, str) else opt_ins)
        ),
    )
    pseudonyms = Pseudonyms(study, check_key(key) if key is not None else secrets.token_bytes(32))
    located_records = [(records, "")] if isinstance(records, dict) else list(read_records(records))
    deidentifier = Deidentifier(
        DataRequest.everything(study, settings),
        pseudonyms,
        year=year or datetime.now(UTC).year,
        reference_index=index_documents([record for record, _ in located_records]),
    )
    deidentified = []
    for record, where in located_records:
        try:
            deidentified.append(deidentifier.deidentify_content(record))
        except RefusedError as error:
            raise RefusedError(error.what, where=error.where or where, remedy=error.remedy) from None
    return (
        deidentified[0] if isinstance(records, dict) else [item for item in deidentified if item is not None]
    )


def _preset(rules: str | Sequence[DeidentificationRule]) -> RulePreset:
    if isinstance(rules, str) and not any(sign.isspace() for sign in rules.strip()):
        return _choice(RulePreset, rules.strip(), "rules")
    return RulePreset.DEFAULT


def _rules(rules: str | Sequence[DeidentificationRule]) -> tuple[DeidentificationRule, ...]:
    if isinstance(rules, str):
        return read_table(rules) if any(sign.isspace() for sign in rules.strip()) else ()
    return tuple(rules)


def _choice(choices: type[Choice], value: str, name: str) -> Choice:
    try:
        return choices(value)
    except ValueError:
        known = [member.value for member in choices]
        remedy = did_you_mean(str(value), known, f"use one of {', '.join(known)}")
        raise SettingsError(f"{name} is '{value}'", where="deidentify()", remedy=remedy) from None


class RuleTrace(NamedTuple):
    """Number of kept and dropped values at one path, with the rule or reason."""

    path: str
    kept_count: int
    dropped: int
    reason: str


def explain(record: Record, request: DataRequest, pseudonyms: Pseudonyms, *, year: int) -> list[RuleTrace]:
    """Explain de-identification: the effect of every rule on a record, in the order of the paths."""
    deidentifier = Deidentifier(request, pseudonyms, year=year, trace=True)
    deidentifier.deidentify_content(record.content)
    counts = deidentifier.take_counts()
    rows = [RuleTrace(path, count, 0, reason) for (path, reason), count in counts.passed.items()]
    rows += [RuleTrace(path, 0, count, reason) for (path, reason), count in counts.dropped.items()]
    rows += [
        RuleTrace(resource_type, 0, count, reason)
        for (resource_type, reason), count in counts.dropped_resources.items()
    ]
    return sorted(rows)
