"""Take the pictures of docs/howto/citizen.md anew: python -m tests.citizen.pictures FOLDER (after make citizen)."""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.citizen.browsers import chromium_in, pick, press, say_yes, shown, until, words
from tests.citizen.centre import house
from tests.citizen.conftest import HERE
from tests.citizen.test_page_in_a_browser import ANN

from abaton.study import load_study


def taken(browser: Any, target: Path, element: str, height: int = 844) -> None:
    """A picture of the page from an element on, as wide as a phone."""
    script = "const e = document.getElementById(arguments[0]); return e.getBoundingClientRect().top + window.scrollY"
    top = max(browser.execute_script(script, element) - 8, 0)
    size = {"width": 390, "height": height, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    clip = {"x": 0, "y": top, "width": 390, "height": height, "scale": 1}
    asked = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    made = browser.execute_cdp_cmd("Page.captureScreenshot", asked)
    target.write_bytes(base64.b64decode(made["data"]))


def main(out: Path) -> None:
    """Once through the page, with a picture of each step."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "ann.json").write_text(json.dumps(ANN).replace("Zyxwvut-Canary", "Rossi"))
        (folder / "centre").mkdir()
        study = load_study(HERE / "study.toml")
        with (
            house(folder / "centre", study) as centre,
            centre.listening(),
            chromium_in(folder / "profile") as browser,
        ):
            size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(centre.page)
            shown(browser, "records")
            taken(browser, out / "citizen-1-study.png", "title")
            pick(browser, folder / "ann.json")
            shown(browser, "preview")
            taken(browser, out / "citizen-records.png", "records")
            browser.execute_script("document.querySelector('#topics details').open = true")
            until(browser, lambda: "Rossi" in words(browser, "topics"))
            taken(browser, out / "citizen-2-preview.png", "preview")
            shown(browser, "consent")
            taken(browser, out / "citizen-3-consent.png", "consent", 760)
            say_yes(browser, centre.codes(1)[0])
            shown(browser, "done")
            taken(browser, out / "citizen-4-done.png", "done", 700)
            press(browser, shown(browser, "withdraw"))
            press(browser, shown(browser, "withdraw"))
            until(browser, lambda: "deleted" in words(browser, "leave-told"))
            taken(browser, out / "citizen-5-left.png", "mine", 640)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
