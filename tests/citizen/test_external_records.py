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
    give_consent,
    hosts,
    pick,
    press,
    press_link,
    shown,
    text_of,
    until,
)
from tests.citizen.centre import Centre, open_centre
from tests.citizen.external_servers import ExternalServer, jwe, shlink
from tests.citizen.test_page_in_a_browser import CANARY, PATIENT, STORED, measurement

pytestmark = [pytest.mark.browser, pytest.mark.slow]
COVERAGE = {"resourceType": "Coverage", "id": "c", "status": "active"}
RECORDS = [
    PATIENT,
    COVERAGE,
    *(measurement(n) | {"subject": {"reference": "Patient/ann"}} for n in range(18)),
]
BUNDLE = {
    "resourceType": "Bundle",
    "type": "collection",
    "entry": [{"resource": record} for record in RECORDS],
}


@pytest.fixture
def server() -> Iterator[ExternalServer]:
    with ExternalServer(RECORDS).listening() as opened:
        yield opened


@pytest.fixture
def centre(built, study, tmp_path, server) -> Iterator[Centre]:
    """A centre whose study permits one hospital."""
    (tmp_path / "centre").mkdir()
    hospital = {"name": "Pisa General", "fhir": server.fhir, "client": "abaton-page"}
    with open_centre(tmp_path / "centre", study, {"hospitals": (hospital,)}) as opened, opened.listening():
        yield opened


def shows_problem(browser: Any, text: str) -> None:
    until(browser, lambda: text in text_of(browser, "file-problem"), saying=text)


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
    until(browser, lambda: f"{number} records read" in text_of(browser, "file-status"))
    shown(browser, "preview")


def test_a_locked_file_and_its_link_are_opened_on_the_device(built, study, tmp_path):
    key, other = bytes(range(32)), bytes(range(1, 33))
    link = shlink("https://links.example.org/m", key, label="Ann", exp=4_000_000_000)
    body = json.dumps(BUNDLE).encode()
    (tmp_path / "centre").mkdir()
    with (
        open_centre(tmp_path / "centre", study) as centre,
        centre.listening(),
        chromium_in(tmp_path / "profile") as browser,
    ):
        browser.get(centre.page)
        shown(browser, "records")
        assert not browser.find_element("id", "hospitals").is_displayed()
        pick(browser, written(tmp_path, "records.jwe", jwe(body, key, compress=True)))
        shows_problem(browser, "This file is encrypted")
        paste(browser, shlink("https://links.example.org/m", other))
        shows_problem(browser, "does not open this file")
        paste(browser, shlink("https://links.example.org/m", key, exp=1_700_000_000))
        shows_problem(browser, "has expired")
        paste(browser, "shlink:/eyJ1cmwi")
        shows_problem(browser, "link is incomplete")
        paste(browser, link)
        shows_problem(browser, "not allowed to fetch")  # the study does not permit this origin
        pick(browser, written(tmp_path, "no.jwe", jwe(b'{"hello": 1}', key)))
        shows_problem(browser, "contains no health records")
        pick(browser, written(tmp_path, "link.txt", f"https://viewer.example.org/#{link}"))
        shows_problem(browser, "not allowed to fetch")
        pick(browser, written(tmp_path, "bomb.jwe", jwe(b"{" + b" " * 50_000_000, key, compress=True)))
        shows_problem(browser, "larger than 32 MB")
        pick(browser, written(tmp_path, "cut.jwe", jwe(body, key)[:-1]))
        shows_problem(browser, "not encrypted in the expected format")
        pick(browser, tmp_path / "records.jwe")
        read(browser, len(RECORDS))
        assert " of " in text_of(browser, "preview-count")
        assert hosts(browser) == {centre.address}


def test_a_link_is_followed_to_where_the_study_permits_it(centre, server, tmp_path):
    with chromium_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        assert axe(browser) == []
        paste(browser, server.link(flag="P"))
        shows_problem(browser, "has a passcode")
        paste(browser, server.link(flag="P"), "9999")
        shows_problem(browser, "passcode is wrong")
        paste(browser, server.link("/gone", flag="U"))
        shows_problem(browser, "no longer works")
        browser.execute_script("document.getElementById('passcode').value = ''")
        paste(browser, server.link(flag="P"), server.passcode)
        read(browser, len(RECORDS))
        assert axe(browser) == []
        browser.refresh()
        shown(browser, "records")
        paste(browser, server.link("/direct", flag="U"))
        read(browser, len(RECORDS))
        assert hosts(browser) == {centre.address, server.address}
        blocked = browser.execute_async_script(
            "fetch('http://localhost:9/').then(() => arguments[0]('went'), (e) => arguments[0](e.name));"
        )
        assert blocked == "TypeError"
        assert any("Content Security Policy" in line for line in browser.console_messages())


@pytest.mark.parametrize("has_everything", [True, False])
def test_records_come_from_the_hospital_to_the_device_and_nothing_of_the_sign_in_stays(
    centre, server, tmp_path, has_everything
):
    server.has_everything = has_everything
    with chromium_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        browser.execute_async_script("navigator.serviceWorker.ready.then(() => arguments[0]())")
        until(browser, lambda: browser.execute_script("return Boolean(navigator.serviceWorker.controller)"))
        press(browser, browser.find_element("css selector", "#hospital-list button"))
        until(browser, lambda: browser.find_elements("id", "granted"))
        press_link(browser, browser.find_element("id", "granted"))
        read(browser, len(RECORDS) - 1)  # other resource types were not requested
        assert browser.current_url == centre.page
        assert (
            server.scopes == "launch/patient patient/Condition.rs patient/Observation.rs patient/Patient.rs"
        )
        assert sum("everything" in request for request in server.requests) == (3 if has_everything else 1)
        preview = text_of(browser, "sha256")
        give_consent(browser, centre.codes(1)[0])
        shown(browser, "done")
        (content,) = centre.contents()
        assert hashlib.sha256(content).hexdigest() == preview
        assert CANARY.encode() not in content
        stored = browser.execute_async_script(STORED)["text"]
        for secret in (server.token, *server.used):
            assert secret not in stored
        assert len(server.used) == 2
        assert hosts(browser) == {centre.address, server.address}
    stored_bytes = b"".join(path.read_bytes() for path in centre.folder.rglob("*") if path.is_file())
    assert not any(secret.encode() in stored_bytes for secret in (server.token, *server.used))


def test_denied_forged_and_insecure_sign_ins_are_reported(centre, server, tmp_path):
    with chromium_in(tmp_path / "profile") as browser:
        for answer, problem in (
            ("denied", "did not give permission"),
            ("forged", "does not belong to a sign-in"),
        ):
            browser.get(centre.page)
            shown(browser, "records")
            press(browser, browser.find_element("css selector", "#hospital-list button"))
            until(browser, lambda: browser.find_elements("id", "granted"))
            press_link(browser, browser.find_element("id", answer))
            until(browser, lambda: browser.find_elements("id", "file-problem"))
            shows_problem(browser, problem)
        server.methods = ("plain",)
        press(browser, browser.find_element("css selector", "#hospital-list button"))
        shows_problem(browser, "not secure enough")
        browser.get(f"{centre.page}?code=x&state=y")  # a forged link to a response
        shows_problem(browser, "does not belong to a sign-in")
    assert server.used == []
