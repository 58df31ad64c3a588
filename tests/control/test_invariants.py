"""The controller's page and its tests speak of the same invariants."""

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
    """The text of a test function, or of a method of a state machine."""
    path = ROOT / "tests" / file
    text, found = path.read_text(), ast.parse(path.read_text()).body
    for part in name.split("."):
        (node,) = (n for n in found if getattr(n, "name", None) == part)
        found = getattr(node, "body", [])
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
        ), f"{file}::{name} does not say that it holds invariant {number}"


def test_tests_speak_of_no_invariant_that_the_page_does_not_have():
    numbers = {int(number) for number, _ in ITEMS}
    for file in (
        "control/test_step.py",
        "control/test_community.py",
        "lab/test_crash.py",
        "engines/test_engine_contract.py",
    ):
        spoken = re.findall(r"[Ii]nvariant[ _](\d+)", (ROOT / "tests" / file).read_text())
        assert {int(number) for number in spoken} <= numbers
