"""The questions of ``abaton study new``: a few, with something proposed for each, and codes offered by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import note
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.study.shorthand.codes import Common
    from abaton.study.template import Answers

_SHOWN = 8
_SPAN = re.compile(r"P\d{1,5}[YMWD]")


def asked_study() -> Answers:
    """Ask what a study is about, whom it concerns, what goes in, and what is learned."""
    from abaton.study.document import Purpose
    from abaton.study.template import Answers

    usual = Answers()
    note("A few questions; Enter takes what stands in brackets, Ctrl-C leaves without writing anything.")
    title = typer.prompt("Title", default=usual.title)
    purposes = [each.value for each in Purpose]
    made = replace(
        usual,
        title=title,
        question=typer.prompt("Question in one sentence", default=usual.question),
        purpose=_until(
            "Purpose", usual.purpose, lambda text: text in purposes, f"choose {', '.join(purposes)}"
        ),
        country=_until(
            "Country (ISO 3166, two letters)", usual.country, _is_country, "two letters, such as IT"
        ).upper(),
        centre=typer.prompt("Research centre", default=usual.centre),
        email=_until("Its e-mail", usual.email, lambda text: "@" in text, "an address with @"),
    )
    made = replace(made, criteria=_criteria())
    made = replace(made, inputs=_inputs())
    name, line = _outcome(made.inputs)
    within = _until(
        "Within which time after a first visit or check-up, such as P1Y (empty: at any time)",
        "",
        lambda text: not text or _SPAN.fullmatch(text) is not None,
        "a number and a unit: P1Y, P6M, P30D",
    )
    if not within:
        return replace(made, outcome=(name, line))
    index = _one(
        "Counted from which visit (such as check-up; empty: the first of any kind)", ("visits",), empty=True
    )
    start = {key: value for key, value in index[1].items() if key != "kind"} if index else {"view": "visits"}
    return replace(made, outcome=(name, {**line, "within": within, "follow_up": "visits"}), index=start)


def _criteria() -> tuple[dict[str, Any], ...]:
    low = _until(
        "Youngest age (years)",
        "18",
        lambda text: text.isdigit() and int(text) <= 120,
        "a whole number up to 120",
    )
    found: list[dict[str, Any]] = [{"what": "age", "low": int(low)}]
    condition = _one("Only people with which condition (empty: all)", ("diagnoses",), empty=True)
    return (*found, *([{"what": "condition", **condition[1]}] if condition else []))


def _inputs() -> dict[str, dict[str, Any]]:
    from abaton.study.shorthand.codes import common

    made: dict[str, dict[str, Any]] = {}
    for name in ("age", "sex"):
        if typer.confirm(f"Is {name} an input?", default=True):
            made[name] = {}
    known = ("measurements", "answers", "diagnoses", "medicines", "visits", "procedures")
    note(
        f"Further inputs by name, such as systolic, diabetes, smoking ({len(common())} are known), or by code."
    )
    while found := _one("Input (empty: that is all)", known, empty=bool(made)):
        made[found[0]] = found[1]
    return made


def _outcome(inputs: Any) -> tuple[str, dict[str, Any]]:
    while True:
        found = _one(
            "What is learned (such as heart failure)", ("diagnoses", "procedures", "visits"), empty=False
        )
        assert found is not None
        if found[0] not in inputs:
            return found[0], {key: value for key, value in found[1].items() if key != "kind"}
        note(f"'{found[0]}' is an input already; choose something else")


def _one(question: str, sections: tuple[str, ...], *, empty: bool) -> tuple[str, dict[str, Any]] | None:
    """Something of the list of common codes, or a code that is typed; nothing where nothing may be said."""
    from abaton.study.shorthand.codes import found_by, typed_code

    while True:
        words = typer.prompt(question, default="", show_default=False).strip()
        if not words:
            if empty:
                return None
            note("something has to be chosen")
            continue
        if (line := typed_code(words)) is not None:
            name = _until("Its name", "input_1", _is_name, "letters, digits and _")
            return name, line
        found = found_by(words, sections)[:_SHOWN]
        chosen = _chosen(found)
        if chosen is not None:
            return chosen.name, dict(chosen.line)
        if not found:
            note("nothing in the list is called so; try another word, or give a code: loinc 8480-6 mm[Hg]")


def _chosen(found: list[Common]) -> Common | None:
    if len(found) == 1:
        note(f"  {found[0].label}: {found[0].codes}")
        return found[0] if typer.confirm("This one?", default=True) else None
    for number, each in enumerate(found, 1):
        note(f"  {number}  {each.label}: {each.codes}")
    if not found:
        return None
    text = _until(
        "Which (0: none)", "1", lambda t: t.isdigit() and int(t) <= len(found), f"a number up to {len(found)}"
    )
    return found[int(text) - 1] if int(text) else None


def _until(question: str, usual: str, holds: Callable[[str], bool], remedy: str) -> str:
    """Ask until the answer can be used."""
    while True:
        text: str = typer.prompt(question, default=usual, show_default=bool(usual)).strip()
        if holds(text):
            return text
        note(f"that cannot be used: {remedy}")


def _is_name(text: str) -> bool:
    return re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,62}", text) is not None


def _is_country(text: str) -> bool:
    from abaton.fhir.terminology import is_known

    return is_known("urn:iso:std:iso:3166", text.upper())


def example(name: str) -> Answers:
    """The answers of an example by its name."""
    from abaton.study.template import Answers

    if name != "example":
        raise SettingsError(
            f"there is no '{name}' to begin from", where="--from", remedy="write --from example"
        )
    return Answers()
