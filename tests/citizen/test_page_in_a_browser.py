"""The citizen page in a browser: all steps, lost connections and invalid files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.citizen.browsers import (
    BROWSERS,
    axe,
    fits,
    give_consent,
    hosts,
    pick,
    press,
    press_link,
    read_if_present,
    shown,
    text_of,
    until,
)
from tests.citizen.centre import Centre, now, open_centre

from abaton.site.consent_gate import publish
from abaton.study import Study

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CANARY = "Zyxwvut-Canary"
MEASURED = {"value": 120, "unit": "mmHg", "system": "http://unitsofmeasure.org", "code": "mm[Hg]"}
PATIENT = {
    "resourceType": "Patient",
    "id": "ann",
    "birthDate": "1980-02-03",
    "gender": "female",
    "name": [{"family": CANARY, "given": ["Ann"]}],
    "telecom": [{"system": "api", "value": "+39 555 0199"}],
}


def measurement(number: int) -> dict[str, Any]:
    return {
        "resourceType": "Observation",
        "id": f"o{number}",
        "status": "final",
        "subject": {"reference": "urn:uuid:1"},
        "code": {"coding": [{"system": "http://loinc.org", "code": "8480-6", "display": "Systolic"}]},
        "effectiveDateTime": f"2024-0{number % 9 + 1}-11",
        "note": [{"text": f"seen by Dr {CANARY}"}],
        "valueQuantity": MEASURED | {"value": 120 + number},
    }


ANN = {
    "resourceType": "Bundle",
    "type": "collection",
    "entry": [
        {"fullUrl": "urn:uuid:1", "resource": PATIENT},
        *({"resource": measurement(number)} for number in range(60)),
    ],
}


STORED = """
const done = arguments[arguments.length - 1];
const answer = (request) => new Promise((ok) => { request.onsuccess = () => ok(request.result); });
(async () => {
  const database = await answer(indexedDB.open("abaton"));
  const rows = await answer(database.transaction("studies").objectStore("studies").getAll());
  const stored = rows.map(({ keys, ...rest }) => rest);
  let text = JSON.stringify({ stored, ...localStorage, ...sessionStorage });
  for (const name of await caches.keys())
    for (const request of await (await caches.open(name)).keys()) text += request.url;
  const refused = [], extractable = [];
  for (const { keys: { signing, sealing, root } } of rows) {
    extractable.push(signing.privateKey.extractable, sealing.privateKey.extractable, root.extractable);
    for (const [key, form] of [[signing.privateKey, "pkcs8"], [signing.privateKey, "jwk"], [root, "raw"],
                               [sealing.privateKey, "pkcs8"]])
      await crypto.subtle.exportKey(form, key)
        .then(() => refused.push("taken out"), (error) => refused.push(error.name));
  }
  done({ text, refused, extractable, stored });
})();
"""


@pytest.fixture(params=BROWSERS)
def browser_in(request) -> Callable[[Path], Any]:
    """Return a function that starts a browser in a profile: Chromium, then Firefox."""
    return BROWSERS[request.param]


@pytest.fixture
def ann(tmp_path) -> Path:
    path = tmp_path / "ann.json"
    path.write_text(json.dumps(ANN))
    return path


@pytest.fixture
def centre(built, study, tmp_path) -> Iterator[Centre]:
    (tmp_path / "centre").mkdir()
    with open_centre(tmp_path / "centre", study, chunk_bytes=4096) as opened:
        yield opened


def test_from_the_study_description_to_the_deletion_receipt(browser_in, centre, ann, tmp_path):
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        assert axe(browser) == []
        pick(browser, ann)
        shown(browser, "preview")
        assert browser.switch_to.active_element.get_attribute("id") == "eligible-title"
        assert " of 72" in text_of(browser, "preview-count")
        assert CANARY not in text_of(browser, "topics")
        press(browser, browser.find_element("id", "only-released"))
        released = text_of(browser, "match-count")
        browser.find_element("id", "search").send_keys(CANARY)
        until(browser, lambda: text_of(browser, "match-count").startswith("0 "))  # it is not sent
        press(browser, browser.find_element("id", "only-released"))
        until(browser, lambda: CANARY in text_of(browser, "topics"))
        assert released != text_of(browser, "match-count")
        assert "Removed:" in text_of(browser, "topics")
        assert axe(browser) == []
        assert fits(browser, 360)
        assert fits(browser, 320)
        preview = text_of(browser, "sha256")
        give_consent(browser, centre.codes(1)[0])
        shown(browser, "done")
        (content,) = centre.contents()
        assert hashlib.sha256(content).hexdigest() == preview
        assert CANARY.encode() not in content
        assert axe(browser) == []
        press_link(browser, browser.find_element("id", "copy"))
        copy = json.loads(until(browser, lambda: read_if_present(tmp_path / "my-consent.json")))
        assert (copy["sha256"], copy["document"]) == (preview, centre.study.hash)
        assert len(copy["statements"]) == 4
        assert copy["consents"][1]["policy"][1]["uri"] == f"urn:sha256:{centre.study.hash}"
        assert copy["receipt"]["kind"] == "receipt"
        stored = browser.execute_async_script(STORED)
        # Keys for derivation have no export format; browsers report this in one of two ways.
        root = stored["refused"].pop(2)
        assert root in ("InvalidAccessError", "NotSupportedError")
        assert stored["refused"] == ["InvalidAccessError"] * 3
        assert stored["extractable"] == [False] * 3
        assert CANARY not in stored["text"]
        assert "Ann" not in stored["text"]
        enrolled = stored["stored"][0]["copies"]["enrolment"]["body"]
        assert enrolled["page"] == browser.find_element("id", "build").text
        press(browser, shown(browser, "withdraw"))
        press(browser, shown(browser, "withdraw"))
        until(browser, lambda: "deleted" in text_of(browser, "withdraw-status"))
        assert "deleted transfers: 1" in text_of(browser, "withdraw-status")
        assert "You withdrew" in text_of(browser, "mine-list")
        assert browser.console_messages() == []
        assert hosts(browser) == {centre.address}
    assert centre.contents() == []
    assert list((centre.folder / "inbox").iterdir()) == []
    stored_bytes = b"".join(path.read_bytes() for path in centre.folder.rglob("*") if path.is_file())
    assert b"mm[Hg]" in content
    assert b"mm[Hg]" not in stored_bytes
    assert b"127.0.0.1" not in stored_bytes.replace(centre.address.encode(), b"")


def test_the_code_on_paper_works_on_another_device(browser_in, centre, ann, tmp_path):
    with centre.listening():
        with browser_in(tmp_path / "api") as browser:
            browser.get(centre.page)
            shown(browser, "records")
            pick(browser, ann)
            give_consent(browser, centre.codes(1)[0])
            shown(browser, "done")
            code = text_of(browser, "paper-code")
        assert len(centre.contents()) == 1
        with browser_in(tmp_path / "library") as browser:
            browser.get(centre.page)
            entry = shown(browser, "paper-entry")
            entry.send_keys(code[:-1] + ("A" if code[-1] != "A" else "B"))
            press(browser, browser.find_element("id", "withdraw-button"))
            until(browser, lambda: "typing error" in text_of(browser, "withdraw-status"))
            entry.clear()
            entry.send_keys(code.lower().replace("-", " "))
            press(browser, browser.find_element("id", "withdraw-button"))
            until(browser, lambda: "deleted transfers: 1" in text_of(browser, "withdraw-status"))
    assert centre.contents() == []


def test_a_lost_connection_is_resumed_after_a_restart(browser_in, centre, ann, tmp_path):
    with centre.listening():
        centre.cut_after = 2
        with browser_in(tmp_path / "profile") as browser:
            browser.get(centre.page)
            shown(browser, "records")
            pick(browser, ann)
            shown(browser, "preview")
            preview = text_of(browser, "sha256")
            give_consent(browser, centre.codes(1)[0])
            shown(browser, "resume")
            assert "cannot be reached" in text_of(browser, "problem")
        assert centre.contents() == []
        centre.cut_after = None
        with browser_in(tmp_path / "profile") as browser:
            browser.get(centre.page)
            press(browser, shown(browser, "resume-button"))
            shown(browser, "done")
    parts = [request for request in centre.requests if "/parts/" in request]
    assert len(parts) > 3
    assert sum(part.endswith("/parts/0") for part in parts) == 1  # received bytes were not sent again
    assert [hashlib.sha256(content).hexdigest() for content in centre.contents()] == [preview]


def test_it_works_without_a_line_after_a_restart(browser_in, centre, ann, tmp_path):
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        browser.execute_async_script("navigator.serviceWorker.ready.then(arguments[0])")
        browser.refresh()  # from now on from the cache
        shown(browser, "records")
        code = centre.codes(1)[0]
    with browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        pick(browser, ann)
        shown(browser, "preview")
        assert " of 72" in text_of(browser, "preview-count")
        give_consent(browser, code)
        until(browser, lambda: "cannot be reached" in text_of(browser, "problem"))
        assert shown(browser, "send").is_enabled()


def test_invalid_files_are_reported_and_the_next_file_works(browser_in, centre, ann, tmp_path):
    other = json.loads(json.dumps(ANN).replace('"ann"', '"bob"'))
    bad = {
        "deep.json": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "not that of a health record"),
        "large.json": (b'{"resourceType":"Bundle","x":"' + b"x" * 50_000_000 + b'"}', "larger than 32 MB"),
        "none.json": (b'{"hello": "world"}', "contains no health records"),
        "text.txt": (b"hello", "cannot read the format"),
        "empty.json": (b"", "file is empty"),
        "sealed.json": (b"ABATSEAL\x00\x01", "encrypted for another recipient"),
        "r2.xml": (b"<Bundle/>", "XML"),
        "link.txt": (b"shlink:/eyJ1cmwiOiJo", "link is incomplete"),
        "cut.json": (json.dumps(ANN).encode()[:-40], "cannot read the format"),
    }
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        for name, (content, problem) in bad.items():
            (tmp_path / name).write_bytes(content)
            pick(browser, tmp_path / name)
            until(browser, lambda problem=problem: problem in text_of(browser, "file-problem"), saying=name)
        pick(browser, ann)
        shown(browser, "preview")
        assert not browser.find_element("id", "file-problem").is_displayed()
        (tmp_path / "bob.json").write_text(json.dumps(other))
        pick(browser, tmp_path / "bob.json")
        until(browser, lambda: "more than one person" in text_of(browser, "file-problem"))
        assert " of 72" in text_of(browser, "preview-count")


def test_a_study_that_has_changed_asks_again_and_another_language_changes_every_word(
    browser_in, centre, ann, tmp_path
):
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        pick(browser, ann)
        give_consent(browser, "WRONG")
        until(browser, lambda: "unknown" in text_of(browser, "problem"))
        browser.find_element("id", "code").clear()
        browser.find_element("id", "code").send_keys(centre.codes(1)[0])
        press(browser, browser.find_element("id", "send"))
        shown(browser, "done")
        publish(centre.inbox.registry, changed(centre.study), now())
        browser.get(centre.page)
        shown(browser, "changed")
        shown(browser, "records")
        press(browser, browser.find_element("css selector", "nav button[lang=de]"))
        until(browser, lambda: "Die Studie wurde geändert" in text_of(browser, "changed"))
        assert browser.find_element("tag name", "html").get_attribute("lang") == "de"
        assert axe(browser) == []
        pick(browser, ann)
        shown(browser, "consent")
        assert not browser.find_element(
            "id", "code-field"
        ).is_displayed()  # the key is enrolled: no second code
        for box in browser.find_elements("css selector", "#statements input"):
            press(browser, box)
        press(browser, browser.find_element("id", "send"))
        shown(browser, "done")
    assert len(centre.contents()) == 2


def test_the_page_is_not_used_from_an_address_that_the_study_does_not_name(browser_in, centre, tmp_path):
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page.replace("127.0.0.1", "localhost"))
        until(browser, lambda: "does not list" in text_of(browser, "problem"))
        assert not browser.find_element("id", "records").is_displayed()


def changed(study: Study) -> Study:
    table = study.content()
    table["study"]["version"] = "2"
    return Study.model_validate_json(json.dumps(table))


BOXES = """
const seen = [...document.querySelectorAll("main *, header *, footer *")].filter((e) => e.checkVisibility());
const at = (id) => document.getElementById(id).getBoundingClientRect();
const viewport = document.documentElement.clientWidth;
const out = seen.filter((e) => {
  const { left, right, width } = e.getBoundingClientRect();
  return width > 1 && (left < -1 || right > viewport + 1);
});
const box = document.querySelector("#statements input").getBoundingClientRect();
const line = document.querySelector("#statements span").getBoundingClientRect();
const bar = getComputedStyle(document.getElementById("file-problem"));
return {
  out: out.map((e) => e.outerHTML.slice(0, 120)), viewport, scrolls: document.documentElement.scrollWidth > viewport,
  heading: getComputedStyle(document.getElementById("title")).direction,
  name: document.querySelector(".name").getBoundingClientRect().left > viewport / 2,
  box_first: box.left > line.right - 1, bar: [bar.borderRightWidth !== "0px", bar.borderLeftWidth !== "0px"],
  text_right: Math.round(viewport - at("records-title").right), text_left: Math.round(at("records-title").left),
};
"""


def test_from_right_to_left_every_box_is_inside_and_on_the_other_side(browser_in, centre, ann, tmp_path):
    """No language is written from right to left yet; the layout must support it."""
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.viewport(360)
        browser.get(centre.page)
        shown(browser, "records")
        pick(browser, ann)
        shown(browser, "consent")
        browser.execute_script("document.querySelector('#topics details').open = true")
        left = browser.execute_script(BOXES)
        browser.execute_script("document.documentElement.dir = 'rtl'")
        right = browser.execute_script(BOXES)
    for layout, is_rtl in ((left, False), (right, True)):
        assert layout["out"] == []
        assert not layout["scrolls"]
        assert (layout["name"], layout["box_first"]) == (is_rtl, is_rtl)
        assert layout["bar"] == [is_rtl, not is_rtl]
        assert abs(layout["text_left"] - layout["text_right"]) <= 1
    assert (left["heading"], right["heading"]) == ("ltr", "rtl")


FOCUSED = """
const e = document.activeElement;
const style = getComputedStyle(e.id === "file" ? document.querySelector("label[for=file]") : e);
return { id: e.id, tag: e.tagName, box: e.type === "checkbox" && Boolean(e.closest("#statements")),
         outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
"""


def test_all_steps_with_the_keyboard_alone(browser_in, centre, ann, tmp_path):
    """Tab, space and letters, from the first link to the withdrawal; the focus is always visible."""
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")

        def tab_to(wanted: str) -> None:
            for _ in range(60):
                browser.keys("\ue004")
                focused = browser.execute_script(FOCUSED)
                if focused["tag"] != "BODY":
                    assert focused["outline"], focused
                if focused["id"] == wanted or (wanted == "box" and focused["box"]):
                    return
            raise AssertionError(f"{wanted} cannot be reached by keys")

        tab_to("file")
        pick(browser, ann)  # the file dialog belongs to the system
        shown(browser, "consent")
        until(browser, lambda: browser.execute_script(FOCUSED)["id"] == "eligible-title")
        tab_to("only-released")
        browser.keys(" ")
        until(browser, lambda: text_of(browser, "match-count"))
        statements = len(browser.find_elements("css selector", "#statements input"))
        for _ in range(statements):
            tab_to("box")
            browser.keys(" ")
        tab_to("code")
        browser.keys(centre.codes(1)[0])
        tab_to("send")
        browser.keys(" ")
        shown(browser, "done")
        until(browser, lambda: browser.execute_script(FOCUSED)["id"] == "done-title")
        tab_to("withdraw")
        browser.keys(" ")
        browser.keys(" ")
        until(browser, lambda: "deleted transfers: 1" in text_of(browser, "withdraw-status"))
    assert centre.contents() == []
