"""Create the screenshots of docs/howto/citizen.md: python -m tests.citizen.screenshots FOLDER (after make citizen)."""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.citizen.browsers import chromium_in, give_consent, pick, press, shown, text_of, until
from tests.citizen.centre import open_centre
from tests.citizen.conftest import HERE
from tests.citizen.test_page_in_a_browser import ANN

from abaton.study import load_study


def capture(browser: Any, target: Path, element: str, height: int = 844) -> None:
    """Capture the page from an element on, with the width of a phone."""
    script = "const e = document.getElementById(arguments[0]); return e.getBoundingClientRect().top + window.scrollY"
    top = max(browser.execute_script(script, element) - 8, 0)
    size = {"width": 390, "height": height, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    clip = {"x": 0, "y": top, "width": 390, "height": height, "scale": 1}
    options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    screenshot = browser.execute_cdp_cmd("Page.captureScreenshot", options)
    target.write_bytes(base64.b64decode(screenshot["data"]))


def main(out: Path) -> None:
    """Go through the page and capture each step."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "ann.json").write_text(json.dumps(ANN).replace("Zyxwvut-Canary", "Rossi"))
        (folder / "centre").mkdir()
        study = load_study(HERE / "study.toml")
        with (
            open_centre(folder / "centre", study) as centre,
            centre.listening(),
            chromium_in(folder / "profile") as browser,
        ):
            size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(centre.page)
            shown(browser, "records")
            capture(browser, out / "citizen-1-study.png", "title")
            pick(browser, folder / "ann.json")
            shown(browser, "preview")
            capture(browser, out / "citizen-records.png", "records")
            browser.execute_script("document.querySelector('#topics details').open = true")
            until(browser, lambda: "Rossi" in text_of(browser, "topics"))
            capture(browser, out / "citizen-2-preview.png", "preview")
            shown(browser, "consent")
            capture(browser, out / "citizen-3-consent.png", "consent", 760)
            give_consent(browser, centre.codes(1)[0])
            shown(browser, "done")
            capture(browser, out / "citizen-4-done.png", "done", 700)
            press(browser, shown(browser, "withdraw"))
            press(browser, shown(browser, "withdraw"))
            until(browser, lambda: "deleted" in text_of(browser, "withdraw-status"))
            capture(browser, out / "citizen-5-left.png", "mine", 640)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
