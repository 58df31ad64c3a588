"""The controller page and its tests have the same numbered invariants."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "controller.md").read_text()
ITEMS = re.findall(
    r"^(\d+)\. (.*?)(?=^\d+\. |^$)", PAGE.split("## Invariants")[1], flags=re.MULTILINE | re.DOTALL
)


def source(file: str, name: str) -> str:
    """Return the source of a test function, or of a method of a state machine."""
    path = ROOT / "tests" / file
    text, body = path.read_text(), ast.parse(path.read_text()).body
    for part in name.split("."):
        (node,) = (n for n in body if getattr(n, "name", None) == part)
        body = getattr(node, "body", [])
    return f"{name} {ast.get_source_segment(text, node)}"


def test_the_page_numbers_its_invariants_without_a_gap():
    assert [int(number) for number, _ in ITEMS] == list(range(1, len(ITEMS) + 1))
    assert len(ITEMS) >= 17


@pytest.mark.parametrize(("number", "text"), ITEMS)
def test_every_invariant_names_tests_that_name_it(number, text):
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", text)
    assert named, f"invariant {number} names no test"
    for file, name in named:
        assert re.search(
            rf"invariant[ _]{number}\b|invariant_{number}_", source(file, name), re.IGNORECASE
        ), f"{file}::{name} does not mention invariant {number}"


def test_tests_mention_only_invariants_of_the_page():
    numbers = {int(number) for number, _ in ITEMS}
    for file in (
        "controller/test_state_machine.py",
        "controller/test_aggregation.py",
        "lab/test_run_crash.py",
        "engines/test_engine_contract.py",
    ):
        mentioned = re.findall(r"[Ii]nvariant[ _](\d+)", (ROOT / "tests" / file).read_text())
        assert {int(number) for number in mentioned} <= numbers
