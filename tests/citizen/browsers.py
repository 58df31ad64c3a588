"""Browsers for the tests of the page, and the actions of a user: press, choose a file, give consent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.citizen.firefox import firefox_in


@contextmanager
def chromium_in(profile: Path) -> Iterator[Any]:
    """Chromium with its own profile, which can be restarted; downloads go beside it."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with chromedriver is installed (Debian: chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    arguments = (
        "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --lang=en"
    )
    for argument in (*arguments.split(), f"--user-data-dir={profile}", "--window-size=390,844"):
        options.add_argument(argument)
    settings = {"intl.accept_languages": "en", "download.default_directory": str(profile.parent)}
    options.add_experimental_option("prefs", settings)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = _chromium(webdriver.Chrome)(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    browser.set_script_timeout(60)
    try:
        yield browser
    finally:
        browser.quit()


def _chromium(driver: type) -> type:
    """Extend Selenium's Chromium with what the tests need from every browser."""

    class Chromium(driver):  # type: ignore[misc]
        def viewport(self, width: int = 390, height: int = 844) -> None:
            """Make the window as wide as some api."""
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
            self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

        def keys(self, text: str) -> None:
            """Press keys, wherever the focus is."""
            self.switch_to.active_element.send_keys(text)

        def requested_urls(self) -> list[str]:
            """Every address that the page asked for something."""
            messages = [json.loads(entry["message"])["message"] for entry in self.get_log("performance")]
            sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
            return [params["request"]["url"] for params in sent]

        def console_messages(self) -> list[str]:
            """What the browser wrote into its console."""
            return [entry["message"] for entry in self.get_log("browser")]

    return Chromium


def until(browser: Any, what: Callable[[], Any], seconds: int = 90, saying: str = "") -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds, poll_frequency=0.1).until(lambda _: what(), saying)


def shown(browser: Any, name: str) -> Any:
    """Wait for an element to appear and return it."""
    return until(browser, lambda: (element := browser.find_element("id", name)).is_displayed() and element)


def text_of(browser: Any, name: str) -> str:
    return str(browser.find_element("id", name).text)


def press(browser: Any, element: Any) -> None:
    """Press an element with the keyboard."""
    browser.execute_script("arguments[0].focus()", element)
    element.send_keys(" ")


def press_link(browser: Any, element: Any) -> None:
    browser.execute_script("arguments[0].focus()", element)
    element.send_keys("\ue007")


def read_if_present(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def pick(browser: Any, file: Path) -> None:
    browser.find_element("id", "file").send_keys(str(file))


def give_consent(browser: Any, code: str) -> None:
    shown(browser, "consent")
    boxes = browser.find_elements("css selector", "#statements input")
    assert not any(box.is_selected() for box in boxes)
    browser.find_element("id", "code").send_keys(code)
    for box in boxes:
        assert not browser.find_element("id", "send").is_enabled()
        press(browser, box)
    press(browser, browser.find_element("id", "send"))


def axe(browser: Any) -> list[Any]:
    spec = find_spec("axe_core_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe-core-python is missing: install abaton[dev]")
    browser.execute_script(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    result = browser.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run(document, {resultTypes: ['violations']}).then(done)"
    )
    return [
        (violation["id"], [node["html"][:200] for node in violation["nodes"][:3]])
        for violation in result["violations"]
    ]


def fits(browser: Any, width: int) -> bool:
    browser.viewport(width)
    is_inside = browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.viewport()
    return bool(is_inside)


def hosts(browser: Any) -> set[str]:
    """Return all origins that the browser requested."""
    ours = [url for url in browser.requested_urls() if not url.startswith(("blob:", "data:", "chrome"))]
    return {"/".join(url.split("/")[:3]) for url in ours}


BROWSERS = {"chromium": chromium_in, "firefox": firefox_in}
