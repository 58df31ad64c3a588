"""Prompts of ``abaton study new``, with a default for each and codes found by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import note

if TYPE_CHECKING:
    from abaton.study.shorthand.codes import CommonInput
    from abaton.study.template import TemplateAnswers

_MAX_MATCHES = 8
_DURATION = re.compile(r"P\d{1,5}[YMWD]")


def prompt_study() -> TemplateAnswers:
    """Prompt for purpose, eligibility, inputs and outcome of a new study (wizard)."""
    from abaton.study.document import Purpose
    from abaton.study.template import TemplateAnswers

    defaults = TemplateAnswers()
    note("Enter accepts the value in brackets; Ctrl-C stops without writing.")
    title = typer.prompt("Title", default=defaults.title)
    purposes = [purpose.value for purpose in Purpose]
    answers = replace(
        defaults,
        title=title,
        question=typer.prompt("Question in one sentence", default=defaults.question),
        purpose=_prompt_until(
            "Purpose", defaults.purpose, lambda text: text in purposes, f"choose {', '.join(purposes)}"
        ),
        country=_prompt_until(
            "Country (ISO 3166, two letters)", defaults.country, _is_country, "use two letters, such as IT"
        ).upper(),
        centre=typer.prompt("Research centre", default=defaults.centre),
        email=_prompt_until("Its e-mail", defaults.email, lambda text: "@" in text, "use an address with @"),
    )
    answers = replace(answers, criteria=_criteria())
    answers = replace(answers, inputs=_inputs())
    name, outcome = _outcome(answers.inputs)
    outcome_window = _prompt_until(
        "Outcome window after a first visit or check-up, such as P1Y (empty: any time)",
        "",
        lambda text: not text or _DURATION.fullmatch(text) is not None,
        "use a number and a unit: P1Y, P6M, P30D",
    )
    if not outcome_window:
        return replace(answers, outcome=(name, outcome))
    visit = _prompt_input(
        "Visit at which the outcome window starts (such as check-up; empty: the first of any type)",
        ("visits",),
        may_skip=True,
    )
    index_date = (
        {key: value for key, value in visit[1].items() if key != "kind"} if visit else {"view": "visits"}
    )
    return replace(
        answers,
        outcome=(name, {**outcome, "outcome_window": outcome_window, "follow_up": "visits"}),
        index_date=index_date,
    )


def _criteria() -> tuple[dict[str, Any], ...]:
    min_age = _prompt_until(
        "Minimum age (years)",
        "18",
        lambda text: text.isdigit() and int(text) <= 120,
        "use an integer up to 120",
    )
    criteria: list[dict[str, Any]] = [{"type": "age", "low": int(min_age)}]
    condition = _prompt_input(
        "Condition that patients must have (empty: none)", ("diagnoses",), may_skip=True
    )
    return (*criteria, *([{"type": "condition", **condition[1]}] if condition else []))


def _inputs() -> dict[str, dict[str, Any]]:
    from abaton.study.shorthand.codes import common_inputs

    inputs: dict[str, dict[str, Any]] = {}
    for name in ("age", "sex"):
        if typer.confirm(f"Is {name} an input?", default=True):
            inputs[name] = {}
    sections = ("measurements", "answers", "diagnoses", "medicines", "visits", "procedures")
    note(
        f"Further inputs by name, such as systolic, diabetes, smoking ({len(common_inputs())} are known), or by code."
    )
    while selected := _prompt_input("Input (empty: no more inputs)", sections, may_skip=bool(inputs)):
        inputs[selected[0]] = selected[1]
    return inputs


def _outcome(inputs: Any) -> tuple[str, dict[str, Any]]:
    while True:
        selected = _prompt_input(
            "Outcome (such as heart failure)", ("diagnoses", "procedures", "visits"), may_skip=False
        )
        assert selected is not None
        if selected[0] not in inputs:
            return selected[0], {key: value for key, value in selected[1].items() if key != "kind"}
        note(f"'{selected[0]}' is already an input; choose another outcome")


def _prompt_input(
    question: str, sections: tuple[str, ...], *, may_skip: bool
) -> tuple[str, dict[str, Any]] | None:
    """Prompt in the study wizard for a common input or a code; `None` for an empty answer if allowed."""
    from abaton.study.shorthand.codes import find_common_inputs, parse_typed_code

    while True:
        text = typer.prompt(question, default="", show_default=False).strip()
        if not text:
            if may_skip:
                return None
            note("an answer is required")
            continue
        if (code := parse_typed_code(text)) is not None:
            name = _prompt_until("Name of the input", "input_1", _is_name, "use letters, digits and _")
            return name, code
        matches = find_common_inputs(text, sections)[:_MAX_MATCHES]
        selected = _select_match(matches)
        if selected is not None:
            return selected.name, dict(selected.shorthand)
        if not matches:
            note("no match; try another name, or enter a code: loinc 8480-6 mm[Hg]")


def _select_match(matches: list[CommonInput]) -> CommonInput | None:
    if len(matches) == 1:
        note(f"  {matches[0].label}: {matches[0].codes}")
        return matches[0] if typer.confirm("Use this one?", default=True) else None
    for number, match in enumerate(matches, 1):
        note(f"  {number}  {match.label}: {match.codes}")
    if not matches:
        return None
    text = _prompt_until(
        "Which (0: none)",
        "1",
        lambda t: t.isdigit() and int(t) <= len(matches),
        f"use a number up to {len(matches)}",
    )
    return matches[int(text) - 1] if int(text) else None


def _prompt_until(question: str, default: str, is_valid: Callable[[str], bool], remedy: str) -> str:
    """Prompt in the study wizard until the answer is valid."""
    while True:
        text: str = typer.prompt(question, default=default, show_default=bool(default)).strip()
        if is_valid(text):
            return text
        note(f"invalid answer: {remedy}")


def _is_name(text: str) -> bool:
    return re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,62}", text) is not None


def _is_country(text: str) -> bool:
    from abaton.fhir.terminology import is_known

    return is_known("urn:iso:std:iso:3166", text.upper())
