"""Measure the page in Chromium, in processor time of all its processes: python -m tests.citizen.page_speed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.citizen.browsers import chromium_in, pick, shown, text_of
from tests.citizen.centre import open_centre
from tests.citizen.conftest import HERE
from tests.citizen.test_page_in_a_browser import PATIENT, measurement

from abaton.study import load_study

_TICK = os.sysconf("SC_CLK_TCK")


def used(profile: Path) -> float:
    """Return the processor time of all processes of a browser in seconds, finished ones included."""
    ticks = 0
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or str(profile).encode() not in (process / "cmdline").read_bytes():
                continue
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(fields[i]) for i in (11, 12, 13, 14))
    return ticks / _TICK


def document(size: int) -> str:
    """Return a document of at least `size` bytes."""
    entries = [{"fullUrl": "urn:uuid:1", "resource": PATIENT}]
    while len(json.dumps(entries)) < size:
        entries.append({"resource": measurement(len(entries))})
    return json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries})


def ready(browser: Any, profile: Path, address: str) -> float:
    """Return the time until records can be chosen."""
    start = used(profile)
    browser.get(address)
    shown(browser, "records")
    return used(profile) - start


def main() -> None:
    """Measure the first start, starts from the cache, and a document of 130 KB."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "ann.json").write_text(document(130_000))
        (folder / "centre").mkdir()
        with open_centre(folder / "centre", load_study(HERE / "study.toml")) as centre, centre.listening():
            measured: dict[str, Any] = {}
            with chromium_in(folder / "profile") as browser:
                measured["cold"] = ready(browser, folder / "profile", centre.page)
                browser.execute_async_script("navigator.serviceWorker.ready.then(() => arguments[0]())")
                time.sleep(5)  # the browser caches the files meanwhile
            warm = []
            for _ in range(3):
                with chromium_in(folder / "profile") as browser:
                    warm.append(ready(browser, folder / "profile", centre.page))
                    start = used(folder / "profile")
                    pick(browser, folder / "ann.json")
                    shown(browser, "preview")
                    measured.setdefault("shown", []).append(used(folder / "profile") - start)
                    measured["values"] = text_of(browser, "preview-count")
            measured["warm"] = warm
    sys.stdout.write(json.dumps({**measured, "load": os.getloadavg()}) + "\n")


if __name__ == "__main__":
    main()
