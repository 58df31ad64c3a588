"""A signed release of the page: who vouches for which bytes, and whether a server or a folder has exactly those.

The statement is one of :mod:`abaton.governance.signed_statements`, of the kind ``page-release``. Its body names the build's
fingerprint, the version of Abaton, and the fingerprint of every file. Where it comes from does not matter: it counts
because of who signed it.
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
from abaton.citizen.page_files import BASE, Page, fingerprint
from abaton.errors import Refused
from abaton.governance.identifiers import is_digest, stamp
from abaton.governance.signed_statements import Find, Signer, Statement, check, state

KIND = "page-release"
_REACHED = re.compile(r"(?<=connect-src 'self')( https?://[^;\s\"]+)*(?=;)")
Fetch = Callable[[str], bytes | None]
"""What is under an address of the page, such as ``/take-part/sw.js``; nothing if there is nothing."""


@dataclass(frozen=True)
class Release:
    """What somebody has vouched for.

    Args:
        build: The fingerprint of all files.
        version: The version of Abaton that it was built from.
        files: The files and their fingerprints.
        at: When it was signed.
    """

    build: str
    version: str
    files: dict[str, str]
    at: str


@dataclass(frozen=True)
class Found:
    """What was compared, and whom the pages of the studies may talk to besides their own server."""

    files: int
    reached: dict[str, tuple[str, ...]]


def write_release(page: Page, signer: Signer, when: datetime) -> Statement:
    """Vouch for a build; its files are compared once more before it is signed."""
    page.check()
    body = {"build": page.build, "version": abaton.__version__, "files": page.files, "at": stamp(when)}
    return state(signer, KIND, body)


def read_release(statement: object, find: Find) -> Release:
    """A release that one of the known keys has signed, and whose parts fit together."""
    body: dict[str, Any] = check(statement, KIND, find)
    files = body.get("files")
    if (
        set(body) != {"build", "version", "files", "at"}
        or not isinstance(files, dict)
        or not all(is_digest(mark) for mark in files.values())
        or fingerprint(files) != body["build"]
    ):
        raise Refused("the release does not fit together", remedy="ask whoever signed it for a new one")
    return Release(str(body["build"]), str(body["version"]), files, str(body["at"]))


def check_page(release: Release, fetch: Fetch, studies: Iterable[str]) -> Found:
    """Refuse a page that is not the released one, to the byte.

    Args:
        release: What was vouched for.
        fetch: Gets what a server or a folder has.
        studies: The studies whose pages are looked at.
    """
    named = [name for name in release.files if name not in ("index.html", "sw.js")]
    for name in named:
        _compare(release, name, fetch(f"{BASE}/files/{release.build}/{name}"))
    worker = _without_build(release, fetch(f"{BASE}/sw.js"))
    _compare(release, "sw.js", worker.replace(json.dumps(sorted(named)), "{{files}}").encode())
    reached: dict[str, tuple[str, ...]] = {}
    for study in studies:
        text = _without_build(release, fetch(f"{BASE}/{quote(study, safe='')}"))
        found = _REACHED.search(text)
        reached[study] = tuple(found[0].split()) if found else ()
        _compare(release, "index.html", _REACHED.sub("{{reached}}", text, count=1).encode())
    return Found(len(named) + 1 + len(reached), reached)


def _without_build(release: Release, body: bytes | None) -> str:
    """A file that names the build, as it was before that was filled in."""
    return (body or b"").decode("utf-8", "replace").replace(release.build, "{{build}}")


def _compare(release: Release, name: str, body: bytes | None) -> None:
    if body is None:
        raise Refused(
            "a file of the release is missing", where=name, remedy="do not use this page; tell its owner"
        )
    if hashlib.sha256(body).hexdigest() != release.files.get(name):
        raise Refused(
            "a file is not the released one", where=name, remedy="do not use this page; tell its owner"
        )
