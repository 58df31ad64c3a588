"""The built page: served with a strict policy, written as static files, refused if a file differs."""

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
from abaton.citizen.page_files import CONTENT_SECURITY_POLICY, PageFile, build_digest, write_page
from abaton.citizen.page_server import beside_intake
from abaton.errors import RefusedError, SettingsError

SOURCES = Path(abaton.citizen.__file__).parent / "page"


@pytest.fixture
def page(tmp_path) -> PageFile:
    """A page of the sources without Pyodide, which needs node to be built."""
    folder = tmp_path / "built"
    folder.mkdir()
    files = {}
    for folder_name in ("assets", "scripts", "texts"):
        for path in sorted((SOURCES / folder_name).iterdir()):
            if not path.name.endswith((".d.ts", ".d.mts")):
                (folder / path.name).write_bytes(path.read_bytes())
                files[path.name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (folder / "page.js.br").write_bytes(b"packed")
    build = build_digest({name: entry["sha256"] for name, entry in files.items()})
    (folder / "manifest.json").write_text(json.dumps({"build": build, "files": files}))
    return PageFile.read(folder)


HOSPITAL = "https://fhir.example.org"


def connect_origins(study: str) -> tuple[str, ...]:
    return (HOSPITAL,) if study == "with hospital" else ()


def ask(
    page: PageFile, path: str, method: str = "GET", accept: str = ""
) -> tuple[int, dict[str, str], bytes]:
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
    asyncio.run(beside_intake(service, page, connect_origins)(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, sent[1]["body"]


def test_the_page_of_a_study_has_a_strict_policy_and_names_its_build(page):
    status, headers, body = ask(page, "/take-part/pressure-2026")
    assert (status, headers["content-security-policy"]) == (200, CONTENT_SECURITY_POLICY)
    assert "unsafe-eval" not in CONTENT_SECURITY_POLICY.replace("wasm-unsafe-eval", "")
    assert "unsafe-inline" not in CONTENT_SECURITY_POLICY
    text = body.decode()
    assert page.build in text
    assert "{{" not in text
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=|https?://", text)


def test_only_the_page_of_a_study_with_a_hospital_may_connect_to_it(page):
    _, headers, body = ask(page, "/take-part/with%20hospital")
    assert f"connect-src 'self' {HOSPITAL};" in headers["content-security-policy"]
    assert f"connect-src 'self' {HOSPITAL};" in body.decode()
    assert headers["content-security-policy"].replace(f" {HOSPITAL}", "") == CONTENT_SECURITY_POLICY
    for other in ("/take-part/pressure-2026", "/take-part/sw.js", f"{page.files_url}worker.js"):
        assert ask(page, other)[1]["content-security-policy"] == CONTENT_SECURITY_POLICY


def test_files_are_cached_forever_and_compressed_if_accepted(page):
    status, headers, body = ask(page, f"{page.files_url}page.js", accept="gzip, br;q=0.5")
    assert (status, headers["content-encoding"], body) == (200, "br", b"packed")
    assert "immutable" in headers["cache-control"]
    status, headers, body = ask(page, f"{page.files_url}page.js", accept="gzip")
    assert "content-encoding" not in headers
    assert hashlib.sha256(body).hexdigest() == page.files["page.js"]


@pytest.mark.parametrize(
    "path",
    ["/take-part/files/0/page.js", "/take-part/", "/take-part/a/b", "URL:manifest.json", "URL:../manifest.json",
     "URL:%2e%2e/browser_api.py", "URL:page.js.br", "URL:"],
)  # fmt: skip
def test_nothing_else_is_served(page, path):
    assert ask(page, path.replace("URL:", page.files_url))[0] == 404


def test_only_reading_is_possible_and_the_intake_stays_where_it_was(page):
    assert ask(page, "/take-part/x", "POST")[0] == 405
    assert ask(page, "/take-part/x", "HEAD")[2] == b""
    assert ask(page, "/v1/health")[2] == b"intake"
    assert ask(page, "/take-partx")[0] == 299


def test_the_service_worker_keeps_every_file_and_no_other(page):
    _, headers, body = ask(page, "/take-part/sw.js")
    (listed,) = re.findall(r"JSON\.parse\('(.*)'\)", body.decode())
    assert json.loads(listed) == page.cached_names
    assert headers["cache-control"] == "no-cache"


def test_a_file_that_is_not_the_one_that_was_built_is_refused(page):
    (page.folder / "page.js").write_text("other")
    with pytest.raises(RefusedError, match="differs from its build"):
        PageFile.read(page.folder)
    (page.folder / "page.js").unlink()
    with pytest.raises(RefusedError, match="differs from its build"):
        PageFile.read(page.folder)
    (page.folder / "manifest.json").unlink()
    with pytest.raises(SettingsError, match="make citizen"):
        PageFile.read(page.folder)


def test_static_files_are_what_the_intake_serves(page, tmp_path):
    out = tmp_path / "www"
    studies = ("pressure-2026", "a/b'x", "with hospital")
    names = write_page(page, {study: connect_origins(study) for study in studies}, out)
    assert "take-part/a%2Fb%27x/index.html" in names
    for name in names:
        address = "/" + name.removesuffix("/index.html")
        assert (out / name).read_bytes() == ask(page, address)[2]
    with pytest.raises(SettingsError, match="folder exists"):
        write_page(page, {}, out)


def test_every_language_has_the_same_texts_and_placeholders():
    texts = {path.stem: json.loads(path.read_text("utf-8")) for path in (SOURCES / "texts").glob("*.json")}
    assert set(texts) >= {"en", "de"}
    english = texts.pop("en")
    for name, translation in texts.items():
        assert set(english) - set(translation) <= {"direction"}, name
        for key, text in translation.items():
            assert shape(text) == shape(english[key]), (name, key)


def shape(text):
    """Return the structure of a text: keys of tables, lengths of lists, placeholders."""
    if isinstance(text, dict):
        return {key: shape(value) for key, value in text.items()}
    return (
        [shape(value) for value in text] if isinstance(text, list) else sorted(re.findall(r"\{\w+\}", text))
    )


def test_the_page_has_a_text_for_every_problem_of_a_file():
    from abaton.citizen.uploads import UnusableReason

    english = json.loads((SOURCES / "texts" / "en.json").read_text("utf-8"))
    assert set(english["files"]) == {code.value for code in UnusableReason}
    named = re.findall(r'data-text="(\w+)"', (SOURCES / "assets" / "index.html").read_text("utf-8"))
    assert set(named) <= set(english)


@pytest.mark.slow
def test_two_builds_have_the_same_fingerprint_and_the_download_is_small(built, tmp_path):
    node, wheels = shutil.which("node"), SOURCES / "node_modules" / ".wheels"
    if node is None or not wheels.is_dir():
        pytest.skip("node or the parts of the page are not here: run 'make citizen'")
    run = [node, str(SOURCES / "build.mjs"), str(wheels), str(tmp_path / "again"), "--uncompressed"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    manifest = json.loads((built / "manifest.json").read_text())
    assert json.loads(done.stdout)["build"] == manifest["build"]
    assert 0 < manifest["compressed_bytes"] <= 7_000_000
