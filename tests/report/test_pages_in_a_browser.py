"""Reports and comparisons in a browser: figures contain the data, nothing is fetched, narrow screens suffice."""

from __future__ import annotations

import json

import pytest
from selenium.webdriver.support.wait import WebDriverWait
from tests.layout_overflow import MODES, faults, show_as, violations
from tests.report.test_performance_tables import DESCRIPTION, PERFORMANCE, described_row
from tests.report.test_privacy_report import full
from tests.report.test_privacy_report import page as privacy_page_of
from tests.report.test_privacy_report_in_a_browser import HOSTILE
from tests.report.test_run_comparison import lab
from tests.report.test_run_report import EVENTS, explained_row

from abaton.report import (
    compare_runs,
    make_run_report,
    render_card_html,
    render_comparison,
    render_figures,
    render_lab_report,
    render_profile,
    render_run_report,
)
from abaton.report.experiment_figures import accuracy_over_time

pytestmark = pytest.mark.browser

_ESTIMATE = {"value": 0.832, "low": 0.683, "high": 0.944}
_METRICS = ("auroc", "auprc", "brier", "calibration slope", "calibration intercept", "sensitivity")
CARD = {
    "title": HOSTILE,
    "run": "heart-failure-four-hospitals-20261117-121120-dde4",
    "intended_use": {"question": "Who falls ill?", "outcome": "ill", "purpose": "research", "centre": None,
                     "not_for": "decisions about a patient; " * 4},
    "model": {"architecture": "mlp", "parameters": 1234, "columns": [f"input_number_{i}" for i in range(30)],
              "classes": ["no", "yes"]},
    "cohort": [{"site": "athens", "read": 208, "eligible": 208, "consented": 178, "kept": 178, "rows": "≥5"}],
    "performance": [
        {"group": "all sites", "subjects": 74, "sites": 4, "metrics": dict.fromkeys(_METRICS, _ESTIMATE)},
        {"group": "age: 70 and above", "subjects": 5, "sites": 4, "metrics": None},
    ],
    "calibration": {"points": [{"predicted": 0.1, "observed": _ESTIMATE}],
                    "recalibration": {"slope": 1.2, "intercept": -0.1, "status": "fitted", "test": None}},
    "permutation_importance": [{"input": "systolic", "importance": _ESTIMATE}],
    "personal_models": [{"site": "athens", "model": "fine-tune", "subjects": 34, "gain_over_local_only": _ESTIMATE}],
    "limitations": ["Too few subjects to evaluate the model for: " + ", ".join(["age: 70 and above"] * 9)],
    "privacy": {"records": "de-identified at the sites", "min_cell_count": 5, "anonymity": None},
    "provenance": {"created": "2026-11-17", "study": "heart", "document": "d" * 64, "model": "e" * 64,
                   "software": {"abaton": "0.1.0"}, "tables": {"athens": "f" * 64}},
}  # fmt: skip
PROFILE = {
    "min_cell_count": 5,
    "study": "heart",
    "records": {"Patient": 88, "Observation": 1234},
    "codes": [
        {"type": "Observation", "code": "http://loinc.org|8480-6", "label": "systolic pressure", "records": "88",
         "years": [2019, 2026], "units": {"mm[Hg]": "75", "no unit": "13"}, "coded_values": {}, "other_values": {}},
    ],
    "inputs": [
        {"name": "systolic", "state": "filled", "required_codes": "http://loinc.org|8480-6 in mm[Hg]",
         "codes": [{"code": "8480-6", "records": "88", "coded_values": [],
                    "units": [{"unit": "mm[Hg]", "records": "75", "is_convertible": True}]}],
         "missing": ["no unit, 13"], "closest_codes": [{"code": "http://loinc.org|8462-4", "records": "88"}]},
    ],
    "skipped": {"not valid JSON": 3},
}  # fmt: skip

PAGES = {
    "study": (lambda: render_run_report(make_run_report(explained_row(), EVENTS)), [0.5, 0.8]),
    "exact": (lambda: render_run_report(make_run_report(described_row(), EVENTS)), [0.5, 0.8]),
    "lab": (lambda: render_lab_report(lab(HOSTILE)), [0.5, 0.7, 0.8]),
    "compared": (
        lambda: render_comparison(compare_runs([lab(HOSTILE), lab("two", seed=2)])),
        [0.5, 0.7, 0.8],
    ),
}


