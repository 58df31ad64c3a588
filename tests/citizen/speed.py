"""Measure the page in Chromium, in processor time of all its processes: python -m tests.citizen.speed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.citizen.browsers import chromium_in, pick, shown, words
from tests.citizen.centre import house
from tests.citizen.conftest import HERE
from tests.citizen.test_page_in_a_browser import PATIENT, measurement

from abaton.study import load_study

_TICK = os.sysconf("SC_CLK_TCK")


def used(profile: Path) -> float:
    """The processor time so far of every process of a browser, in seconds; also of those that have ended."""
    ticks = 0
    for place in Path("/proc").iterdir():
        try:
            if not place.name.isdigit() or str(profile).encode() not in (place / "cmdline").read_bytes():
                continue
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(fields[i]) for i in (11, 12, 13, 14))
    return ticks / _TICK


def document(size: int) -> str:
    """Records of about so many bytes."""
    entries = [{"fullUrl": "urn:uuid:1", "resource": PATIENT}]
    while len(json.dumps(entries)) < size:
        entries.append({"resource": measurement(len(entries))})
    return json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries})


def ready(browser: Any, profile: Path, address: str) -> float:
    """The time until records can be chosen."""
    start = used(profile)
    browser.get(address)
    shown(browser, "records")
    return used(profile) - start


def main() -> None:
    """The first time, from what the device keeps, and a document of 130 KB."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "ann.json").write_text(document(130_000))
        (folder / "centre").mkdir()
        with house(folder / "centre", load_study(HERE / "study.toml")) as centre, centre.listening():
            told: dict[str, Any] = {}
            with chromium_in(folder / "profile") as browser:
                told["cold"] = ready(browser, folder / "profile", centre.page)
                browser.execute_async_script("navigator.serviceWorker.ready.then(() => arguments[0]())")
                time.sleep(5)  # the device keeps the files meanwhile
            warm = []
            for _ in range(3):
                with chromium_in(folder / "profile") as browser:
                    warm.append(ready(browser, folder / "profile", centre.page))
                    start = used(folder / "profile")
                    pick(browser, folder / "ann.json")
                    shown(browser, "preview")
                    told.setdefault("shown", []).append(used(folder / "profile") - start)
                    told["values"] = words(browser, "preview-number")
            told["warm"] = warm
    sys.stdout.write(json.dumps({**told, "load": os.getloadavg()}) + "\n")


if __name__ == "__main__":
    main()
