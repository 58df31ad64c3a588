"""Signed release of the page: a changed byte and another signer are detected."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.citizen.test_page_files import HOSPITAL, page
from typer.testing import CliRunner

from abaton.citizen.page_files import BASE_PATH, RELEASE_FILE, PageFile, write_page
from abaton.citizen.page_release import check_page, read_release, write_release
from abaton.cli.app import app
from abaton.errors import RefusedError, SettingsError
from abaton.governance import KeySet
from abaton.governance.key_files import encrypt_key_set, write_key_set, write_public
from abaton.governance.keys import verifier
from abaton.governance.refusals import DeniedError

__all__ = ["page"]
NOW = datetime(2026, 11, 17, tzinfo=UTC)


def new_key_set(name: str) -> KeySet:
    return KeySet.new(name, secrets.token_bytes, "2026-01-01T00:00:00.000Z")


def folder_fetch(folder: Path):
    def fetch(address: str) -> bytes | None:
        path = folder / address.strip("/")
        path = path / "index.html" if path.is_dir() else path
        return path.read_bytes() if path.is_file() else None

    return fetch


@pytest.fixture
def signed(page, tmp_path) -> tuple[PageFile, KeySet, Path]:
    """A page, its signer, and its static files with the release."""
    maintainers = new_key_set("maintainers")
    (page.folder / RELEASE_FILE).write_text(json.dumps(write_release(page, maintainers.signing_key, NOW)))
    write_page(page, {"pressure-2026": (), "with hospital": (HOSPITAL,)}, tmp_path / "www")
    return page, maintainers, tmp_path / "www"


def test_a_released_page_verifies_and_its_origins_are_reported(signed):
    page, maintainers, www = signed
    statement = json.loads((www / "take-part" / RELEASE_FILE).read_bytes())
    release = read_release(statement, verifier(list(maintainers.public.keys)))
    assert (release.build, release.files) == (page.build, page.files)
    check = check_page(release, folder_fetch(www), ["pressure-2026", "with hospital"])
    assert check.connect_origins == {"pressure-2026": (), "with hospital": (HOSPITAL,)}
    assert check.files == len(page.cached_names) + 3


def test_every_changed_byte_and_every_missing_file_is_found(signed):
    page, maintainers, www = signed
    release = read_release(json.loads(page.release or b""), verifier(list(maintainers.public.keys)))
    for path in sorted(www.rglob("*")):
        if path.is_dir() or path.name == RELEASE_FILE:
            continue
        original = path.read_bytes()
        changed = original[:-9] + bytes([original[-9] ^ 1]) + original[-8:]
        for content in (changed, original + b" ", None):
            path.unlink() if content is None else path.write_bytes(content)
            with pytest.raises(RefusedError, match="differs|missing"):
                check_page(release, folder_fetch(www), ["pressure-2026", "with hospital"])
        path.write_bytes(original)
    check_page(release, folder_fetch(www), ["pressure-2026"])


def test_more_in_the_policy_than_addresses_is_found(signed):
    page, maintainers, www = signed
    release = read_release(json.loads(page.release or b""), verifier(list(maintainers.public.keys)))
    index = www / "take-part" / "pressure-2026" / "index.html"
    for more in (" *", " 'unsafe-inline'", " data:", "; script-src https://evil.example"):
        index.write_text(index.read_text().replace("connect-src 'self';", f"connect-src 'self'{more};"))
        with pytest.raises(RefusedError, match="differs from the release"):
            check_page(release, folder_fetch(www), ["pressure-2026"])
        index.write_bytes(page.body("index.html"))


def test_another_signer_and_a_changed_statement_are_refused(signed):
    page, maintainers, _ = signed
    statement = json.loads(page.release or b"")
    with pytest.raises(DeniedError):
        read_release(statement, verifier(list(new_key_set("stranger").public.keys)))
    statement["body"]["files"]["page.js"] = "0" * 64
    with pytest.raises(DeniedError):
        read_release(statement, verifier(list(maintainers.public.keys)))


def test_a_page_that_was_changed_is_not_signed(page):
    (page.folder / "page.js").write_text("other")
    with pytest.raises(RefusedError, match="differs from its build"):
        write_release(page, new_key_set("maintainers").signing_key, NOW)


def test_the_commands_sign_and_check(page, tmp_path, monkeypatch):
    for name in ("maintainers", "stranger"):
        key_set = new_key_set(name)
        write_key_set(
            tmp_path / f"{name}.keys", encrypt_key_set(key_set, b"open sesame", secrets.token_bytes)
        )
        write_public(tmp_path / f"{name}.pub", key_set.public)
    monkeypatch.setenv("PHRASE", "open sesame")
    read = PageFile.read
    monkeypatch.setattr(PageFile, "read", lambda *_: read(page.folder))
    run = CliRunner()
    done = run.invoke(
        app, ["citizen", "sign", str(tmp_path / "maintainers.keys"), "--passphrase-env", "PHRASE", "--json"]
    )
    assert json.loads(done.stdout)["build"] == page.build
    study = str(Path(__file__).with_name("study.toml"))
    done = run.invoke(app, ["citizen", "build", study, "--out", str(tmp_path / "www")])
    assert done.exit_code == 0

    def check(signer: str):
        arguments = ["citizen", "check", str(tmp_path / "www"), "--signer", str(tmp_path / f"{signer}.pub")]
        return run.invoke(app, [*arguments, "--json"])

    output = json.loads(check("maintainers").stdout)
    assert (output["build"], output["signer"]) == (page.build, "maintainers")
    assert output["connect_origins"] == {"pressure-2026": []}
    assert isinstance(check("stranger").exception, DeniedError)
    none = ["citizen", "check", str(tmp_path / "www"), "--signer", str(tmp_path / "maintainers.pub")]
    assert isinstance(run.invoke(app, [*none, "--release", "none.json"]).exception, SettingsError)
    script = tmp_path / "www" / page.files_url.strip("/") / "page.js"
    script.write_bytes(script.read_bytes() + b"\n")
    assert isinstance(check("maintainers").exception, RefusedError)
    assert (tmp_path / "www" / BASE_PATH.strip("/") / RELEASE_FILE).is_file()
