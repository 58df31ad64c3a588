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

from abaton.report import (
    card_page,
    comparison,
    comparison_page,
    figures_page,
    inventory_page,
    lab_page,
    run_page,
    run_report,
)
from abaton.report.experiment_figures import accuracy_over_time

pytestmark = pytest.mark.browser

_TOLD = {"value": 0.832, "low": 0.683, "high": 0.944}
_MEASURES = ("auroc", "auprc", "brier", "calibration slope", "calibration intercept", "sensitivity")
CARD = {
    "title": HOSTILE,
    "run": "heart-failure-four-hospitals-20261117-121120-dde4",
    "intended_use": {"question": "Who falls ill?", "learns": "ill", "purpose": "research", "asked_by": None,
                     "not_for": "deciding about one person; " * 4},
    "model": {"network": "mlp", "parameters": 1234, "columns": [f"input_number_{i}" for i in range(30)],
              "classes": ["no", "yes"]},
    "cohort": [{"site": "athens", "read": 208, "eligible": 208, "consented": 178, "kept": 178, "rows": "≥5"}],
    "performance": [
        {"group": "all sites", "people": 74, "sites": 4, "measures": dict.fromkeys(_MEASURES, _TOLD)},
        {"group": "age: 70 and above", "people": 5, "sites": 4, "measures": None},
    ],
    "calibration": {"points": [{"predicted": 0.1, "happened": _TOLD}], "correction": {"slope": 1.2, "intercept": -0.1}},
    "goes_by": [{"input": "systolic", "loses": _TOLD}],
    "personal": [{"site": "athens", "model": "fine-tune", "subjects": 34, "gain": _TOLD}],
    "limits": ["Too few people to judge the model for: " + ", ".join(["age: 70 and above"] * 9)],
    "privacy": {"records": "de-identified at the sites", "smallest_count": 5, "anonymity": None},
    "provenance": {"made": "2026-11-17", "study": "heart", "document": "d" * 64, "model": "e" * 64,
                   "software": {"abaton": "0.1.0"}, "tables": {"athens": "f" * 64}},
}  # fmt: skip
FOUND = {
    "floor": 5,
    "study": "heart",
    "records": {"Patient": 88, "Observation": 1234},
    "codes": [
        {"type": "Observation", "code": "http://loinc.org|8480-6", "label": "systolic pressure", "records": "88",
         "years": [2019, 2026], "units": {"mm[Hg]": "75", "no unit": "13"}, "answers": {}, "other_values": {}},
    ],
    "inputs": [
        {"name": "systolic", "state": "filled", "looks_for": "http://loinc.org|8480-6 in mm[Hg]",
         "found": [{"code": "8480-6", "records": "88", "units": [{"unit": "mm[Hg]", "records": "75", "converts": True}],
                    "answers": []}],
         "missing": ["no unit, 13"], "nearest": [{"code": "http://loinc.org|8462-4", "records": "88"}]},
    ],
    "set_aside": {"not valid JSON": 3},
}  # fmt: skip

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


WITHOUT_FIGURES = {
    "privacy": lambda: privacy_page_of(full()),
    "card": lambda: card_page(CARD),
    "inventory": lambda: inventory_page(FOUND, HOSTILE),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [*PAGES, *WITHOUT_FIGURES])
def test_nothing_overlaps_or_is_cut_and_axe_finds_nothing(browser, tmp_path, kind, mode):
    path = tmp_path / "page.html"
    make = WITHOUT_FIGURES.get(kind) or PAGES[kind][0]
    path.write_text(make(), encoding="utf-8")
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


def test_a_phone_shows_the_inventory_without_scrolling_sideways(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(inventory_page(FOUND, "athens"), encoding="utf-8")
    wide = "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    shown_as(browser, "phone")
    try:
        browser.get(path.as_uri())
        assert browser.execute_script(wide) == 0
        cell = (
            "getComputedStyle(document.querySelector('.stacked td[data-label=missing]'), '::before').content"
        )
        assert "missing" in browser.execute_script(f"return {cell}")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("mode", ["phone", "desk"])
def test_a_legend_leaves_room_for_what_stands_above_a_figure(browser, tmp_path, mode):
    line = [(0.0, 0.1), (1.0, 0.5)]
    drawn = accuracy_over_time(
        {"power-law, Non-IID(3x8)": {f"policy {i}": line for i in range(8)}}, title="all"
    )
    path = tmp_path / "page.html"
    path.write_text(figures_page("Experiment", [drawn]), encoding="utf-8")
    shown_as(browser, mode)
    try:
        browser.get(path.as_uri())
        asked = "return document.querySelector('.main-svg .legend') !== null"
        WebDriverWait(browser, 60).until(lambda here: here.execute_script(asked))
        assert faults(browser) == []
        assert browser.find_element("tag name", "h1").text == "all", "one figure gives the page its name"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
