"""Built page: file list with digests, content security policy and static export.

``make citizen`` builds the page into the package. The build digest is the SHA-256 of the file list; it is in every
file URL, on the page, and in each enrolment receipt. The origins that a study's page may connect to come from the
study document.
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

from abaton.atomic_files import temporary_name
from abaton.errors import RefusedError, SettingsError
from abaton.governance import ConsentRegistry
from abaton.study.sections import CitizenSection

BUILD_FOLDER = Path(__file__).with_name("built")
BASE_PATH = "/take-part"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
RELEASE_FILE = "release.json"
"""File name of the signed release statement of a build."""
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".zip": "application/zip",
}
_TEMPLATES = ("index.html", "sw.js")


@dataclass(frozen=True)
class PageFile:
    """Built page.

    Args:
        folder: Folder of its files.
        build: Digest of the file list.
        files: File names and their digests.
    """

    folder: Path
    build: str
    files: dict[str, str]

    @classmethod
    def read(cls, folder: Path = BUILD_FOLDER) -> PageFile:
        """Return the built citizen page after comparing every file with its digest."""
        try:
            row = json.loads((folder / "manifest.json").read_text("utf-8"))
            files = {name: about["sha256"] for name, about in row["files"].items()}
            build = row["build"]
        except FileNotFoundError:
            raise SettingsError(
                "the citizen page is not built",
                where=str(folder),
                remedy="run 'make citizen' (needs node and npm)",
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _changed_page_error(folder) from None
        page = cls(folder, build, files)
        page.check()
        return page

    def check(self) -> None:
        """Raise an error if a file of the citizen page differs from the build."""
        if build_digest(self.files) != self.build:
            raise _changed_page_error(self.folder)
        for name, expected in self.files.items():
            try:
                digest = hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
            except OSError:
                digest = ""
            if digest != expected:
                raise _changed_page_error(self.folder)

    @property
    def files_url(self) -> str:
        """URL path of the citizen page's files; it changes with every build, so files may be cached forever."""
        return f"{BASE_PATH}/files/{self.build}/"

    def body(self, name: str, connect_origins: tuple[str, ...] = ()) -> bytes:
        """Return the content of a file of the built citizen page, with placeholders filled in.

        Args:
            name: File name.
            connect_origins: Further origins that the page may connect to.
        """
        raw = (self.folder / name).read_bytes()
        if name not in _TEMPLATES:
            return raw
        text = (
            raw.decode()
            .replace("{{build}}", self.build)
            .replace("{{connect_origins}}", _origin_list(connect_origins))
        )
        return text.replace("{{files}}", json.dumps(self.cached_names)).encode()

    @property
    def release(self) -> bytes | None:
        """Signed release statement among the files of the built citizen page, if any."""
        path = self.folder / RELEASE_FILE
        return path.read_bytes() if path.is_file() else None

    def compressed_path(self, name: str) -> Path | None:
        """Return the path of the Brotli-compressed file of the citizen page, if any."""
        path = self.folder / f"{name}.br"
        return path if name not in _TEMPLATES and path.is_file() else None

    @cached_property
    def cached_names(self) -> list[str]:
        """Files of the citizen page that the browser caches for offline use."""
        return sorted(name for name in self.files if name not in _TEMPLATES)

    @staticmethod
    def media_type(name: str) -> str:
        """Return the media type of a file of the citizen page."""
        return _MEDIA_TYPES[Path(name).suffix]


def build_digest(files: Mapping[str, str]) -> str:
    """Return the build digest of the citizen page: SHA-256 of the sorted list of file digests and names."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def content_security_policy(connect_origins: tuple[str, ...]) -> str:
    """Return the content security policy of a study's citizen page.

    >>> content_security_policy(("https://fhir.example.org",)).split("; ")[4]
    "connect-src 'self' https://fhir.example.org"
    """
    return CONTENT_SECURITY_POLICY.replace(
        "connect-src 'self'", f"connect-src 'self'{_origin_list(connect_origins)}"
    )


def _origin_list(connect_origins: tuple[str, ...]) -> str:
    return "".join(f" {origin}" for origin in connect_origins)


def write_page(page: PageFile, studies: Mapping[str, tuple[str, ...]], out: Path) -> list[str]:
    """Write the citizen page as static files for a server that forwards ``/v1`` to the intake; return names.

    Args:
        page: The page.
        studies: Study identifiers, and the further origins that each page may connect to.
        out: New folder.
    """
    if out.exists():
        raise SettingsError("the folder exists", where=str(out), remedy="choose a new folder")
    files = {f"{page.files_url.strip('/')}/{name}": page.body(name) for name in page.cached_names}
    files[f"{BASE_PATH.strip('/')}/sw.js"] = page.body("sw.js")
    if page.release:
        files[f"{BASE_PATH.strip('/')}/{RELEASE_FILE}"] = page.release
    for study, connect_origins in studies.items():
        files[f"{BASE_PATH.strip('/')}/{quote(study, safe='')}/index.html"] = page.body(
            "index.html", connect_origins
        )
    temporary = out.with_name(temporary_name(secrets.token_hex(8)))
    try:
        for name, body in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes(body)
        temporary.rename(out)
    except OSError as error:
        raise SettingsError(
            "the page could not be written", where=str(out), remedy=error.strerror or "choose another path"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sorted(files)


def _changed_page_error(folder: Path) -> RefusedError:
    return RefusedError(
        "a file of the citizen page differs from its build", where=str(folder), remedy="run 'make citizen'"
    )


def allowed_origins(registry: ConsentRegistry, study: str) -> tuple[str, ...]:
    """Return further origins that a study's citizen page may connect to; empty if it is not published."""
    published = registry.study(study)
    section = json.loads(published.content).get("citizens") if published else None
    return CitizenSection.model_validate_json(json.dumps(section)).allowed_origins if section else ()
