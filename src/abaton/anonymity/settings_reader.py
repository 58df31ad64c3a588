"""From the study document's table ``[privacy.anonymity]`` to settings; what is not understood is refused."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from abaton.errors import SettingsError
from abaton.anonymity import settings
from abaton.anonymity.settings import AnonymitySettings

WHERE = "privacy.anonymity"
_MODEL = TypeAdapter(AnonymitySettings)
_KINDS = {
    "bool_type": "true or false",
    "dataclass_type": "a table",
    "float_type": "a number",
    "hierarchy": "exactly one of file, rows, bins, bands, prefix, dates",
    "int_type": "a whole number",
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
    """The settings a study document asks for, from its table as plain values.

    Args:
        table: What ``tomllib`` made of ``[privacy.anonymity]``.
        where: How to name the place in errors.

    Returns:
        Checked settings.

    Raises:
        SettingsError: A key is unknown, missing, of the wrong kind, or contradicts another.

    >>> age = {"column": "age", "hierarchy": {"bins": [5, 10]}}
    >>> made = settings_from({"k": 3, "quasi_identifiers": [age]})
    >>> made.k, made.quasi_identifiers[0].hierarchy
    (3, BinHierarchy(bins=(5.0, 10.0), origin=0.0))
    """
    try:
        return _MODEL.validate_python(table)
    except ValidationError as error:
        raise _told(error, where) from None


def table_from(made: AnonymitySettings) -> dict[str, Any]:
    """The table of settings as plain values, as a study document holds it.

    Keys that came later are left out where they say nothing, because consents are pinned to the document's hash.

    >>> made = settings_from({"quasi_identifiers": [{"column": "age", "weight": 2}, {"column": "sex"}]})
    >>> [row.get("weight") for row in table_from(made)["quasi_identifiers"]]
    [2.0, None]
    """
    table = dataclasses.asdict(made)
    for row in table["quasi_identifiers"]:
        if row["weight"] == 1:
            del row["weight"]
    if not made.rows_are_people:
        del table["rows_are_people"]
    return table


def read_settings(study: Path) -> AnonymitySettings:
    """The anonymity settings of a study document on disk."""
    try:
        document = tomllib.loads(study.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(
            "the study document cannot be read", where=str(study), remedy="check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the study document is not TOML: {error}", where=str(study)) from error
    table: object = document
    for name in WHERE.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise SettingsError(
            f"the study asks for no anonymity: it has no table [{WHERE}]",
            where=str(study),
            remedy="add the table, see docs/anonymity.md",
        )
    return settings_from(table, where=f"{study}: {WHERE}")


def _told(error: ValidationError, where: str) -> SettingsError:
    """The first thing that is wrong, in this room's words; never the value that was found."""
    found = error.errors(include_url=False, include_input=False)
    # A key that is not known is likely the one that seems to be missing, misspelt.
    detail = min(found, key=lambda each: each["type"] != "unexpected_keyword_argument")
    path, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    if not path:
        return SettingsError("this must be a table", where=where, remedy="see docs/anonymity.md")
    end = max(i for i, part in enumerate(path) if isinstance(part, str))
    place = where + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[:end])
    name = path[end]
    if kind == "unexpected_keyword_argument":
        return SettingsError(f"'{name}' is not a known key", where=place, remedy=_nearest(str(name)))
    what: Any = (
        f"one of {context['expected']}" if kind == "literal_error" else _KINDS.get(kind, "something else")
    )
    return SettingsError(f"'{name}' must be {what}", where=place, remedy="see docs/anonymity.md")


def _nearest(name: str) -> str:
    if name in _KEYS:  # right elsewhere: "l" is a key of diversity, not of the sensitive column
        return "it belongs in another table, see docs/anonymity.md"
    close = difflib.get_close_matches(name, _KEYS, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else "see docs/anonymity.md for the keys"
