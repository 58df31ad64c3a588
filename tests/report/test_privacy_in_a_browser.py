"""The privacy report in a real browser: no complaint on the console, nothing fetched, names shown and never run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_privacy import full, page

from abaton.report import Element, StudyFacts

pytestmark = pytest.mark.browser
HOSTILE = (
    "<script>document.title='taken'</script><img src=http://x.example/p onerror=\"document.title='taken'\">"
)


def test_the_page_asks_for_nothing_complains_of_nothing_and_runs_nothing(browser, tmp_path):
    inputs = replace(full(), study=StudyFacts(HOSTILE, HOSTILE), removed=(Element(HOSTILE, 1, HOSTILE),))
    path = tmp_path / "report.html"
    path.write_text(page(inputs), encoding="utf-8")
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked == [path.as_uri()]
    assert browser.title.startswith("Privacy report: <script>")
    assert browser.execute_script("return document.scripts.length + document.images.length") == 0
    assert HOSTILE in browser.find_element("tag name", "main").text


def test_the_page_prints_whole_in_black_on_white(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(full()), encoding="utf-8")
    browser.get(path.as_uri())
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    wide = "return [...document.querySelectorAll('table')].filter(t => t.scrollWidth > innerWidth).length"
    assert browser.execute_script(wide) == 0
    assert browser.execute_script("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert len(browser.find_elements("css selector", ".sign div")) == 3
    assert len(browser.print_page()) > 10_000
