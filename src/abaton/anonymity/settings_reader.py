"""Parser of the study document's table ``[privacy.anonymity]``; unknown keys are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from abaton.anonymity import settings
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import SettingsError, did_you_mean
from abaton.strict_toml import parse_toml_table

WHERE = "privacy.anonymity"
_MODEL = TypeAdapter(AnonymitySettings)
_TYPE_NAMES = {
    "bool_type": "true or false",
    "dataclass_type": "a table",
    "float_type": "a number",
    "hierarchy": "exactly one of file, rows, bins, bands, prefix, dates",
    "int_type": "an integer",
    "missing": "given",
    "string_too_short": "a text",
    "string_type": "a text",
    "tuple_type": "a list",
}
_KEYS = sorted(
    {
        field.name
        for model in vars(settings).values()
        if dataclasses.is_dataclass(model)
        for field in dataclasses.fields(model)
    }
)


def settings_from(table: object, *, where: str = WHERE) -> AnonymitySettings:
    """Read the anonymity settings from a study document's table.

    Args:
        table: ``[privacy.anonymity]`` as parsed.
        where: the location for errors.

    Returns:
        Checked settings.

    Raises:
        SettingsError: A key is unknown, missing, of the wrong type, or contradicts another.

    >>> age = {"column": "age", "hierarchy": {"bins": [5, 10]}}
    >>> settings = settings_from({"k": 3, "quasi_identifiers": [age]})
    >>> settings.k, settings.quasi_identifiers[0].hierarchy
    (3, BinHierarchy(bins=(5.0, 10.0), origin=0.0))
    """
    try:
        return _MODEL.validate_python(table)
    except ValidationError as error:
        raise _to_error(error, where) from None


def table_from(anonymity: AnonymitySettings) -> dict[str, Any]:
    """Return anonymity settings as the JSON values of a study document's table, which can be read back.

    Some default values are omitted, because consents are bound to the hash of the document.

    >>> settings = settings_from({"quasi_identifiers": [{"column": "age", "weight": 2}, {"column": "sex"}]})
    >>> [row.get("weight") for row in table_from(settings)["quasi_identifiers"]]
    [2.0, None]
    """
    table = dataclasses.asdict(anonymity)
    for row in table["quasi_identifiers"]:
        if row["weight"] == 1:
            del row["weight"]
    if not anonymity.one_row_per_subject:
        del table["one_row_per_subject"]
    return table


def read_settings(study: Path) -> AnonymitySettings:
    """Read the anonymity settings of a study document on disk."""
    try:
        document = parse_toml_table(study.read_text("utf-8"), str(study))
    except OSError as error:
        raise SettingsError(
            "the study document cannot be read", where=str(study), remedy="check the path"
        ) from error
    except UnicodeDecodeError:
        raise SettingsError(
            "the study document is not UTF-8 text", where=str(study), remedy="save it as UTF-8"
        ) from None
    table: object = document
    for name in WHERE.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise SettingsError(
            f"the study document has no table [{WHERE}]",
            where=str(study),
            remedy="add the table, see docs/anonymity.md",
        )
    return settings_from(table, where=f"{study}: {WHERE}")


def _to_error(error: ValidationError, where: str) -> SettingsError:
    """Return the first problem of the anonymity settings read as an error, without the value found."""
    problems = error.errors(include_url=False, include_input=False)
    # An unknown key is reported first: it is likely a misspelt required key.
    detail = min(problems, key=lambda problem: problem["type"] != "unexpected_keyword_argument")
    path, problem_type, context = detail["loc"], detail["type"], detail.get("ctx", {})
    if not path:
        return SettingsError("the value is not a table", where=where, remedy="see docs/anonymity.md")
    end = max(i for i, key in enumerate(path) if isinstance(key, str))
    location = where + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path[:end])
    name = path[end]
    if problem_type == "unexpected_keyword_argument":
        return SettingsError(f"'{name}' is not a known key", where=location, remedy=_key_hint(str(name)))
    expected: Any = (
        f"one of {context['expected']}"
        if problem_type == "literal_error"
        else _TYPE_NAMES.get(problem_type, "of another type")
    )
    return SettingsError(f"'{name}' must be {expected}", where=location, remedy="see docs/anonymity.md")


def _key_hint(name: str) -> str:
    if name in _KEYS:  # "l" is a key of diversity, not of the sensitive column
        return "move it to the table it belongs to, see docs/anonymity.md"
    return did_you_mean(name, _KEYS, "see docs/anonymity.md for the keys")
