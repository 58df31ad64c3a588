"""What the tables of a privacy report show: pure functions from its data to heads and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from abaton.report.adding import Row, Table

Anonymity = Mapping[str, Any]
"""The row of an examined table."""


def quasi_table(row: Anonymity) -> Table:
    """The quasi-identifiers and the level at which each is shown."""
    rows: list[Row] = [
        (q["column"], "differs" if row["node"] is None else q["level"], q["height"], q["names"])
        for q in row["quasi_identifiers"]
    ]
    return ("column", "level shown", "highest level", "different names shown"), rows


def sensitive_table(row: Anonymity) -> Table:
    """What is asked of every class for each sensitive column."""
    return ("column", "asked of every class"), [(s["column"], _asked(s)) for s in row["asked"]["sensitive"]]


def _asked(sensitive: Mapping[str, Any]) -> str:
    wishes = []
    if diversity := sensitive["diversity"]:
        c = f", c = {diversity['c']:g}" if diversity["kind"] == "recursive" else ""
        wishes.append(f"{diversity['kind']} l-diversity, l = {diversity['l']}{c}")
    if closeness := sensitive["closeness"]:
        wishes.append(f"t-closeness, t = {closeness['t']:g}, {closeness['distance']} distance")
    return "; ".join(wishes) or "nothing"


def reached_table(row: Anonymity) -> Table:
    """What anonymity there was before, and what there is after."""
    before, after = row["before"], row["after"] or {}
    rows: list[Row] = [(words, before[key], after.get(key)) for key, words in _REACHED.items()]
    for i, old in enumerate(before["sensitive"]):
        new = after["sensitive"][i] if after.get("sensitive") else {}
        # No c is large enough where a class has fewer than l values.
        old, new = (m | {"recursive_c": m.get("recursive_c") or "none"} for m in (old, new))
        rows += [(f"{old['column']}: {words}", old[key], new.get(key)) for key, words in _SENSITIVE.items()]
    return ("what", "before", "after"), rows


def class_sizes(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The histogram of class sizes: for each bar its sizes, classes, people and their share."""
    bars = measured["histogram"]
    total = max(sum(people for _, _, people in bars), 1)
    ends = [f"–{nxt[0] - 1}" if nxt[0] - 1 > bar[0] else "" for bar, nxt in pairwise(bars)]
    return [
        {"sizes": f"{low}{end}", "classes": classes, "people": people, "share": people / total}
        for (low, classes, people), end in zip(bars, [*ends, " and more"], strict=True)
    ]


def risk_table(row: Anonymity) -> Table:
    """The risks of re-identification before and after."""
    return ("risk", "before", "after"), _both(row, "risk", _RISKS)


def risk_words(row: Anonymity) -> str:
    """Against which population the risks hold."""
    asked = row["asked"]
    if asked["population"] is not None:
        return f"a population of {asked['population']:,} people"
    if asked["sampling_fraction"] is not None:
        return f"a sample of {asked['sampling_fraction']:.4%} of the population"
    return "no stated population (journalist risk cannot be given; marketer risk is that of the table)"


def utility_table(row: Anonymity) -> Table:
    """What anonymity costs."""
    return ("measure", "before", "after"), _both(row, "utility", _UTILITY)


def quality_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """How good the community model is on original and on anonymous records."""
    rows: list[Row] = [
        (m["measure"], m["original"], m["anonymous"], m["anonymous"] - m["original"]) for m in models
    ]
    return ("measure", "original records", "anonymous records", "change"), rows


def _both(row: Anonymity, part: str, names: Mapping[str, str]) -> list[Row]:
    before, after = row["before"][part], (row["after"] or {}).get(part, {})
    return [(words, before[key], after.get(key)) for key, words in names.items()]


_REACHED = {
    "holds": "satisfies the study",
    "records": "records shown",
    "suppressed": "records left out",
    "people": "people shown",
    "people_left_out": "people left out",
    "classes": "classes",
    "k": "k: smallest class",
}
_SENSITIVE = {
    "distinct": "l, distinct values",
    "entropy": "l, effective values (entropy)",
    "recursive_c": "c of recursive diversity",
    "equal": "t, equal distance",
    "ordered": "t, ordered distance",
    "certain": "most certain guess",
}
_RISKS = {
    "prosecutor_highest": "prosecutor, highest (1 / smallest class)",
    "prosecutor_average": "prosecutor, average (classes / people)",
    "journalist_highest": "journalist, highest",
    "journalist_average": "journalist, average",
    "marketer": "marketer, average",
    "unique": "share of unique people (alone in their class)",
    "below_2": "share of people in classes below 2",
    "below_5": "share of people in classes below 5",
    "below_11": "share of people in classes below 11",
}
_UTILITY = {
    "loss": "loss (0 nothing, 1 everything)",
    "ncp": "normalised certainty penalty",
    "discernibility": "discernibility",
    "average_class_size": "average class size in multiples of k",
}
