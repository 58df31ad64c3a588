"""The inventory of a source as one page that opens anywhere, offline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abaton.report.html_renderer import page

_CODES = ("code", "what it may be", "records", "years", "units", "answers", "other values")
_INPUTS = ("part", "would be", "looks for", "found", "units", "missing", "nearest codes found")


def inventory_page(found: Mapping[str, Any], source: str) -> str:
    """The page of an inventory.

    Args:
        found: The inventory as plain values, as ``abaton records inventory --json`` prints it.
        source: What was read, in words.
    """
    return page("inventory.html", title=f"What is in {source}", found=found, sections=list(_sections(found)))


Section = tuple[str, str, tuple[Sequence[str], Sequence[Sequence[Any]]]]


def _sections(found: Mapping[str, Any]) -> Iterator[Section]:
    """Title, caption and table of each part."""
    if "study" in found:
        rows = [input_cells(each) for each in found["inputs"]]
        yield f"What the study would find: {found['study']}", "inputs and outcome", _filled(_INPUTS, rows)
    yield "Records", "by resource type", (("type", "records"), list(found["records"].items()))
    for kind in dict.fromkeys(line["type"] for line in found["codes"]):
        rows = [code_cells(line) for line in found["codes"] if line["type"] == kind]
        yield kind, f"codes of {kind}", _filled(_CODES, rows)
    if found["set_aside"]:
        yield "Set aside", "what could not be read", (("reason", "count"), list(found["set_aside"].items()))


def _filled(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """A table without the columns in which nothing is said, so that a phone has room for the others."""
    kept = [i for i in range(len(heads)) if any(row[i] != "–" for row in rows)]
    return [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]


def input_cells(each: Mapping[str, Any]) -> tuple[str, ...]:
    """One part of a study as the cells of a table."""
    units = [
        f"{unit['unit']} ({unit['records']}{'' if unit['converts'] else ', not convertible'})"
        for code in each["found"]
        for unit in code["units"]
    ]
    answers = [
        f"{answer['category']}{_of(answer)} ({answer['records']})"
        for code in each["found"]
        for answer in code["answers"]
    ]
    return (
        each["name"],
        each["state"],
        each["looks_for"],
        ", ".join(f"{code['code']} ({code['records']})" for code in each["found"]) or "–",
        ", ".join(dict.fromkeys(units + answers)) or "–",
        "; ".join(each["missing"]) or "–",
        ", ".join(f"{near['code']} ({near['records']})" for near in each["nearest"]) or "–",
    )


def _of(answer: Mapping[str, str]) -> str:
    """What counts as other is named."""
    return f": {answer['answer']}" if answer["category"] == "other" else ""


def code_cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    """One code as the cells of a table."""
    years = line["years"]
    return (
        line["code"],
        line["label"] or "–",
        line["records"],
        (f"{years[0]} to {years[1]}" if years[0] != years[1] else f"{years[0]}") if years else "–",
        _counts(line["units"]),
        _counts(line["answers"]),
        _counts(line["other_values"]),
    )


def _counts(counts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({records})" for name, records in counts.items()) or "–"
