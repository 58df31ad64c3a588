"""How people are protected: de-identification of each record, and anonymity of the whole table.

Both are the settings of other rooms; here they get a place in the study document and a form as a table.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WrapValidator
from pydantic import ValidatorFunctionWrapHandler as Handler
from pydantic_core import PydanticCustomError

from abaton.documents.line_numbers import KeyPath
from abaton.documents.fields import Part
from abaton.errors import SettingsError
from abaton.anonymity import AnonymitySettings, settings_from, table_from
from abaton.deid.settings import Deidentification
from abaton.deid.rule_compiler import Plan

_ANONYMITY_KEY = re.compile(r"privacy\.anonymity((?:\.\w+|\[\d+\])*)")


def _placed(error: SettingsError) -> PydanticCustomError:
    """Settings of other rooms complain in their own words; here they get a place in the document."""
    match = _ANONYMITY_KEY.match(error.where)
    within = [part.strip(".[]") for part in re.findall(r"\.\w+|\[\d+\]", match[1])] if match else []
    return _complaint(error, tuple(int(part) if part.isdigit() else part for part in within))


def _complaint(error: SettingsError, path: KeyPath) -> PydanticCustomError:
    context = {"what": error.what, "remedy": error.remedy or "see docs/study-document.md", "path": path}
    return PydanticCustomError("document", "{what}", context)


def _anonymity(value: Any) -> AnonymitySettings:
    try:
        return settings_from(value)
    except SettingsError as error:
        raise _placed(error) from None


def _with_pairs(value: Any) -> Any:
    """A rule's settings are a table for people and pairs for the de-identifier; lists become unchangeable."""
    if not isinstance(value, dict):
        return value
    rules, allow = value.get("rules"), value.get("allow")
    made = {**value, **({"rules": tuple(_rule(rule) for rule in rules)} if isinstance(rules, list) else {})}
    return {**made, **({"allow": tuple(allow)} if isinstance(allow, list) else {})}


def _rule(rule: Any) -> Any:
    if not isinstance(rule, dict) or not isinstance(rule.get("settings"), dict):
        return rule
    return {**rule, "settings": tuple((key, _word(value)) for key, value in rule["settings"].items())}


def _word(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, int | float) else value


def _deidentification(value: Any, handler: Handler) -> Any:
    try:
        made: Deidentification = handler(value)
    except SettingsError as error:
        raise _placed(error) from None
    for i, rule in enumerate(made.rules):
        try:
            Plan((rule,))
        except SettingsError as error:
            raise _complaint(error, ("rules", i)) from None
    return made


def _deidentification_table(made: Deidentification) -> dict[str, Any]:
    table: dict[str, Any] = asdict(made)
    table["rules"] = [{**rule, "settings": dict(rule["settings"])} for rule in table["rules"]]
    return {key: value.value if isinstance(value, StrEnum) else value for key, value in table.items()}


Protection = Annotated[
    Deidentification,
    BeforeValidator(_with_pairs),
    WrapValidator(_deidentification),
    PlainSerializer(_deidentification_table),
]
Anonymity = Annotated[AnonymitySettings, PlainValidator(_anonymity), PlainSerializer(table_from)]


class Privacy(Part):
    """What is asked of the whole table before it may be used."""

    anonymity: Anonymity | None = None
