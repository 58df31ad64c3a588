"""Reports and comparisons in a real browser: figures hold the data, nothing is fetched, a phone suffices."""

from __future__ import annotations

import json

import pytest
from test_comparison import lab
from test_privacy_in_a_browser import HOSTILE
from test_run import EVENTS, row

from abaton.report import comparison, comparison_page, lab_page, run_page, run_report

pytestmark = pytest.mark.browser

PAGES = {
    "study": (lambda: run_page(run_report(row(), EVENTS)), [0.5, 0.8]),
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
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    assert "taken" not in browser.title
    for axis in ("version", "at", "bytes"):
        name = f"figure-course-{axis}" if kind == "lab" else f"figure-{axis}"
        drawn = browser.execute_script(f"return Array.from(document.getElementById('{name}').data[0].y)")
        assert drawn == values
        inside = (
            f"const f = document.getElementById('{name}');"
            "return f.querySelector('.main-svg').getBoundingClientRect().width <= f.clientWidth + 1"
        )
        assert browser.execute_script(inside)


@pytest.mark.parametrize("kind", PAGES)
def test_a_phone_shows_it_without_scrolling_sideways(browser, tmp_path, kind):
    path = tmp_path / "page.html"
    path.write_text(PAGES[kind][0](), encoding="utf-8")
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
