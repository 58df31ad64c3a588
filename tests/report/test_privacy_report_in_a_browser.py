"""The privacy report in a browser: no console errors, no requests, hostile names escaped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.report.test_privacy_report import full, page

from abaton.report import PrivacyElement, StudyFacts

pytestmark = pytest.mark.browser
HOSTILE = (
    "<script>document.title='taken'</script><img src=http://x.example/p onerror=\"document.title='taken'\">"
)


def test_the_page_makes_no_requests_and_runs_no_scripts(browser, tmp_path):
    inputs = replace(
        full(), study=StudyFacts(HOSTILE, HOSTILE), removed=(PrivacyElement(HOSTILE, 1, HOSTILE),)
    )
    path = tmp_path / "report.html"
    path.write_text(page(inputs), encoding="utf-8")
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert urls == [path.as_uri()]
    assert browser.title.startswith("Privacy report: <script>")
    assert browser.execute_script("return document.scripts.length + document.images.length") == 0
    assert HOSTILE in browser.find_element("tag name", "main").text


def test_the_page_prints_completely_in_black_on_white(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(full()), encoding="utf-8")
    browser.get(path.as_uri())
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    overflowing = (
        "return [...document.querySelectorAll('table')].filter(t => t.scrollWidth > innerWidth).length"
    )
    assert browser.execute_script(overflowing) == 0
    assert browser.execute_script("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert len(browser.find_elements("css selector", ".sign div")) == 3
    assert len(browser.print_page()) > 10_000
