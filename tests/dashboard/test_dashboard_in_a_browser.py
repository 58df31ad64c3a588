"""The dashboard in a browser: live updates, figures, filters, narrow screens, dark mode, keyboard, no other requests.

With ABATON_PICTURES=FOLDER the last test writes the pictures of the documentation.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from tests.dashboard.example_store import HOSTILE, STUDY, serve_in_thread, train, write_run
from tests.layout_overflow import faults, show_as, violations
from tests.report.test_run_report import row

from abaton.dashboard import DashboardState, ViewerRole, add_token, load_access
from abaton.governance import ConsentAction, ConsentRegistry, metadata, take_snapshot
from abaton.governance.identifiers import registry_pseudonym
from abaton.governance.withdrawal import CascadeStep, WithdrawalCascade
from abaton.store import Database, Store

pytestmark = pytest.mark.browser
HEART, OTHER = "heart-2026", "heart-2026-again"
TRAINED, SMALLER = "heart-2026-raw", "heart-2026-stc"
DESKTOP, PHONE = (1280, 900), (390, 844)
RUNNER = """
import sys, time
from pathlib import Path
from abaton import Federation, Strategy, mlp
from abaton.lab.synthetic_hospitals import tables
federation = Federation(mlp(features=8, classes=2, hidden=(16,)), tables(7, 0.3), Strategy(rounds=int(sys.argv[2])))
federation.run(store=Path(sys.argv[1]), watch=lambda state, event: time.sleep(float(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Yield two dashboards over a store with runs and a governance database, and access tokens."""
    folder = tmp_path_factory.mktemp("site")
    with Store(folder / "store") as store, Database(folder / "governance.db", metadata) as governance:
        names = ("athens", "kos", "pergamon", "trikala", "epidaurus")
        method = {"strategy": {"name": "AsyncDVW(a)"}}
        write_run(
            store,
            HEART,
            rounds=16,
            learners=names,
            study={"title": "Heart failure within a year"},
            method=method,
        )
        write_run(
            store,
            OTHER,
            rounds=12,
            learners=names,
            method={"codec": "stc(sparsity=0.1)"},
            study={"title": "The same, smaller"},
        )
        write_run(store, HOSTILE.replace("/", ""), rounds=3, learners=(HOSTILE, "kos"), status="failed")
        finished = row()
        store.add_run(replace(finished, status="running", result=None))
        store.finish_run(finished.run, "finished", finished.result)
        _govern(governance)
        access = folder / "access.toml"
        tokens = {role: add_token(access, role.value, role) for role in ViewerRole}
        local_dashboard, protected_dashboard = (
            DashboardState(store, governance, poll_seconds=0.2),
            DashboardState(store, governance, load_access(access)),
        )
        with serve_in_thread(local_dashboard) as address, serve_in_thread(protected_dashboard) as closed:
            yield address, closed, tokens, store, governance


def _govern(governance):
    now = datetime.now(UTC)
    registry = ConsentRegistry(governance)
    content = {"study": {"title": STUDY}}
    registry.publish(
        "heart-2026",
        "ab" * 32,
        now - timedelta(days=90),
        content=content,
        ends=now + timedelta(days=300),
        keep_until=None,
    )
    subjects = [registry_pseudonym(bytes(32), "subject", str(number)) for number in range(43)]
    for number, subject in enumerate(subjects):
        until = now - timedelta(days=1) if number < 7 else now + timedelta(days=200)
        registry.enrol({subject: until}, "heart-2026", "ab" * 32, now - timedelta(days=80))
    cascade = WithdrawalCascade(governance, {step: lambda case, when: {} for step in CascadeStep})
    for subject in subjects[-3:]:
        registry.withdraw(subject, "heart-2026", now - timedelta(days=4))
        cascade.open("heart-2026", subject, subject, now - timedelta(days=4))
    for purpose in ConsentAction:
        take_snapshot(registry, "heart-2026", purpose, now)


def open_page(browser, address, *, size=DESKTOP, dark=False, wait_for_figures=False):
    width, height = size
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE},
    )
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(address)
    if wait_for_figures:
        until(browser, "return Number(document.body.dataset.drawn || 0) > 0")


def until(browser, script, seconds=40):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := browser.execute_script(script):
            return result
        time.sleep(0.1)
    raise AssertionError(f"never true: {script}")


def trace(browser, figure, number=0):
    """Return x and y of one drawn trace."""
    script = (
        f"const t = document.querySelector('[data-figure={figure}] .plot').data[{number}];"
        "return [[...t.x], [...t.y]]"
    )
    return browser.execute_script(script)


def pages(site):
    address = site[0]
    return {
        "runs": f"{address}/",
        "run": f"{address}/runs/{HEART}",
        "log": f"{address}/runs/{HEART}/log",
        "compare": f"{address}/compare?run={HEART}&run={OTHER}",
        "governance": f"{address}/governance",
        "sign-in": f"{site[1]}/login",
        "study": f"{address}/runs/s-1",
        "report": f"{address}/runs/s-1/report",
    }


def console_errors(browser):
    return [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]]


NAMES = ("runs", "run", "log", "compare", "governance", "sign-in")


@pytest.mark.parametrize("name", NAMES)
def test_pages_have_no_console_errors_and_no_other_requests(browser, site, name):
    browser.get_log("performance")
    open_page(browser, pages(site)[name], wait_for_figures=name in ("run", "compare"))
    assert console_errors(browser) == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert urls
    assert {urlsplit(url).hostname for url in urls if not url.startswith("data:")} == {"127.0.0.1"}


@pytest.mark.parametrize("mode", ["phone", "desktop, dark", "print"])
@pytest.mark.parametrize("name", [*NAMES, "study", "report"])
def test_nothing_overlaps_or_is_clipped_and_axe_finds_nothing(browser, site, name, mode):
    show_as(browser, mode)
    browser.get(pages(site)[name])
    if name in ("run", "compare", "study", "report"):
        until(browser, "return Number(document.body.dataset.drawn || 0) > 0")
    for summary in browser.find_elements("css selector", "details summary")[:2]:
        browser.execute_script("arguments[0].click()", summary)
    assert faults(browser) == []
    if mode in ("phone", "desktop, dark"):
        assert violations(browser) == []


def test_a_study_shows_its_finding_and_links_its_report(browser, site):
    open_page(browser, pages(site)["study"], wait_for_figures=True)
    assert "predicts ill with an AUROC of 0.800" in browser.find_element("css selector", ".finding").text
    assert "better" in browser.find_element("css selector", ".benefits").text
    browser.find_element("link text", "Report of this run").click()
    until(browser, "return document.querySelectorAll('.plot .main-svg').length >= 2")
    assert console_errors(browser) == []
    browser.find_element("link text", "Back to the run").click()
    until(browser, "return document.getElementById('run') !== null")


def test_dark_mode_by_system_and_by_selection(browser, site):
    background = "return getComputedStyle(document.body).backgroundColor"
    open_page(browser, pages(site)["run"], dark=True, wait_for_figures=True)
    assert browser.execute_script(background) == "rgb(13, 17, 23)"
    tick = "return getComputedStyle(document.querySelector('[data-figure=metric] .xtick text')).fill"
    assert browser.execute_script(tick) == "rgb(163, 175, 187)"
    button = browser.find_element("id", "theme")
    button.click()
    assert button.text == "Theme: light"
    assert browser.execute_script(background) == "rgb(244, 246, 248)"
    until(browser, f"return (() => {{ {tick} }})() === 'rgb(79, 89, 101)'")
    open_page(browser, pages(site)["runs"], dark=True)
    assert browser.execute_script(background) == "rgb(244, 246, 248)"
    button = browser.find_element("id", "theme")
    button.click()
    button.click()
    assert button.text == "Theme: system"


def test_figures_contain_the_data_over_every_axis_and_as_a_table(browser, site):
    open_page(browser, pages(site)["run"], wait_for_figures=True)
    x, y = trace(browser, "metric")
    assert len(x) == len(y) == 81
    assert y[-1] == pytest.approx(1 - 0.5 / 81)
    for axis, last in (("version", 80), ("bytes", 80 * 120), ("wall_time", None)):
        browser.execute_script(f"document.querySelector('input[value={axis}]').click()")
        until(browser, "return document.querySelector('[data-figure=metric] .xtitle') !== null")
        title = {"version": "versions", "bytes": "bytes", "wall_time": "wall-clock"}[axis]
        until(
            browser,
            f"return document.querySelector('[data-figure=metric] .xtitle').textContent.includes('{title}')",
        )
        if last:
            assert trace(browser, "metric")[0][-1] == last
    browser.execute_script(
        "const s = document.getElementById('metric'); s.value = 'loss'; s.dispatchEvent(new Event('change'))"
    )
    until(browser, "return document.querySelector('[data-figure=metric] .ytitle').textContent === 'loss'")
    plots = "return document.querySelectorAll('[data-figure] .plot .svg-container').length"
    assert browser.execute_script(plots) == 7
    bars = browser.execute_script(
        "return document.querySelector('[data-figure=timeline] .plot').data.map(t => [t.name, t.x.length])"
    )
    assert dict(bars)["training"] == 80
    browser.find_element("css selector", "[data-figure=staleness] summary").click()
    rows = until(browser, "return document.querySelectorAll('[data-figure=staleness] tbody tr').length")
    assert rows == 5
    assert "athens" in browser.find_element("css selector", "[data-table=learners]").text


def test_live_updates_arrive_while_a_run_is_running(browser, site):
    store = site[3]
    before = {row.run for row in store.runs()}
    arguments = [sys.executable, "-c", RUNNER, str(store.folder), "400", "0.03"]
    process = subprocess.Popen(arguments)
    try:
        end = time.monotonic() + 60
        while not (names := {row.run for row in store.runs()} - before) and time.monotonic() < end:
            time.sleep(0.1)
        (name,) = names
        open_page(browser, f"{site[0]}/runs/{name}", wait_for_figures=True)
        version = (
            "return Number(document.querySelector('[data-state=version]').textContent.replaceAll(',', ''))"
        )
        points = "return document.querySelector('[data-figure=metric] .plot').data?.[0].x.length ?? 0"
        assert browser.execute_script("return document.querySelector('#status').textContent") == "running"
        seen, points_before = browser.execute_script(version), browser.execute_script(points)
        later = until(browser, f"const n = (() => {{ {version} }})(); return n > {seen} ? n : 0")
        until(browser, f"return (() => {{ {points} }})() > {points_before}")
        assert process.poll() is None  # the updates came while it was running
        assert later > seen
        until(browser, f"return (() => {{ {version} }})() > {later}")
        process.terminate()
        process.wait(30)
        until(browser, "return document.querySelector('#status').textContent === 'interrupted'")
        assert "interrupted" in browser.find_element("id", "notice").text
        assert console_errors(browser) == []
    finally:
        process.kill()
        process.wait()


def test_the_log_is_filtered(browser, site):
    open_page(browser, pages(site)["log"])
    assert len(browser.find_elements("css selector", "tbody tr")) == 50
    browser.find_element("css selector", "input[value=learner_joined]").click()
    browser.find_element("id", "learner").send_keys("kos\n")
    until(browser, "return location.search.includes('learner=kos') && document.readyState === 'complete'")
    assert len(browser.find_elements("css selector", "tbody tr")) == 1
    assert browser.find_element("css selector", "input[value=learner_joined]").is_selected()


def test_runs_are_selected_and_compared(browser, site):
    open_page(browser, pages(site)["runs"])
    for name in (HEART, OTHER):
        browser.find_element("css selector", f"input[value='{name}']").click()
    browser.find_element("css selector", ".actions button").click()
    until(browser, "return Number(document.body.dataset.drawn || 0) > 0")
    assert sorted(len(trace(browser, "metric", number)[0]) for number in (0, 1)) == [61, 81]
    assert "stc(sparsity=0.1)" in browser.find_element("tag name", "main").text


def test_everything_can_be_reached_by_keyboard(browser, site):
    from selenium.webdriver import ActionChains, Keys

    def press(key):
        ActionChains(browser).send_keys(key).perform()
        return browser.execute_script("return document.activeElement.textContent")

    open_page(browser, pages(site)["runs"])
    assert press(Keys.TAB) == "Skip to the content"
    press(Keys.ENTER)
    reached = []
    while HEART not in reached and len(reached) < 30:
        reached.append(press(Keys.TAB))
    assert reached[-1] == HEART
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    press(Keys.ENTER)
    here = f"return location.pathname === '/runs/{HEART}' && Number(document.body.dataset.drawn || 0) > 0"
    until(browser, here)
    browser.execute_script("document.querySelector('input[name=axis]:checked').focus()")
    press(Keys.ARROW_RIGHT)
    has_title = (
        "return document.querySelector('[data-figure=metric] .xtitle').textContent.includes('versions')"
    )
    until(browser, has_title)
    press(Keys.TAB)
    assert browser.execute_script("return document.activeElement.id") == "metric"
    assert press(Keys.TAB).startswith("Values of “Community model”")
    press(Keys.ENTER)
    until(browser, "return document.querySelectorAll('[data-figure=metric] .values td').length > 0")
    press(Keys.TAB)
    assert browser.execute_script("return document.activeElement.getAttribute('role')") == "region"


def test_a_page_has_landmarks_and_names(browser, site):
    open_page(browser, pages(site)["run"], wait_for_figures=True)
    for part in ("header", "nav[aria-label]", "main", "footer", "h1"):
        assert len(browser.find_elements("css selector", part)) == 1, part
    unnamed = (
        "return [...document.querySelectorAll('input, select')].filter(e => !e.labels?.length && !e.ariaLabel"
        " && e.type !== 'hidden').length + [...document.querySelectorAll('.plot')].filter(p =>"
        " !document.getElementById(p.getAttribute('aria-labelledby'))).length"
    )
    assert browser.execute_script(unnamed) == 0


def test_names_are_escaped(browser, site):
    name = HOSTILE.replace("/", "")
    for page in (f"/runs/{quote(name, safe='')}", f"/runs/{quote(name, safe='')}/log", "/"):
        open_page(browser, site[0] + page)
        time.sleep(0.5)
        assert browser.title != "taken"
        assert "<script>" in browser.find_element("tag name", "main").text
        assert browser.execute_script("return document.querySelectorAll('main script, main img').length") == 0
    assert console_errors(browser) == []


def test_a_user_signs_in_acts_and_signs_out(browser, site):
    _, closed, tokens, *_ = site
    open_page(browser, f"{closed}/governance")
    assert browser.current_url.endswith("/login")
    browser.find_element("id", "token").send_keys("wrong\n")
    assert "unknown" in until(browser, "return document.querySelector('[role=alert]')?.textContent")
    browser.get_log("browser")  # the browser logs the refusal
    browser.find_element("id", "token").send_keys(tokens[ViewerRole.DATA_CONTROLLER] + "\n")
    until(browser, "return document.querySelector('.user')?.textContent.includes('data controller')")
    open_page(browser, f"{closed}/governance")
    browser.find_element("css selector", "form[action$=verify] button").click()
    assert "Valid" in until(browser, "return document.querySelector('#audit-status.yes')?.textContent")
    text = browser.find_element("tag name", "main").text
    assert "30–34" in text  # in force: 33 of 43
    assert "0–4" in text
    assert "4 days" in text
    assert console_errors(browser) == []
    browser.find_element("css selector", "form[action$=logout] button").click()
    until(browser, "return location.pathname === '/login'")
    open_page(browser, f"{closed}/")
    assert browser.current_url.endswith("/login")


@pytest.fixture
def gallery(site, tmp_path):
    """Yield the address of a dashboard over trained runs, one of them interrupted."""
    with Store(tmp_path / "gallery") as store:
        write_run(store, "heart-2026-pilot", rounds=9, status="running", study={"title": f"{STUDY}, pilot"})
        train(store, TRAINED, "raw")
        train(store, SMALLER, "error_feedback | stc(sparsity=0.1)")
        with serve_in_thread(DashboardState(store, site[4])) as address:
            yield address


def test_pictures_for_the_documentation(browser, site, gallery):
    """Capture every page; write the pictures only with ABATON_PICTURES."""
    folder = os.environ.get("ABATON_PICTURES")
    run = f"{gallery}/runs/{TRAINED}"
    both = f"{gallery}/compare?run={TRAINED}&run={SMALLER}"
    shown = {"runs": f"{gallery}/", "run": run, "log": f"{run}/log", "compare": both}
    shown |= {"governance": f"{gallery}/governance", "sign-in": f"{site[1]}/login"}
    shots = {
        **{name: (shown[name], DESKTOP, False) for name in NAMES},
        "run-dark": (run, DESKTOP, True),
        "run-phone": (run, PHONE, False),
    }
    for name, (address, size, dark) in shots.items():
        open_page(
            browser,
            address,
            size=size,
            dark=dark,
            wait_for_figures=name.startswith(("run-", "compare")) or name == "run",
        )
        until(browser, "return document.fonts.status === 'loaded'")
        tall = browser.execute_script("return document.documentElement.scrollHeight")
        height = min(tall, 3300 if name.startswith("run") else 1400) if size == DESKTOP else 1700
        scale = 0.5 if height > 2000 else 0.75
        clip = {"x": 0, "y": 0, "width": size[0], "height": height, "scale": scale}
        parameters = {"captureBeyondViewport": True, "format": "webp", "quality": 72, "clip": clip}
        picture = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", parameters)["data"])
        assert 2_000 < len(picture) < 150_000
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{name}.webp").write_bytes(picture)
