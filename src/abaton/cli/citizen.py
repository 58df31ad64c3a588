"""``abaton citizen``: the page on which people take part themselves: as static files, vouched for, and checked."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import typer

from abaton.cli.key_access import PASSPHRASE_ENV, PASSPHRASE_FILE, ring
from abaton.cli.output import emit, note
from abaton.cli.runs import JsonOption
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.citizen.page_release import Fetch

app = typer.Typer(help="The page on which people take part with their own records.", no_args_is_help=True)


@app.command()
def build(
    files: list[Path] = typer.Argument(..., metavar="STUDY...", help="The study documents that it is for."),
    *,
    out: Path = typer.Option(..., "--out", "-o", help="A new folder."),
    json: bool = JsonOption,
) -> None:
    """Write the citizen's page as static files, for a web server that passes /v1 on to the centre's intake.

    The intake serves the same page itself (abaton serve intake --citizen). Prints the fingerprint of the build,
    which is the same for everybody who builds this version.
    """
    from abaton.citizen.page_files import Page, write_page
    from abaton.study import load_study

    studies: dict[str, tuple[str, ...]] = {}
    for file in files:
        study = load_study(file)
        if study.persons is None:
            raise Refused(
                "people cannot take part in this study themselves",
                where=str(file),
                remedy="write [persons] in it",
            )
        studies[study.study.id] = study.persons.reached
    page = Page.read()
    written = write_page(page, studies, out)
    if json:
        emit({"build": page.build, "files": written, "out": str(out)})
    else:
        typer.echo(page.build)
        note(f"{len(written)} files in {out}; the page of a study is at /take-part/STUDY")


@app.command()
def sign(
    keys: Path = typer.Argument(..., metavar="KEYS", help="The private key file of whoever vouches for it."),
    *,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Where the release goes; beside the built page if not given."
    ),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JsonOption,
) -> None:
    """Vouch for the built page: a signed statement with its fingerprint and that of every file.

    Beside the built page it is in the wheel, in static files and at /take-part/release.json, for whoever wants to
    check the page with 'abaton citizen check'.
    """
    from abaton.citizen.page_files import RELEASE, Page
    from abaton.citizen.page_release import write_release

    page = Page.read()
    signer = ring(keys, passphrase_file, passphrase_env).signing
    statement = write_release(page, signer, datetime.now(UTC))
    target = out or page.folder / RELEASE
    try:
        target.write_text(f"{_dumped(statement)}\n", "utf-8")
    except OSError as error:
        raise SettingsError(
            "the release was not written", where=str(target), remedy=error.strerror or "choose another place"
        ) from None
    if json:
        emit({"build": page.build, "signer": signer.id, "out": str(target)})
    else:
        typer.echo(page.build)
        note(f"signed by {signer.id}, in {target}")


@app.command()
def check(
    place: str = typer.Argument(
        ..., metavar="PLACE", help="The address of a study's page, or a folder of 'citizen build'."
    ),
    *,
    signer: Path = typer.Option(..., "--signer", help="The public keys of whoever must have signed."),
    release: Path | None = typer.Option(
        None, "--release", help="The signed release; that of the page itself if not given."
    ),
    json: bool = JsonOption,
) -> None:
    """Compare a page, to the byte, with the release that somebody has signed; exit 3 if it is another one.

    It does not matter who hands out the release, because it counts only with the right signature. Says whom the
    page may talk to besides its own server, which must be what the study names.
    """
    from abaton.citizen.page_files import BASE, RELEASE
    from abaton.citizen.page_release import check_page, read_release
    from abaton.governance.keys import read_public, verifier

    known = read_public(signer)
    fetch, studies = _site(place) if place.startswith(("https://", "http://")) else _folder(Path(place))
    raw = _read(release) if release else fetch(f"{BASE}/{RELEASE}")
    if raw is None:
        raise Refused("there is no signed release", where=place, remedy="give one with --release")
    vouched = read_release(_parsed(raw), verifier(list(known.keys)))
    found = check_page(vouched, fetch, studies)
    if json:
        emit(
            {
                "build": vouched.build,
                "version": vouched.version,
                "signed": vouched.at,
                "signer": known.name,
                "files": found.files,
                "reached": found.reached,
            }
        )
        return
    typer.echo(vouched.build)
    note(f"all {found.files} files are those of version {vouched.version}, signed by {known.name}")
    for study, others in found.reached.items():
        note(f"{study} may talk to {', '.join(others) if others else 'nobody but its own server'}")


def _dumped(statement: dict[str, Any]) -> str:
    import json

    return json.dumps(statement, indent=1)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            "the release cannot be read", where=str(file), remedy=error.strerror or "check the path"
        ) from None


def _parsed(raw: bytes) -> object:
    import json

    try:
        return json.loads(raw)
    except ValueError:
        raise Refused("this is no signed release", remedy="give one with --release") from None


def _folder(folder: Path) -> tuple[Fetch, list[str]]:
    """Static files as a server would serve them, and the studies that they are for."""
    from abaton.citizen.page_files import BASE

    root = folder / BASE.strip("/")
    if not root.is_dir():
        raise SettingsError(
            "the page is not here", where=str(folder), remedy="name a folder of 'abaton citizen build'"
        )

    def fetch(address: str) -> bytes | None:
        path = folder / address.strip("/")
        path = path / "index.html" if path.is_dir() else path
        return path.read_bytes() if path.is_file() else None

    return fetch, [unquote(path.parent.name) for path in sorted(root.glob("*/index.html"))]


def _site(address: str) -> tuple[Fetch, list[str]]:
    """A server, and the study whose page was named."""
    import httpx

    from abaton.citizen.page_files import BASE

    parts = urlsplit(address)
    study = unquote(parts.path.removeprefix(f"{BASE}/").strip("/"))
    if not study or "/" in study:
        raise SettingsError(
            "this is not the address of a study's page", where=address, remedy=f"name .../{BASE}/STUDY"
        )

    def fetch(path: str) -> bytes | None:
        try:
            got = httpx.get(f"{parts.scheme}://{parts.netloc}{path}", timeout=60)
        except httpx.HTTPError:
            raise Refused("the server cannot be reached", where=address, remedy="try again later") from None
        return got.content if got.status_code == 200 else None

    return fetch, [study]
