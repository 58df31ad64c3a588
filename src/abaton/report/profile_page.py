"""Profile of a record source as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abaton.report.html_renderer import page

_CODES = ("code", "likely input", "records", "years", "units", "coded values", "other values")
_INPUTS = ("input", "state", "required codes", "records", "units", "missing", "closest codes present")


def render_profile(profile: Mapping[str, Any], source: str) -> str:
    """Render the HTML page of a record source's profile.

    Args:
        profile: The profile as ``abaton records profile --json`` prints it.
        source: Name of the record source.
    """
    return page(
        "profile.html", title=f"Profile of {source}", profile=profile, sections=list(_sections(profile))
    )


Section = tuple[str, str, tuple[Sequence[str], Sequence[Sequence[Any]]]]


def _sections(profile: Mapping[str, Any]) -> Iterator[Section]:
    """Yield title, caption and table of each section of the profile page."""
    if "study" in profile:
        rows = [input_cells(entry) for entry in profile["inputs"]]
        yield f"Inputs of study {profile['study']}", "inputs and outcome", _filled(_INPUTS, rows)
    yield "Records", "by resource type", (("type", "records"), list(profile["records"].items()))
    for resource_type in dict.fromkeys(code["type"] for code in profile["codes"]):
        rows = [code_cells(code) for code in profile["codes"] if code["type"] == resource_type]
        yield resource_type, f"codes of {resource_type}", _filled(_CODES, rows)
    if profile["skipped"]:
        yield (
            "Skipped",
            "records that could not be read",
            (("reason", "count"), list(profile["skipped"].items())),
        )


def _filled(column_names: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return a table of the profile page without its empty columns."""
    filled = [i for i in range(len(column_names)) if any(row[i] != "–" for row in rows)]
    return [column_names[i] for i in filled], [[row[i] for i in filled] for row in rows]


def input_cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return an input of a study as the cells of a table on the profile page."""
    units = [
        f"{unit['unit']} ({unit['records']}{'' if unit['is_convertible'] else ', not convertible'})"
        for code in entry["codes"]
        for unit in code["units"]
    ]
    coded_values = [
        f"{coded_value['category']}{_other_value(coded_value)} ({coded_value['records']})"
        for code in entry["codes"]
        for coded_value in code["coded_values"]
    ]
    return (
        entry["name"],
        entry["state"],
        entry["required_codes"],
        ", ".join(f"{code['code']} ({code['records']})" for code in entry["codes"]) or "–",
        ", ".join(dict.fromkeys(units + coded_values)) or "–",
        "; ".join(entry["missing"]) or "–",
        ", ".join(f"{closest['code']} ({closest['records']})" for closest in entry["closest_codes"]) or "–",
    )


def _other_value(coded_value: Mapping[str, str]) -> str:
    """Return the coded value on the profile page if it counts as 'other'."""
    return f": {coded_value['code']}" if coded_value["category"] == "other" else ""


def code_cells(code: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a code as the cells of a table on the profile page."""
    years = code["years"]
    return (
        code["code"],
        code["label"] or "–",
        code["records"],
        (f"{years[0]} to {years[1]}" if years[0] != years[1] else f"{years[0]}") if years else "–",
        _counts(code["units"]),
        _counts(code["coded_values"]),
        _counts(code["other_values"]),
    )


def _counts(counts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({records})" for name, records in counts.items()) or "–"
