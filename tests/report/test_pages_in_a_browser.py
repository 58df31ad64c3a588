"""Reports and comparisons in a real browser: figures hold the data, nothing is fetched, a phone suffices."""

from __future__ import annotations

import json

import pytest
from selenium.webdriver.support.wait import WebDriverWait
from test_comparison import lab
from test_privacy import full
from test_privacy import page as privacy_page_of
from test_privacy_in_a_browser import HOSTILE
from tests.boxes import MODES, faults, shown_as, violations
from tests.report.test_run import EVENTS, explained_row

from abaton.report import comparison, comparison_page, lab_page, run_page, run_report

pytestmark = pytest.mark.browser

PAGES = {
    "study": (lambda: run_page(run_report(explained_row(), EVENTS)), [0.5, 0.8]),
    "lab": (lambda: lab_page(lab(HOSTILE)), [0.5, 0.7, 0.8]),
    "compared": (lambda: comparison_page(comparison([lab(HOSTILE), lab("two", seed=2)])), [0.5, 0.7, 0.8]),
}


@pytest.mark.parametrize("kind", PAGES)
def test_figures_hold_the_data_and_nothing_is_fetched(browser, tmp_path, kind):
    make, values = PAGES[kind]
    path = tmp_path / "page.html"
    path.write_text(make(), encoding="utf-8")
    browser.set_window_size(1200, 900)
    browser.get_log("performance")
    browser.get(path.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    ready = "return document.querySelector('[data-figure=bytes] .main-svg') !== null"
    WebDriverWait(browser, 60).until(lambda here: here.execute_script(ready))
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    assert "taken" not in browser.title
    for axis in ("version", "at", "bytes"):
        plot = f"const f = document.querySelector('[data-figure={axis}] .plot');"
        assert browser.execute_script(f"{plot} return Array.from(f.data[0].y)") == values
        inside = (
            f"{plot} return f.querySelector('.main-svg').getBoundingClientRect().width <= f.clientWidth + 1"
        )
        assert browser.execute_script(inside)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [*PAGES, "privacy"])
def test_nothing_overlaps_or_is_cut_and_axe_finds_nothing(browser, tmp_path, kind, mode):
    path = tmp_path / "page.html"
    path.write_text(privacy_page_of(full()) if kind == "privacy" else PAGES[kind][0](), encoding="utf-8")
    shown_as(browser, mode)
    try:
        browser.get(path.as_uri())
        assert faults(browser) == []
        if mode != "print":  # what is folded is opened, and drawn then
            browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
            asked = "return [...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))"
            WebDriverWait(browser, 60).until(lambda here: here.execute_script(asked))
            assert faults(browser) == []
        if mode in ("phone", "desk, dark"):
            assert violations(browser) == []
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_answer_is_on_the_first_screen(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGES["study"][0](), encoding="utf-8")
    browser.set_window_size(1280, 900)
    browser.get(path.as_uri())
    bottom = "return document.querySelector('.finding').getBoundingClientRect().bottom"
    assert browser.execute_script(bottom) < 600
    assert not browser.find_element("css selector", ".machine").get_property("open")
