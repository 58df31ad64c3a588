"""Check the built documentation in a browser: accessibility, copy buttons, search without decisions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.layout_overflow import show_as, violations

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "index.html",
    "tutorial/index.html",
    "study-document/index.html",
    "commands/runs/index.html",
    "architecture/index.html",
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def built_site(tmp_path_factory) -> Path:
    """Build the documentation once."""
    commands = pytest.importorskip("mkdocs.commands.build", reason="mkdocs is missing: install abaton[docs]")
    from mkdocs.config import load_config

    pytest.importorskip("mkdocstrings", reason="mkdocstrings is missing: install abaton[docs]")
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), use_directory_urls=True)
    config.plugins.pop("mkdocstrings", None)
    commands.build(config)
    return folder


@pytest.mark.parametrize("mode", ["desktop", "desktop, dark", "phone"])
@pytest.mark.parametrize("page", PAGES)
def test_pages_have_no_accessibility_violation(browser, built_site, page, mode):
    show_as(browser, mode)
    browser.get((built_site / page).as_uri())
    assert violations(browser) == []


def test_code_blocks_have_copy_buttons(browser, built_site):
    browser.get((built_site / "tutorial/index.html").as_uri())
    assert browser.find_elements("css selector", "button.md-clipboard, .md-code__button")


def test_decisions_are_not_in_the_search(built_site):
    index = json.loads((built_site / "search" / "search_index.json").read_text())
    locations = [entry["location"] for entry in index["docs"]]
    assert any(location.startswith("tutorial/") for location in locations)
    assert not [location for location in locations if location.startswith("adr/0")]
