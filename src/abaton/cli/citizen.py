"""``abaton citizen``: build, sign and check the citizen page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import typer

from abaton.cli.key_access import PASSPHRASE_ENV, PASSPHRASE_FILE, open_key_set
from abaton.cli.output import emit, note
from abaton.cli.runs import JsonOption
from abaton.errors import RefusedError, SettingsError

if TYPE_CHECKING:
    from abaton.citizen.page_release import Fetch

app = typer.Typer(help="Build, sign and check the citizen page.", no_args_is_help=True)


@app.command()
def build(
    files: list[Path] = typer.Argument(..., metavar="STUDY...", help="Study documents"),
    *,
    out: Path = typer.Option(..., "--out", "-o", help="Write to this new folder"),
    json: bool = JsonOption,
) -> None:
    """Write the citizen page as static files, for a web server that forwards /v1 to the centre's intake.

    Prints the digest of the build, which is reproducible. 'abaton serve intake --citizen' serves the same page.
    """
    from abaton.citizen.page_files import PageFile, write_page
    from abaton.study import load_study

    studies: dict[str, tuple[str, ...]] = {}
    for file in files:
        study = load_study(file)
        if study.citizens is None:
            raise RefusedError(
                "the study does not admit citizens",
                where=str(file),
                remedy="add [citizens]",
            )
        studies[study.study.id] = study.citizens.allowed_origins
    page = PageFile.read()
    written = write_page(page, studies, out)
    if json:
        emit({"build": page.build, "files": written, "out": str(out)})
    else:
        typer.echo(page.build)
        note(f"{len(written)} files in {out}; the page of a study is at /take-part/STUDY")


@app.command()
def sign(
    keys: Path = typer.Argument(..., metavar="KEYS", help="Private key file of the signer"),
    *,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write the release to this file (default: beside the built page)"
    ),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JsonOption,
) -> None:
    """Sign a release of the built page: a statement with the digests of the build and of every file.

    Beside the built page it becomes part of the wheel, of static files and of /take-part/release.json; 'abaton citizen
    check' uses it.
    """
    from abaton.citizen.page_files import RELEASE_FILE, PageFile
    from abaton.citizen.page_release import write_release

    page = PageFile.read()
    signer = open_key_set(keys, passphrase_file, passphrase_env).signing_key
    statement = write_release(page, signer, datetime.now(UTC))
    target = out or page.folder / RELEASE_FILE
    try:
        target.write_text(f"{_to_json(statement)}\n", "utf-8")
    except OSError as error:
        raise SettingsError(
            "the release was not written", where=str(target), remedy=error.strerror or "choose another path"
        ) from None
    if json:
        emit({"build": page.build, "signer": signer.id, "out": str(target)})
    else:
        typer.echo(page.build)
        note(f"signed by {signer.id}, in {target}")


@app.command()
def check(
    location: str = typer.Argument(
        ..., metavar="LOCATION", help="URL of a study's page, or a folder of 'citizen build'"
    ),
    *,
    signer: Path = typer.Option(..., "--signer", help="Public keys of the required signer"),
    release: Path | None = typer.Option(None, "--release", help="Signed release (default: that of the page)"),
    json: bool = JsonOption,
) -> None:
    """Compare all files of a page with a signed release and print the allowed origins of its connections.

    Exit code 3: the page differs, or the release is not signed by the required signer.
    """
    from abaton.citizen.page_files import BASE_PATH, RELEASE_FILE
    from abaton.citizen.page_release import check_page, read_release
    from abaton.governance.key_files import read_public
    from abaton.governance.keys import verifier

    signer_keys = read_public(signer)
    fetch, studies = (
        _site(location) if location.startswith(("https://", "http://")) else _folder(Path(location))
    )
    raw = _read(release) if release else fetch(f"{BASE_PATH}/{RELEASE_FILE}")
    if raw is None:
        raise RefusedError("the page has no signed release", where=location, remedy="add --release FILE")
    signed_release = read_release(_parse_json(raw), verifier(list(signer_keys.keys)))
    check_result = check_page(signed_release, fetch, studies)
    if json:
        emit(
            {
                "build": signed_release.build,
                "version": signed_release.version,
                "signed_at": signed_release.signed_at,
                "signer": signer_keys.name,
                "files": check_result.files,
                "connect_origins": check_result.connect_origins,
            }
        )
        return
    typer.echo(signed_release.build)
    note(
        f"all {check_result.files} files are equal to version {signed_release.version}, signed by {signer_keys.name}"
    )
    for study, origins in check_result.connect_origins.items():
        note(f"{study} may connect to {', '.join(origins) if origins else 'its own server only'}")


def _to_json(statement: dict[str, Any]) -> str:
    import json

    return json.dumps(statement, indent=1)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            "the release cannot be read", where=str(file), remedy=error.strerror or "check the path"
        ) from None


def _parse_json(raw: bytes) -> object:
    import json

    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise RefusedError("the release is not JSON", remedy="add --release FILE") from None


def _folder(folder: Path) -> tuple[Fetch, list[str]]:
    """Return a reader of the citizen page's files in a folder by URL path, and the folder's studies."""
    from abaton.citizen.page_files import BASE_PATH

    root = folder / BASE_PATH.strip("/")
    if not root.is_dir():
        raise SettingsError(
            "the folder contains no citizen page",
            where=str(folder),
            remedy="use a folder of 'abaton citizen build'",
        )

    def fetch(address: str) -> bytes | None:
        path = folder / address.strip("/")
        path = path / "index.html" if path.is_dir() else path
        return path.read_bytes() if path.is_file() else None

    return fetch, [unquote(path.parent.name) for path in sorted(root.glob("*/index.html"))]


def _site(address: str) -> tuple[Fetch, list[str]]:
    """Return a function that fetches the citizen page's files from a server, and the study of the URL."""
    import httpx

    from abaton.citizen.page_files import BASE_PATH

    url = urlsplit(address)
    study = unquote(url.path.removeprefix(f"{BASE_PATH}/").strip("/"))
    if not study or "/" in study:
        raise SettingsError(
            "the URL is not that of a study's page",
            where=address,
            remedy=f"use https://HOST{BASE_PATH}/STUDY",
        )

    def fetch(path: str) -> bytes | None:
        try:
            response = httpx.get(f"{url.scheme}://{url.netloc}{path}", timeout=60)
        except httpx.HTTPError:
            raise RefusedError("the server is unreachable", where=address, remedy="try again later") from None
        return response.content if response.status_code == 200 else None

    return fetch, [study]
