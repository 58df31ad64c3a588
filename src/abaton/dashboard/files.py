"""The files that pages need: a fixed list, read once. Nothing of an address is ever taken for a path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from abaton.dashboard.response_cache import Answer, packed
from abaton.report.html_renderer import read

_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
_SHARED: Mapping[str, str] = {"abaton.css": _STYLE, "draw.js": _SCRIPT, "plotly.js": _SCRIPT}
_OWN: Mapping[str, str] = {
    "dashboard.css": _STYLE,
    "dashboard.js": _SCRIPT,
    "icon.svg": "image/svg+xml",
    "theme.js": _SCRIPT,
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent, and what kind it is."""

    kind: str
    answer: Answer


@cache
def static_file(name: str) -> StaticFile | None:
    """A file by its name, if it is on the list; those that reports carry, too, are theirs."""
    if name in _SHARED:
        return StaticFile(_SHARED[name], packed(read(name).encode()))
    if name in _OWN:
        return StaticFile(_OWN[name], packed(files("abaton.dashboard").joinpath("static", name).read_bytes()))
    return None
