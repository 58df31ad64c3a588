"""Signed release of the page, and comparison of a server or folder with it.

A release is a statement (:mod:`abaton.governance.signed_statements`) of the kind ``page-release``. Its body contains
the build digest, the version of Abaton, and the digest of every file. It is trusted because of its signature,
whatever its source.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import abaton
from abaton.citizen.page_files import BASE_PATH, PageFile, build_digest
from abaton.errors import RefusedError
from abaton.governance.identifiers import is_digest
from abaton.governance.signed_statements import (
    Find,
    Statement,
    StatementSigner,
    sign_statement,
    verify_statement,
)
from abaton.governance.timestamps import to_timestamp

KIND = "page-release"
_CONNECT_ORIGINS = re.compile(r"(?<=connect-src 'self')( https?://[^;\s\"]+)*(?=;)")
Fetch = Callable[[str], bytes | None]
"""Return the content of a URL path of the page, such as ``/take-part/sw.js``; None if missing."""


@dataclass(frozen=True)
class PageRelease:
    """Content of a signed release.

    Args:
        build: Build digest.
        version: Version of Abaton that it was built from.
        files: Files and their digests.
        signed_at: Time of signature.
    """

    build: str
    version: str
    files: dict[str, str]
    signed_at: str


@dataclass(frozen=True)
class PageCheck:
    """Number of compared files, and further origins of each study's page."""

    files: int
    connect_origins: dict[str, tuple[str, ...]]


def write_release(page: PageFile, signer: StatementSigner, when: datetime) -> Statement:
    """Sign a release of the citizen page's build after comparing its files."""
    page.check()
    body = {"build": page.build, "version": abaton.__version__, "files": page.files, "at": to_timestamp(when)}
    return sign_statement(signer, KIND, body)


def read_release(statement: object, find: Find) -> PageRelease:
    """Verify a release of the citizen page that is signed by an accepted key."""
    body: dict[str, Any] = verify_statement(statement, KIND, find)
    files = body.get("files")
    if (
        set(body) != {"build", "version", "files", "at"}
        or not isinstance(files, dict)
        or not all(is_digest(digest) for digest in files.values())
        or build_digest(files) != body["build"]
    ):
        raise RefusedError("the release is inconsistent", remedy="ask its signer for a new one")
    return PageRelease(str(body["build"]), str(body["version"]), files, str(body["at"]))


def check_page(release: PageRelease, fetch: Fetch, studies: Iterable[str]) -> PageCheck:
    """Raise an error if a citizen page differs from its signed release in any byte.

    Args:
        release: The release.
        fetch: Reads from a server or a folder.
        studies: Studies whose pages are checked.
    """
    named = [name for name in release.files if name not in ("index.html", "sw.js")]
    for name in named:
        _compare(release, name, fetch(f"{BASE_PATH}/files/{release.build}/{name}"))
    worker = _restore_build_placeholder(release, fetch(f"{BASE_PATH}/sw.js"))
    _compare(release, "sw.js", worker.replace(json.dumps(sorted(named)), "{{files}}").encode())
    connect_origins: dict[str, tuple[str, ...]] = {}
    for study in studies:
        text = _restore_build_placeholder(release, fetch(f"{BASE_PATH}/{quote(study, safe='')}"))
        match = _CONNECT_ORIGINS.search(text)
        connect_origins[study] = tuple(match[0].split()) if match else ()
        _compare(release, "index.html", _CONNECT_ORIGINS.sub("{{connect_origins}}", text, count=1).encode())
    return PageCheck(len(named) + 1 + len(connect_origins), connect_origins)


def _restore_build_placeholder(release: PageRelease, body: bytes | None) -> str:
    """Return a page's file with the build digest replaced by its placeholder, as in the release."""
    return (body or b"").decode("utf-8", "replace").replace(release.build, "{{build}}")


def _compare(release: PageRelease, name: str, body: bytes | None) -> None:
    if body is None:
        raise RefusedError(
            "a file of the release is missing", where=name, remedy="do not use this page; inform its operator"
        )
    if hashlib.sha256(body).hexdigest() != release.files.get(name):
        raise RefusedError(
            "the file differs from the release",
            where=name,
            remedy="do not use this page; inform its operator",
        )