@pytest.mark.parametrize("kind", PAGES)
def test_figures_hold_the_data_and_nothing_is_fetched(browser, tmp_path, kind):
    make, values = PAGES[kind]
    path = tmp_path / "page.html"
    path.write_text(make(), encoding="utf-8")
    browser.set_window_size(1200, 900)
    browser.get_log("performance")
    browser.get(path.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(element => element.open = true)")
    ready = "return document.querySelector('[data-figure=bytes] .main-svg') !== null"
    WebDriverWait(browser, 60).until(lambda here: here.execute_script(ready))
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    assert "taken" not in browser.title
    for axis in ("version", "timestamp", "bytes"):
        plot = f"const f = document.querySelector('[data-figure={axis}] .plot');"
        assert browser.execute_script(f"{plot} return Array.from(f.data[0].y)") == values
        inside = (
            f"{plot} return f.querySelector('.main-svg').getBoundingClientRect().width <= f.clientWidth + 1"
        )
        assert browser.execute_script(inside)


WITHOUT_FIGURES = {
    "privacy": lambda: privacy_page_of(full()),
    "card": lambda: render_card_html(CARD),
    "exact card": lambda: render_card_html(
        {
            **CARD,
            "exact_performance": PERFORMANCE,
            "events_per_parameter": DESCRIPTION["events_per_parameter"],
        }
    ),
    "profile": lambda: render_profile(PROFILE, HOSTILE),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [*PAGES, *WITHOUT_FIGURES])
def test_nothing_overlaps_or_is_clipped_and_axe_finds_nothing(browser, tmp_path, kind, mode):
    path = tmp_path / "page.html"
    make = WITHOUT_FIGURES.get(kind) or PAGES[kind][0]
    path.write_text(make(), encoding="utf-8")
    show_as(browser, mode)
    try:
        browser.get(path.as_uri())
        assert faults(browser) == []
        if mode != "print":  # closed details are opened, and drawn then
            browser.execute_script(
                "document.querySelectorAll('details').forEach(element => element.open = true)"
            )
            is_drawn = (
                "return [...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))"
            )
            WebDriverWait(browser, 60).until(lambda here: here.execute_script(is_drawn))
            assert faults(browser) == []
        if mode in ("phone", "desktop, dark"):
            assert violations(browser) == []
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_finding_is_on_the_first_screen(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGES["study"][0](), encoding="utf-8")
    browser.set_window_size(1280, 900)
    browser.get(path.as_uri())
    bottom = "return document.querySelector('.finding').getBoundingClientRect().bottom"
    assert browser.execute_script(bottom) < 600
    assert not browser.find_element("css selector", ".technical").get_property("open")


def test_a_phone_shows_the_profile_without_horizontal_scrolling(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render_profile(PROFILE, "athens"), encoding="utf-8")
    overflowing = (
        "return [...document.querySelectorAll('.scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).length"
    )
    show_as(browser, "phone")
    try:
        browser.get(path.as_uri())
        assert browser.execute_script(overflowing) == 0
        cell = (
            "getComputedStyle(document.querySelector('.stacked td[data-label=missing]'), '::before').content"
        )
        assert "missing" in browser.execute_script(f"return {cell}")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("mode", ["phone", "desktop"])
def test_a_legend_does_not_overlap_subplot_titles(browser, tmp_path, mode):
    line = [(0.0, 0.1), (1.0, 0.5)]
    figure = accuracy_over_time(
        {"power-law, Non-IID(3x8)": {f"strategy {i}": line for i in range(8)}}, title="all"
    )
    path = tmp_path / "page.html"
    path.write_text(render_figures("Experiment", [figure]), encoding="utf-8")
    show_as(browser, mode)
    try:
        browser.get(path.as_uri())
        has_legend = "return document.querySelector('.main-svg .legend') !== null"
        WebDriverWait(browser, 60).until(lambda here: here.execute_script(has_legend))
        assert faults(browser) == []
        assert browser.find_element("tag name", "h1").text == "all", (
            "a single figure gives the page its title"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
