"""The page as it was built: a fixed list of files with their fingerprints, served or written out.

``make citizen`` builds it; a wheel that was made after that holds it. The build's fingerprint is that of the list, is
in the address of every file, on the page, and in the receipt of everybody who enrols.

What the published studies say about the page: whom it may talk to besides its own server.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from abaton.atomic_files import begun_name
from abaton.errors import Refused, SettingsError
from abaton.governance import Registry
from abaton.study.sections import Persons

BUILT = Path(__file__).with_name("built")
BASE = "/take-part"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
RELEASE = "release.json"
"""The statement with which somebody vouches for a build, if it was signed."""
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".zip": "application/zip",
}
_FILLED = ("index.html", "sw.js")


@dataclass(frozen=True)
class Page:
    """A built page.

    Args:
        folder: Where its files are.
        build: The fingerprint of all of them.
        files: Their names and fingerprints.
    """

    folder: Path
    build: str
    files: dict[str, str]

    @classmethod
    def read(cls, folder: Path = BUILT) -> Page:
        """The page that was built, if it is whole; every file is compared with its fingerprint."""
        try:
            row = json.loads((folder / "manifest.json").read_text("utf-8"))
            files = {name: about["sha256"] for name, about in row["files"].items()}
            build = row["build"]
        except FileNotFoundError:
            raise SettingsError(
                "the citizen's page is not built",
                where=str(folder),
                remedy="run 'make citizen' (needs node and npm)",
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _broken(folder) from None
        page = cls(folder, build, files)
        page.check()
        return page

    def check(self) -> None:
        """Refuse a page of which a file is not the one that was built."""
        if fingerprint(self.files) != self.build:
            raise _broken(self.folder)
        for name, mark in self.files.items():
            try:
                found = hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
            except OSError:
                found = ""
            if found != mark:
                raise _broken(self.folder)

    @property
    def place(self) -> str:
        """The address under which the build's files are; it changes with every build, so they may be kept forever."""
        return f"{BASE}/files/{self.build}/"

    def body(self, name: str, reached: tuple[str, ...] = ()) -> bytes:
        """A file of the page; the two that name others are filled in.

        Args:
            name: The file.
            reached: Whom the page of a study may talk to besides its own server.
        """
        raw = (self.folder / name).read_bytes()
        if name not in _FILLED:
            return raw
        text = raw.decode().replace("{{build}}", self.build).replace("{{reached}}", _more(reached))
        return text.replace("{{files}}", json.dumps(self.listed)).encode()

    @property
    def release(self) -> bytes | None:
        """The signed statement that vouches for this build, if there is one."""
        path = self.folder / RELEASE
        return path.read_bytes() if path.is_file() else None

    def packed(self, name: str) -> Path | None:
        """A file as it was packed for the way (brotli), if it was."""
        path = self.folder / f"{name}.br"
        return path if name not in _FILLED and path.is_file() else None

    @cached_property
    def listed(self) -> list[str]:
        """What a browser keeps to work without a connection."""
        return sorted(name for name in self.files if name not in _FILLED)

    @staticmethod
    def kind(name: str) -> str:
        """The media type of a file."""
        return _KINDS[Path(name).suffix]


def fingerprint(files: Mapping[str, str]) -> str:
    """The fingerprint of a build: that of the list of its files with theirs, in the order of their names."""
    lines = "".join(f"{mark}  {name}\n" for name, mark in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def policy(reached: tuple[str, ...]) -> str:
    """The content policy of a study's page.

    >>> policy(("https://fhir.example.org",)).split("; ")[4]
    "connect-src 'self' https://fhir.example.org"
    """
    return POLICY.replace("connect-src 'self'", f"connect-src 'self'{_more(reached)}")


def _more(reached: tuple[str, ...]) -> str:
    return "".join(f" {origin}" for origin in reached)


def write_page(page: Page, studies: Mapping[str, tuple[str, ...]], out: Path) -> list[str]:
    """Write the page as static files, for a server that passes ``/v1`` on to the centre's intake; their names.

    Args:
        page: The page.
        studies: The identifiers of the studies that it is for, and whom the page of each may talk to besides.
        out: A new folder.
    """
    if out.exists():
        raise SettingsError("there is something already", where=str(out), remedy="choose a new folder")
    files = {f"{page.place.strip('/')}/{name}": page.body(name) for name in page.listed}
    files[f"{BASE.strip('/')}/sw.js"] = page.body("sw.js")
    if page.release:
        files[f"{BASE.strip('/')}/{RELEASE}"] = page.release
    for study, reached in studies.items():
        files[f"{BASE.strip('/')}/{quote(study, safe='')}/index.html"] = page.body("index.html", reached)
    begun = out.with_name(begun_name(secrets.token_hex(8)))
    try:
        for name, body in files.items():
            (begun / name).parent.mkdir(parents=True, exist_ok=True)
            (begun / name).write_bytes(body)
        begun.rename(out)
    except OSError as error:
        raise SettingsError(
            "the page was not written", where=str(out), remedy=error.strerror or "choose another place"
        ) from None
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return sorted(files)


def _broken(folder: Path) -> Refused:
    return Refused(
        "the citizen's page is not the one that was built", where=str(folder), remedy="run 'make citizen'"
    )


def reached_by(registry: Registry, study: str) -> tuple[str, ...]:
    """Whom the page of a study may talk to besides its own server; nobody if there is no such study."""
    found = registry.study(study)
    persons = json.loads(found.content).get("persons") if found else None
    return Persons.model_validate_json(json.dumps(persons)).reached if persons else ()
