"""A signed release of the page: a changed byte is found, and so is another signer."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.citizen.test_citizen_pages import HOSPITAL, page
from typer.testing import CliRunner

from abaton.citizen.page_files import BASE, RELEASE, Page, write_page
from abaton.citizen.page_release import check_page, read_release, write_release
from abaton.cli.app import app
from abaton.errors import Refused, SettingsError
from abaton.governance import Ring
from abaton.governance.identifiers import Denied
from abaton.governance.keys import lock, verifier, write_public, write_ring

__all__ = ["page"]
NOW = datetime(2026, 11, 17, tzinfo=UTC)


def ring(name: str) -> Ring:
    return Ring.new(name, secrets.token_bytes, "2026-01-01T00:00:00.000Z")


def folder_fetch(folder: Path):
    def fetch(address: str) -> bytes | None:
        path = folder / address.strip("/")
        path = path / "index.html" if path.is_dir() else path
        return path.read_bytes() if path.is_file() else None

    return fetch


@pytest.fixture
def signed(page, tmp_path) -> tuple[Page, Ring, Path]:
    """A page, who signed it, and its static files with the release among them."""
    maintainers = ring("maintainers")
    (page.folder / RELEASE).write_text(json.dumps(write_release(page, maintainers.signing, NOW)))
    write_page(page, {"pressure-2026": (), "with hospital": (HOSPITAL,)}, tmp_path / "www")
    return page, maintainers, tmp_path / "www"


def test_what_was_released_is_what_is_there_and_whom_it_may_talk_to_is_told(signed):
    page, maintainers, www = signed
    statement = json.loads((www / "take-part" / RELEASE).read_bytes())
    release = read_release(statement, verifier(list(maintainers.public.keys)))
    assert (release.build, release.files) == (page.build, page.files)
    found = check_page(release, folder_fetch(www), ["pressure-2026", "with hospital"])
    assert found.reached == {"pressure-2026": (), "with hospital": (HOSPITAL,)}
    assert found.files == len(page.listed) + 3


def test_every_changed_byte_and_every_missing_file_is_found(signed):
    page, maintainers, www = signed
    release = read_release(json.loads(page.release or b""), verifier(list(maintainers.public.keys)))
    for path in sorted(www.rglob("*")):
        if path.is_dir() or path.name == RELEASE:
            continue
        whole = path.read_bytes()
        changed = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        for content in (changed, whole + b" ", None):
            path.unlink() if content is None else path.write_bytes(content)
            with pytest.raises(Refused, match="released|missing"):
                check_page(release, folder_fetch(www), ["pressure-2026", "with hospital"])
        path.write_bytes(whole)
    check_page(release, folder_fetch(www), ["pressure-2026"])


def test_more_in_the_policy_than_addresses_is_found(signed):
    page, maintainers, www = signed
    release = read_release(json.loads(page.release or b""), verifier(list(maintainers.public.keys)))
    index = www / "take-part" / "pressure-2026" / "index.html"
    for more in (" *", " 'unsafe-inline'", " data:", "; script-src https://evil.example"):
        index.write_text(index.read_text().replace("connect-src 'self';", f"connect-src 'self'{more};"))
        with pytest.raises(Refused, match="not the released one"):
            check_page(release, folder_fetch(www), ["pressure-2026"])
        index.write_bytes(page.body("index.html"))


def test_another_signer_and_a_changed_statement_are_refused(signed):
    page, maintainers, _ = signed
    statement = json.loads(page.release or b"")
    with pytest.raises(Denied):
        read_release(statement, verifier(list(ring("somebody").public.keys)))
    statement["body"]["files"]["page.js"] = "0" * 64
    with pytest.raises(Denied):
        read_release(statement, verifier(list(maintainers.public.keys)))


def test_a_page_that_was_changed_is_not_signed(page):
    (page.folder / "page.js").write_text("other")
    with pytest.raises(Refused, match="not the one that was built"):
        write_release(page, ring("maintainers").signing, NOW)


def test_the_commands_sign_and_check(page, tmp_path, monkeypatch):
    for name in ("maintainers", "somebody"):
        made = ring(name)
        write_ring(tmp_path / f"{name}.keys", lock(made, b"open sesame", secrets.token_bytes))
        write_public(tmp_path / f"{name}.pub", made.public)
    monkeypatch.setenv("PHRASE", "open sesame")
    read = Page.read
    monkeypatch.setattr(Page, "read", lambda *_: read(page.folder))
    run = CliRunner()
    done = run.invoke(
        app, ["citizen", "sign", str(tmp_path / "maintainers.keys"), "--passphrase-env", "PHRASE", "--json"]
    )
    assert json.loads(done.stdout)["build"] == page.build
    study = str(Path(__file__).with_name("study.toml"))
    done = run.invoke(app, ["citizen", "build", study, "--out", str(tmp_path / "www")])
    assert done.exit_code == 0

    def check(signer: str):
        asked = ["citizen", "check", str(tmp_path / "www"), "--signer", str(tmp_path / f"{signer}.pub")]
        return run.invoke(app, [*asked, "--json"])

    told = json.loads(check("maintainers").stdout)
    assert (told["build"], told["signer"]) == (page.build, "maintainers")
    assert told["reached"] == {"pressure-2026": []}
    assert isinstance(check("somebody").exception, Denied)
    none = ["citizen", "check", str(tmp_path / "www"), "--signer", str(tmp_path / "maintainers.pub")]
    assert isinstance(run.invoke(app, [*none, "--release", "none.json"]).exception, SettingsError)
    script = tmp_path / "www" / page.place.strip("/") / "page.js"
    script.write_bytes(script.read_bytes() + b"\n")
    assert isinstance(check("maintainers").exception, Refused)
    assert (tmp_path / "www" / BASE.strip("/") / RELEASE).is_file()
