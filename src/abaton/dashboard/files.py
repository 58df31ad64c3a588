"""The files that pages need: a fixed list, read once. Nothing of an address is ever taken for a path."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_KINDS: Mapping[str, str] = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "plotly.js": "text/javascript; charset=utf-8",
    "theme.js": "text/javascript; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent: whole or packed, with a tag so that a browser asks for it once."""

    kind: str
    body: bytes
    packed: bytes
    tag: str

    @property
    def headers(self) -> dict[str, str]:
        """What is said of it: a browser keeps it, and asks whether it is still the same."""
        return {"etag": self.tag, "cache-control": "private, max-age=60", "vary": "accept-encoding"}


def static_file(name: str) -> StaticFile | None:
    """A file by its name, if it is on the list."""
    return _read(name) if name in _KINDS else None


@cache
def _read(name: str) -> StaticFile:
    if (
        name == "plotly.js"
    ):  # as it is in Plotly's own package: drawn offline, in the version that is installed
        body = files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    else:
        body = files("abaton.dashboard").joinpath("static", name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return StaticFile(_KINDS[name], body, gzip.compress(body, 6, mtime=0), tag)


@cache
def style_marks() -> str:
    """Elements that stand for styles which Plotly would write into the page for maps: no page here has one.

    It looks for an element with a fingerprint as its id, and writes nothing if there is one; so the pages need no
    exception from the rule that styles come from files.
    """
    plotly = _read("plotly.js").body.decode()
    marks = re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly)
    return "".join(f'<meta id="{mark}">' for mark in dict.fromkeys(marks))
