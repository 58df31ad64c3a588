"""The front door of de-identification: records in, de-identified records out, one call.

Explaining: which rule did what to each element of a record. Places, rules and counts; never a value.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import NamedTuple, TypeVar

from abaton.deid.deidentifier import Deidentifier
from abaton.deid.pseudonyms import Pseudonyms, check_key
from abaton.deid.reference_index import among
from abaton.deid.rules import read_table
from abaton.deid.settings import Allowed, Dates, Deidentification, Mechanism, Need, Preset, Rule
from abaton.errors import Refused, SettingsError
from abaton.fhir.file_reader import Given, given
from abaton.record_types import Json, Record

Choice = TypeVar("Choice", bound=StrEnum)


def deidentify(
    records: Given,
    rules: str | Sequence[Rule] = "default",
    key: bytes | None = None,
    *,
    study: str = "deidentify",
    dates: str = "year",
    allow: Iterable[str] = (),
    year: int | None = None,
) -> Json | list[Json] | None:
    r"""De-identify FHIR R4 records: what no rule keeps is gone, and what comes out is valid R4.

    Args:
        records: A resource or a Bundle as a dict; the text of a file, or the path of a file or folder; or many of them:
            dicts, lines of NDJSON, paths.
        rules: The name of a preset (``default``, ``paper``), or rules of your own that come before the default ones:
            as a table of lines ``path method name=value``, or as :class:`Rule` objects.
        key: At least 32 random bytes. With a key people get pseudonyms, the same in every call with it; without one the
            records are anonymised under a key that is drawn and thrown away.
        study: The study's name; two studies never share a pseudonym.
        dates: ``year``, ``shift`` or ``remove``.
        allow: Named sets of rules that keep more: ``us-core``, ``zip3``.
        year: The current year, from which ages count.

    Returns:
        A dict for a dict (nothing if the resource must be left out), otherwise a list of dicts.

    Raises:
        Refused: A record is doubtful or not R4; the error says which one and holds nothing of it.
        SettingsError: A name or a rule is not understood.

    >>> patient = {"resourceType": "Patient", "id": "7", "birthDate": "1980-02-03", "name": [{"family": "Rossi"}]}
    >>> made = deidentify(patient, key=bytes(range(32)))
    >>> made["birthDate"], made["name"]
    ('1980', [{'family': 'Anonymous'}])
    >>> lines = b'{"resourceType":"Patient","id":"7"}\n{"resourceType":"Observation","id":"1","status":"final"}'
    >>> [each["resourceType"] for each in deidentify(lines, "Observation.status redact")]
    ['Patient', 'Observation']
    """
    if year is not None and (isinstance(year, bool) or not isinstance(year, int)):
        raise SettingsError(
            "'year' is not a year", where="deidentify()", remedy="give a whole number, such as 2026"
        )
    lasting = key is not None
    wish = Deidentification(
        Mechanism.PSEUDONYMISE if lasting else Mechanism.ANONYMISE,
        dates=_choice(Dates, dates, "dates"),
        preset=_preset(rules),
        rules=_rules(rules),
        allow=tuple(
            _choice(Allowed, name, "allow") for name in ([allow] if isinstance(allow, str) else allow)
        ),
    )
    names = Pseudonyms(study, check_key(key) if key is not None else secrets.token_bytes(32))
    named = [(records, "")] if isinstance(records, dict) else list(given(records))
    make = Deidentifier(
        Need.everything(study, wish),
        names,
        year=year or datetime.now(UTC).year,
        addresses=among([record for record, _ in named]),
    )
    made = []
    for record, where in named:
        try:
            made.append(make.plain(record))
        except Refused as error:
            raise Refused(error.what, where=error.where or where, remedy=error.remedy) from None
    return made[0] if isinstance(records, dict) else [each for each in made if each is not None]


def _preset(rules: str | Sequence[Rule]) -> Preset:
    if isinstance(rules, str) and not any(sign.isspace() for sign in rules.strip()):
        return _choice(Preset, rules.strip(), "rules")
    return Preset.DEFAULT


def _rules(rules: str | Sequence[Rule]) -> tuple[Rule, ...]:
    if isinstance(rules, str):
        return read_table(rules) if any(sign.isspace() for sign in rules.strip()) else ()
    return tuple(rules)


def _choice(kind: type[Choice], word: str, name: str) -> Choice:
    try:
        return kind(word)
    except ValueError:
        known = [each.value for each in kind]
        close = get_close_matches(str(word), known, n=1)
        guess = f"did you mean '{close[0]}'?" if close else f"use one of {', '.join(known)}"
        raise SettingsError(f"'{name}' knows no '{word}'", where="deidentify()", remedy=guess) from None


class Told(NamedTuple):
    """What happened at one place."""

    path: str
    kept: int
    dropped: int
    why: str


def explain(record: Record, need: Need, names: Pseudonyms, *, year: int) -> list[Told]:
    """What every rule did to a record, in the order of the paths."""
    make = Deidentifier(need, names, year=year, trace=True)
    make.plain(record.content)
    tally = make.tally()
    rows = [Told(path, count, 0, why) for (path, why), count in tally.passed.items()]
    rows += [Told(path, 0, count, why) for (path, why), count in tally.dropped.items()]
    rows += [Told(kind, 0, count, why) for (kind, why), count in tally.left_out.items()]
    return sorted(rows)
