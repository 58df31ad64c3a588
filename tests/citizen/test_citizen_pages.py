"""The built page: served with a strict policy, written as static files, refused if a file is another one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import abaton.citizen
from abaton.citizen.page_files import POLICY, Page, fingerprint, write_page
from abaton.citizen.page_server import beside_intake
from abaton.errors import Refused, SettingsError

SOURCES = Path(abaton.citizen.__file__).parent / "page"


@pytest.fixture
def page(tmp_path) -> Page:
    """A page whose files are our own sources; Python for browsers is left out, as it needs node to be built."""
    folder = tmp_path / "built"
    folder.mkdir()
    files = {}
    for kind in ("looks", "scripts", "texts"):
        for path in sorted((SOURCES / kind).iterdir()):
            if not path.name.endswith((".d.ts", ".d.mts")):
                (folder / path.name).write_bytes(path.read_bytes())
                files[path.name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (folder / "page.js.br").write_bytes(b"packed")
    build = fingerprint({name: about["sha256"] for name, about in files.items()})
    (folder / "manifest.json").write_text(json.dumps({"build": build, "files": files}))
    return Page.read(folder)


HOSPITAL = "https://fhir.example.org"


def reached(study: str) -> tuple[str, ...]:
    return (HOSPITAL,) if study == "with hospital" else ()


def ask(page: Page, path: str, method: str = "GET", accept: str = "") -> tuple[int, dict[str, str], bytes]:
    sent: list[dict] = []

    async def service(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b"intake"})

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    async def send(message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"accept-encoding", accept.encode())],
    }  # fmt: skip
    asyncio.run(beside_intake(service, page, reached)(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, sent[1]["body"]


def test_the_page_of_a_study_has_a_strict_policy_and_names_its_build(page):
    status, headers, body = ask(page, "/take-part/pressure-2026")
    assert (status, headers["content-security-policy"]) == (200, POLICY)
    assert "unsafe-eval" not in POLICY.replace("wasm-unsafe-eval", "")
    assert "unsafe-inline" not in POLICY
    text = body.decode()
    assert page.build in text
    assert "{{" not in text
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=|https?://", text)


def test_the_page_of_a_study_with_a_hospital_may_talk_to_it_and_no_other_page_may(page):
    _, headers, body = ask(page, "/take-part/with%20hospital")
    assert f"connect-src 'self' {HOSPITAL};" in headers["content-security-policy"]
    assert f"connect-src 'self' {HOSPITAL};" in body.decode()
    assert headers["content-security-policy"].replace(f" {HOSPITAL}", "") == POLICY
    for other in ("/take-part/pressure-2026", "/take-part/sw.js", f"{page.place}worker.js"):
        assert ask(page, other)[1]["content-security-policy"] == POLICY


def test_files_are_kept_forever_and_packed_for_whoever_takes_that(page):
    status, headers, body = ask(page, f"{page.place}page.js", accept="gzip, br;q=0.5")
    assert (status, headers["content-encoding"], body) == (200, "br", b"packed")
    assert "immutable" in headers["cache-control"]
    status, headers, body = ask(page, f"{page.place}page.js", accept="gzip")
    assert "content-encoding" not in headers
    assert hashlib.sha256(body).hexdigest() == page.files["page.js"]


@pytest.mark.parametrize(
    "path",
    ["/take-part/files/0/page.js", "/take-part/", "/take-part/a/b", "PLACEmanifest.json", "PLACE../manifest.json",
     "PLACE%2e%2e/phone.py", "PLACEpage.js.br", "PLACE"],
)  # fmt: skip
def test_nothing_else_is_served(page, path):
    assert ask(page, path.replace("PLACE", page.place))[0] == 404


def test_only_reading_is_possible_and_the_intake_stays_where_it_was(page):
    assert ask(page, "/take-part/x", "POST")[0] == 405
    assert ask(page, "/take-part/x", "HEAD")[2] == b""
    assert ask(page, "/v1/health")[2] == b"intake"
    assert ask(page, "/take-partx")[0] == 299


def test_the_service_worker_keeps_every_file_and_no_other(page):
    _, headers, body = ask(page, "/take-part/sw.js")
    (listed,) = re.findall(r"JSON\.parse\('(.*)'\)", body.decode())
    assert json.loads(listed) == page.listed
    assert headers["cache-control"] == "no-cache"


def test_a_file_that_is_not_the_one_that_was_built_is_refused(page):
    (page.folder / "page.js").write_text("other")
    with pytest.raises(Refused, match="not the one that was built"):
        Page.read(page.folder)
    (page.folder / "page.js").unlink()
    with pytest.raises(Refused, match="not the one that was built"):
        Page.read(page.folder)
    (page.folder / "manifest.json").unlink()
    with pytest.raises(SettingsError, match="make citizen"):
        Page.read(page.folder)


def test_static_files_are_what_the_intake_serves(page, tmp_path):
    out = tmp_path / "www"
    studies = ("pressure-2026", "a/b'x", "with hospital")
    names = write_page(page, {study: reached(study) for study in studies}, out)
    assert "take-part/a%2Fb%27x/index.html" in names
    for name in names:
        address = "/" + name.removesuffix("/index.html")
        assert (out / name).read_bytes() == ask(page, address)[2]
    with pytest.raises(SettingsError, match="already"):
        write_page(page, {}, out)


def test_every_language_has_every_word_in_the_same_places():
    texts = {path.stem: json.loads(path.read_text("utf-8")) for path in (SOURCES / "texts").glob("*.json")}
    assert set(texts) >= {"en", "de"}
    english = texts.pop("en")
    for name, words in texts.items():
        assert set(english) - set(words) <= {"direction"}, name
        for key, text in words.items():
            assert shape(text) == shape(english[key]), (name, key)


def shape(text):
    """The places of a text: keys of tables, lengths of lists, gaps."""
    if isinstance(text, dict):
        return {key: shape(each) for key, each in text.items()}
    return [shape(each) for each in text] if isinstance(text, list) else sorted(re.findall(r"\{\w+\}", text))


def test_the_page_has_words_for_every_problem_a_file_can_have():
    from abaton.citizen.uploads import Unusable

    english = json.loads((SOURCES / "texts" / "en.json").read_text("utf-8"))
    assert set(english["files"]) == {code.value for code in Unusable}
    named = re.findall(r'data-text="(\w+)"', (SOURCES / "looks" / "index.html").read_text("utf-8"))
    assert set(named) <= set(english)


@pytest.mark.slow
def test_two_builds_have_the_same_fingerprint_and_the_download_is_small(built, tmp_path):
    node, wheels = shutil.which("node"), SOURCES / "node_modules" / ".wheels"
    if node is None or not wheels.is_dir():
        pytest.skip("node or the parts of the page are not here: run 'make citizen'")
    run = [node, str(SOURCES / "build.mjs"), str(wheels), str(tmp_path / "again"), "--unpacked"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    manifest = json.loads((built / "manifest.json").read_text())
    assert json.loads(done.stdout)["build"] == manifest["build"]
    assert 0 < manifest["packed_bytes"] <= 7_000_000
