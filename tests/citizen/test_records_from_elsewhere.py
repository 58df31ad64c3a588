"""Records from a SMART Health Link and from a hospital (SMART on FHIR), in a real browser."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.citizen.browsers import (
    axe,
    chromium_in,
    hosts,
    pick,
    press,
    press_link,
    say_yes,
    shown,
    until,
    words,
)
from tests.citizen.centre import House, house
from tests.citizen.elsewhere import Elsewhere, jwe, shlink
from tests.citizen.test_page_in_a_browser import CANARY, PATIENT, STORED, measurement

pytestmark = [pytest.mark.browser, pytest.mark.slow]
COVERAGE = {"resourceType": "Coverage", "id": "c", "status": "active"}
RECORDS = [
    PATIENT,
    COVERAGE,
    *(measurement(n) | {"subject": {"reference": "Patient/ann"}} for n in range(18)),
]
WHOLE = {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": each} for each in RECORDS]}


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere(RECORDS).listening() as made:
        yield made


@pytest.fixture
def centre(built, study, tmp_path, elsewhere) -> Iterator[House]:
    """A centre whose study permits one hospital."""
    (tmp_path / "centre").mkdir()
    hospital = {"name": "Pisa General", "fhir": elsewhere.fhir, "client": "abaton-page"}
    with house(tmp_path / "centre", study, {"hospitals": (hospital,)}) as made, made.listening():
        yield made


def told(browser: Any, text: str) -> None:
    until(browser, lambda: text in words(browser, "file-problem"), saying=text)


def paste(browser: Any, link: str, passcode: str = "") -> None:
    browser.execute_script("document.querySelector('#records details').open = true")
    for name, value in (("link", link), ("passcode", passcode)):
        if value:
            entry = shown(browser, name)
            entry.clear()
            entry.send_keys(value)
    press(browser, browser.find_element("id", "link-button"))


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(browser: Any, number: int) -> None:
    until(browser, lambda: f"{number} records were read" in words(browser, "file-taken"))
    shown(browser, "preview")


def test_a_locked_file_and_its_link_are_opened_on_the_device(built, study, tmp_path):
    key, other = bytes(range(32)), bytes(range(1, 33))
    link = shlink("https://keeper.example.org/m", key, label="Ann", exp=4_000_000_000)
    body = json.dumps(WHOLE).encode()
    (tmp_path / "centre").mkdir()
    with (
        house(tmp_path / "centre", study) as centre,
        centre.listening(),
        chromium_in(tmp_path / "profile") as browser,
    ):
        browser.get(centre.page)
        shown(browser, "records")
        assert not browser.find_element("id", "hospitals").is_displayed()
        pick(browser, written(tmp_path, "records.jwe", jwe(body, key, pack=True)))
        told(browser, "This file is locked")
        paste(browser, shlink("https://keeper.example.org/m", other))
        told(browser, "does not open this file")
        paste(browser, shlink("https://keeper.example.org/m", key, exp=1_700_000_000))
        told(browser, "has run out")
        paste(browser, "shlink:/eyJ1cmwi")
        told(browser, "not a whole link")
        paste(browser, link)
        told(browser, "may not fetch anything")  # the keeper is not named by the study
        pick(browser, written(tmp_path, "no.jwe", jwe(b'{"hello": 1}', key)))
        told(browser, "does not hold health records")
        pick(browser, written(tmp_path, "link.txt", f"https://viewer.example.org/#{link}"))
        told(browser, "may not fetch anything")
        pick(browser, written(tmp_path, "bomb.jwe", jwe(b"{" + b" " * 50_000_000, key, pack=True)))
        told(browser, "too large")
        pick(browser, written(tmp_path, "cut.jwe", jwe(body, key)[:-1]))
        told(browser, "not a whole link, or the file")
        pick(browser, tmp_path / "records.jwe")
        read(browser, len(RECORDS))
        assert words(browser, "preview-number").startswith("Of ")
        assert hosts(browser) == {centre.address}


def test_a_link_is_followed_to_where_the_study_permits_it(centre, elsewhere, tmp_path):
    with chromium_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        assert axe(browser) == []
        paste(browser, elsewhere.link(flag="P"))
        told(browser, "has a passcode")
        paste(browser, elsewhere.link(flag="P"), "9999")
        told(browser, "passcode is wrong")
        paste(browser, elsewhere.link("/gone", flag="U"))
        told(browser, "nothing at this link any more")
        browser.execute_script("document.getElementById('passcode').value = ''")
        paste(browser, elsewhere.link(flag="P"), elsewhere.passcode)
        read(browser, len(RECORDS))
        assert axe(browser) == []
        browser.refresh()
        shown(browser, "records")
        paste(browser, elsewhere.link("/direct", flag="U"))
        read(browser, len(RECORDS))
        assert hosts(browser) == {centre.address, elsewhere.address}
        blocked = browser.execute_async_script(
            "fetch('http://localhost:9/').then(() => arguments[0]('went'), (e) => arguments[0](e.name));"
        )
        assert blocked == "TypeError"
        assert any("Content Security Policy" in line for line in browser.complaints())


@pytest.mark.parametrize("has_everything", [True, False])
def test_records_come_from_the_hospital_to_the_device_and_nothing_of_the_sign_in_stays(
    centre, elsewhere, tmp_path, has_everything
):
    elsewhere.has_everything = has_everything
    with chromium_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        browser.execute_async_script("navigator.serviceWorker.ready.then(() => arguments[0]())")
        until(browser, lambda: browser.execute_script("return Boolean(navigator.serviceWorker.controller)"))
        press(browser, browser.find_element("css selector", "#hospital-list button"))
        until(browser, lambda: browser.find_elements("id", "yes"))
        press_link(browser, browser.find_element("id", "yes"))
        read(browser, len(RECORDS) - 1)  # what the study does not read was not asked for
        assert browser.current_url == centre.page
        assert (
            elsewhere.scopes
            == "launch/patient patient/Condition.rs patient/Observation.rs patient/Patient.rs"
        )
        assert sum("everything" in each for each in elsewhere.asked) == (3 if has_everything else 1)
        preview = words(browser, "sha256")
        say_yes(browser, centre.codes(1)[0])
        shown(browser, "done")
        (content,) = centre.opened()
        assert hashlib.sha256(content).hexdigest() == preview
        assert CANARY.encode() not in content
        stored = browser.execute_async_script(STORED)["text"]
        for secret in (elsewhere.token, *elsewhere.used):
            assert secret not in stored
        assert len(elsewhere.used) == 2
        assert hosts(browser) == {centre.address, elsewhere.address}
    kept = b"".join(path.read_bytes() for path in centre.folder.rglob("*") if path.is_file())
    assert not any(secret.encode() in kept for secret in (elsewhere.token, *elsewhere.used))


def test_a_no_at_the_hospital_a_forged_answer_and_an_unsafe_sign_in_are_told(centre, elsewhere, tmp_path):
    with chromium_in(tmp_path / "profile") as browser:
        for answer, words_told in (("no", "did not say yes"), ("forged", "does not belong to a sign-in")):
            browser.get(centre.page)
            shown(browser, "records")
            press(browser, browser.find_element("css selector", "#hospital-list button"))
            until(browser, lambda: browser.find_elements("id", "yes"))
            press_link(browser, browser.find_element("id", answer))
            until(browser, lambda: browser.find_elements("id", "file-problem"))
            told(browser, words_told)
        elsewhere.methods = ("plain",)
        press(browser, browser.find_element("css selector", "#hospital-list button"))
        told(browser, "not safe enough")
        browser.get(f"{centre.page}?code=x&state=y")  # somebody else's link to an answer
        told(browser, "does not belong to a sign-in")
    assert elsewhere.used == []
