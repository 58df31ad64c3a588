"""The citizen's page in a real browser: from the first word to the last receipt, lost lines and bad files."""

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
    hosts,
    pick,
    press,
    press_link,
    say_yes,
    shown,
    until,
    whole,
    words,
)
from tests.citizen.centre import House, house, now

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
    "telecom": [{"system": "phone", "value": "+39 555 0199"}],
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
const answer = (asked) => new Promise((ok) => { asked.onsuccess = () => ok(asked.result); });
(async () => {
  const database = await answer(indexedDB.open("abaton"));
  const rows = await answer(database.transaction("studies").objectStore("studies").getAll());
  const kept = rows.map(({ keys, ...rest }) => rest);
  let text = JSON.stringify({ kept, ...localStorage, ...sessionStorage });
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
  done({ text, refused, extractable, kept });
})();
"""


@pytest.fixture(params=BROWSERS)
def browser_in(request) -> Callable[[Path], Any]:
    """Starts a browser in a profile: Chromium, and once more Firefox."""
    return BROWSERS[request.param]


@pytest.fixture
def ann(tmp_path) -> Path:
    path = tmp_path / "ann.json"
    path.write_text(json.dumps(ANN))
    return path


@pytest.fixture
def centre(built, study, tmp_path) -> Iterator[House]:
    (tmp_path / "centre").mkdir()
    with house(tmp_path / "centre", study, part=4096) as made:
        yield made


def test_from_the_first_word_to_the_deletion_receipt(browser_in, centre, ann, tmp_path):
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        assert axe(browser) == []
        pick(browser, ann)
        shown(browser, "preview")
        assert browser.switch_to.active_element.get_attribute("id") == "eligible-title"
        assert words(browser, "preview-number").startswith("Of 72")
        assert CANARY not in words(browser, "topics")
        press(browser, browser.find_element("id", "only-leaving"))
        leaving = words(browser, "found")
        browser.find_element("id", "search").send_keys(CANARY)
        until(browser, lambda: words(browser, "found").startswith("0 "))  # it does not leave
        press(browser, browser.find_element("id", "only-leaving"))
        until(browser, lambda: CANARY in words(browser, "topics"))
        assert leaving != words(browser, "found")
        assert "Taken out:" in words(browser, "topics")
        assert axe(browser) == []
        assert fits(browser, 360)
        assert fits(browser, 320)
        preview = words(browser, "sha256")
        say_yes(browser, centre.codes(1)[0])
        shown(browser, "done")
        (content,) = centre.opened()
        assert hashlib.sha256(content).hexdigest() == preview
        assert CANARY.encode() not in content
        assert axe(browser) == []
        press_link(browser, browser.find_element("id", "copy"))
        copy = json.loads(until(browser, lambda: whole(tmp_path / "my-consent.json")))
        assert (copy["sha256"], copy["document"]) == (preview, centre.study.hash)
        assert len(copy["statements"]) == 4
        assert copy["consents"][1]["policy"][1]["uri"] == f"urn:sha256:{centre.study.hash}"
        assert copy["receipt"]["kind"] == "receipt"
        stored = browser.execute_async_script(STORED)
        # Keys that derive others have no form to be taken out in at all, which browsers say in one of two ways.
        root = stored["refused"].pop(2)
        assert root in ("InvalidAccessError", "NotSupportedError")
        assert stored["refused"] == ["InvalidAccessError"] * 3
        assert stored["extractable"] == [False] * 3
        assert CANARY not in stored["text"]
        assert "Ann" not in stored["text"]
        enrolled = stored["kept"][0]["copies"]["enrolment"]["body"]
        assert enrolled["page"] == browser.find_element("id", "build").text
        press(browser, shown(browser, "withdraw"))
        press(browser, shown(browser, "withdraw"))
        until(browser, lambda: "deleted" in words(browser, "leave-told"))
        assert "sendings deleted: 1" in words(browser, "leave-told")
        assert "You left" in words(browser, "mine-list")
        assert browser.complaints() == []
        assert hosts(browser) == {centre.address}
    assert centre.opened() == []
    assert list((centre.folder / "inbox").iterdir()) == []
    kept = b"".join(path.read_bytes() for path in centre.folder.rglob("*") if path.is_file())
    assert b"mm[Hg]" in content
    assert b"mm[Hg]" not in kept
    assert b"127.0.0.1" not in kept.replace(centre.address.encode(), b"")


def test_the_code_on_paper_works_on_another_device(browser_in, centre, ann, tmp_path):
    with centre.listening():
        with browser_in(tmp_path / "phone") as browser:
            browser.get(centre.page)
            shown(browser, "records")
            pick(browser, ann)
            say_yes(browser, centre.codes(1)[0])
            shown(browser, "done")
            code = words(browser, "paper-code")
        assert len(centre.opened()) == 1
        with browser_in(tmp_path / "library") as browser:
            browser.get(centre.page)
            entry = shown(browser, "paper-entry")
            entry.send_keys(code[:-1] + ("A" if code[-1] != "A" else "B"))
            press(browser, browser.find_element("id", "leave-button"))
            until(browser, lambda: "slip" in words(browser, "leave-told"))
            entry.clear()
            entry.send_keys(code.lower().replace("-", " "))
            press(browser, browser.find_element("id", "leave-button"))
            until(browser, lambda: "sendings deleted: 1" in words(browser, "leave-told"))
    assert centre.opened() == []


def test_a_lost_connection_is_resumed_after_a_restart(browser_in, centre, ann, tmp_path):
    with centre.listening():
        centre.cut_after = 2
        with browser_in(tmp_path / "profile") as browser:
            browser.get(centre.page)
            shown(browser, "records")
            pick(browser, ann)
            shown(browser, "preview")
            preview = words(browser, "sha256")
            say_yes(browser, centre.codes(1)[0])
            shown(browser, "resume")
            assert "cannot be reached" in words(browser, "problem")
        assert centre.opened() == []
        centre.cut_after = None
        with browser_in(tmp_path / "profile") as browser:
            browser.get(centre.page)
            press(browser, shown(browser, "resume-button"))
            shown(browser, "done")
    parts = [asked for asked in centre.asked if "/parts/" in asked]
    assert len(parts) > 3
    assert sum(part.endswith("/parts/0") for part in parts) == 1  # what had arrived was not sent again
    assert [hashlib.sha256(content).hexdigest() for content in centre.opened()] == [preview]


def test_it_works_without_a_line_after_a_restart(browser_in, centre, ann, tmp_path):
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        browser.execute_async_script("navigator.serviceWorker.ready.then(arguments[0])")
        browser.refresh()  # from here on through what the device keeps
        shown(browser, "records")
        code = centre.codes(1)[0]
    with browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        pick(browser, ann)
        shown(browser, "preview")
        assert words(browser, "preview-number").startswith("Of 72")
        say_yes(browser, code)
        until(browser, lambda: "cannot be reached" in words(browser, "problem"))
        assert shown(browser, "send").is_enabled()


def test_bad_files_are_told_in_plain_words_and_the_next_file_works(browser_in, centre, ann, tmp_path):
    other = json.loads(json.dumps(ANN).replace('"ann"', '"bob"'))
    bad = {
        "deep.json": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "no health record"),
        "large.json": (b'{"resourceType":"Bundle","x":"' + b"x" * 50_000_000 + b'"}', "too large"),
        "none.json": (b'{"hello": "world"}', "does not hold health records"),
        "text.txt": (b"hello", "does not hold health records in a form"),
        "empty.json": (b"", "nothing in this file"),
        "sealed.json": (b"ABATSEAL\x00\x01", "sealed for somebody else"),
        "r2.xml": (b"<Bundle/>", "XML"),
        "link.txt": (b"shlink:/eyJ1cmwiOiJo", "not a whole link"),
        "cut.json": (json.dumps(ANN).encode()[:-40], "does not hold health records in a form"),
    }
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        for name, (content, told) in bad.items():
            (tmp_path / name).write_bytes(content)
            pick(browser, tmp_path / name)
            until(browser, lambda told=told: told in words(browser, "file-problem"), saying=name)
        pick(browser, ann)
        shown(browser, "preview")
        assert not browser.find_element("id", "file-problem").is_displayed()
        (tmp_path / "bob.json").write_text(json.dumps(other))
        pick(browser, tmp_path / "bob.json")
        until(browser, lambda: "more than one person" in words(browser, "file-problem"))
        assert words(browser, "preview-number").startswith("Of 72")


def test_a_study_that_has_changed_asks_again_and_another_language_changes_every_word(
    browser_in, centre, ann, tmp_path
):
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")
        pick(browser, ann)
        say_yes(browser, "WRONG")
        until(browser, lambda: "not known" in words(browser, "problem"))
        browser.find_element("id", "code").clear()
        browser.find_element("id", "code").send_keys(centre.codes(1)[0])
        press(browser, browser.find_element("id", "send"))
        shown(browser, "done")
        publish(centre.inbox.registry, changed(centre.study), now())
        browser.get(centre.page)
        shown(browser, "changed")
        shown(browser, "records")
        press(browser, browser.find_element("css selector", "nav button[lang=de]"))
        until(browser, lambda: "Die Studie hat sich geändert" in words(browser, "changed"))
        assert browser.find_element("tag name", "html").get_attribute("lang") == "de"
        assert axe(browser) == []
        pick(browser, ann)
        shown(browser, "consent")
        assert not browser.find_element("id", "code-field").is_displayed()  # the key is known: no second code
        for box in browser.find_elements("css selector", "#statements input"):
            press(browser, box)
        press(browser, browser.find_element("id", "send"))
        shown(browser, "done")
    assert len(centre.opened()) == 2


def test_the_page_is_not_used_from_an_address_that_the_study_does_not_name(browser_in, centre, tmp_path):
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page.replace("127.0.0.1", "localhost"))
        until(browser, lambda: "does not name" in words(browser, "problem"))
        assert not browser.find_element("id", "records").is_displayed()


def changed(study: Study) -> Study:
    table = study.content()
    table["study"]["version"] = "2"
    return Study.model_validate_json(json.dumps(table))


BOXES = """
const seen = [...document.querySelectorAll("main *, header *, footer *")].filter((e) => e.checkVisibility());
const at = (id) => document.getElementById(id).getBoundingClientRect();
const wide = document.documentElement.clientWidth;
const out = seen.filter((e) => {
  const { left, right, width } = e.getBoundingClientRect();
  return width > 1 && (left < -1 || right > wide + 1);
});
const box = document.querySelector("#statements input").getBoundingClientRect();
const line = document.querySelector("#statements span").getBoundingClientRect();
const bar = getComputedStyle(document.getElementById("file-problem"));
return {
  out: out.map((e) => e.outerHTML.slice(0, 120)), wide, scrolls: document.documentElement.scrollWidth > wide,
  heading: getComputedStyle(document.getElementById("title")).direction,
  name: document.querySelector(".name").getBoundingClientRect().left > wide / 2,
  box_first: box.left > line.right - 1, bar: [bar.borderRightWidth !== "0px", bar.borderLeftWidth !== "0px"],
  text_right: Math.round(wide - at("records-title").right), text_left: Math.round(at("records-title").left),
};
"""


def test_from_right_to_left_every_box_is_inside_and_on_the_other_side(browser_in, centre, ann, tmp_path):
    """No text of the page is written from right to left yet; the page itself must be ready for it."""
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
    for told, turned in ((left, False), (right, True)):
        assert told["out"] == []
        assert not told["scrolls"]
        assert (told["name"], told["box_first"]) == (turned, turned)
        assert told["bar"] == [turned, not turned]
        assert abs(told["text_left"] - told["text_right"]) <= 1
    assert (left["heading"], right["heading"]) == ("ltr", "rtl")


FOCUSED = """
const e = document.activeElement;
const style = getComputedStyle(e.id === "file" ? document.querySelector("label[for=file]") : e);
return { id: e.id, tag: e.tagName, box: e.type === "checkbox" && Boolean(e.closest("#statements")),
         ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
"""


def test_the_whole_way_with_the_keyboard_alone(browser_in, centre, ann, tmp_path):
    """Tab, space and letters, from the first link to the withdrawal; the focus is always to be seen."""
    with centre.listening(), browser_in(tmp_path / "profile") as browser:
        browser.get(centre.page)
        shown(browser, "records")

        def tab_to(wanted: str) -> None:
            for _ in range(60):
                browser.keys("\ue004")
                at = browser.execute_script(FOCUSED)
                if at["tag"] != "BODY":
                    assert at["ring"], at
                if at["id"] == wanted or (wanted == "box" and at["box"]):
                    return
            raise AssertionError(f"{wanted} cannot be reached by keys")

        tab_to("file")
        pick(browser, ann)  # the system's own window for files is not the page's
        shown(browser, "consent")
        until(browser, lambda: browser.execute_script(FOCUSED)["id"] == "eligible-title")
        tab_to("only-leaving")
        browser.keys(" ")
        until(browser, lambda: words(browser, "found"))
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
        until(browser, lambda: "sendings deleted: 1" in words(browser, "leave-told"))
    assert centre.opened() == []
