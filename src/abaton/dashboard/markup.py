"""What the dashboard's pages are made of: one frame, tables that can be scrolled by keyboard, places for figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from abaton import __version__
from abaton.dashboard.files import style_marks
from abaton.dashboard.gate import Caller
from abaton.report.html import table, text
from abaton.store import EventLine, LearnerLine

_NAV = (("", "Runs"), ("/compare", "Compare"), ("/governance", "Governance"))
_AXES = {"wall": "wall-clock", "at": "simulated time", "version": "rounds", "bytes": "bytes"}
_ROLES = {"viewer": "viewer", "operator": "operator", "controller": "data controller"}
_MARK = (
    '<svg viewBox="0 0 32 32" width="28" height="28" aria-hidden="true" focusable="false">'
    '<path d="M16 3 3 10v3h26v-3zM6 15h4v10H6zm8 0h4v10h-4zm8 0h4v10h-4zM3 27h26v3H3z"/></svg>'
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What every page has around it.

    Attributes:
        base: Where the pages are.
        caller: Who looks.
    """

    base: str
    caller: Caller | None

    def page(self, title: str, body: str, *, here: str = "", script: bool = True) -> str:
        """A whole page."""
        links = "".join(
            f'<li><a href="{self.base}{path or "/"}"{_current(path == here)}>{name}</a></li>'
            for path, name in _NAV
        )
        scripts = (
            f'{style_marks()}<script src="{self.base}/static/plotly.js" defer></script>'
            f'<script src="{self.base}/static/dashboard.js" defer></script>'
            if script
            else ""
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(title)} · Abaton</title>"
            f'<link rel="icon" href="{self.base}/static/icon.svg" type="image/svg+xml">'
            # The id and the class tell Plotly that its own rules are in the file, so that it writes none into the page.
            '<link rel="stylesheet" id="plotly.js-style-global" class="no-inline-styles" '
            f'href="{self.base}/static/dashboard.css">'
            f'<script src="{self.base}/static/theme.js"></script>{scripts}</head>'
            f'<body data-base="{self.base}"><a class="skip" href="#main">Skip to the content</a>'
            f'<header class="top"><a class="brand" href="{self.base}/">{_MARK}<span>Abaton</span></a>'
            f'<nav aria-label="Pages"><ul>{links}</ul></nav>{self._person()}</header>'
            f'<main id="main" tabindex="-1">{body}</main>'
            f"<footer>Abaton {text(__version__)} · records stay in, healing comes out</footer></body></html>"
        )

    def _person(self) -> str:
        button = '<button type="button" id="theme" class="quiet">Theme: system</button>'
        if self.caller is None:
            return f'<div class="person">{button}</div>'
        person = self.caller.person
        words = f'<span class="who">{text(person.name)} · {_ROLES.get(person.role, "")}</span>'
        leave = ""
        if self.caller.form_key and not self.caller.session.startswith("proxy/"):
            leave = (
                f'<form method="post" action="{self.base}/logout">{self.form_key()}'
                '<button class="quiet">Sign out</button></form>'
            )
        return f'<div class="person">{words}{button}{leave}</div>'

    def form_key(self) -> str:
        """The hidden field that every form that changes something carries."""
        key = self.caller.form_key if self.caller else ""
        return f'<input type="hidden" name="key" value="{escape(key)}">'

    def run_link(self, run: str) -> str:
        """A link to a run's page."""
        return f'<a href="{self.base}/runs/{quote(run, safe="")}">{text(run)}</a>'


def _current(here: bool) -> str:  # noqa: FBT001
    return ' aria-current="page"' if here else ""


def scrolled(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in a part of the page that can be scrolled with the keyboard."""
    made = table(caption, heads, rows)
    return made.replace(
        '<div class="scroll">',
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">',
        1,
    )


def figure(name: str, title: str, words: str, *, wide: bool = False, more: str = "") -> str:
    """A place for a figure, with its numbers as a table below it; `more` stands before the drawing."""
    return (
        f'<figure class="card{" wide" if wide else ""}" data-figure="{name}">'
        f'<figcaption><h2 id="f-{name}">{text(title)}</h2><p>{text(words)}</p></figcaption>{more}'
        f'<div class="plot" role="img" aria-labelledby="f-{name}"></div>'
        f"<details><summary>The numbers of “{text(title)}” as a table</summary>"
        '<div class="numbers"></div></details></figure>'
    )


def section(name: str, title: str, content: str) -> str:
    """A part of a page with a heading."""
    return (
        f'<section class="card wide" aria-labelledby="h-{name}"><h2 id="h-{name}">{text(title)}</h2>'
        f"{content}</section>"
    )


def data_table(name: str) -> str:
    """A place for a table that the page's script fills."""
    return f'<div data-table="{name}"></div>'


def axis_choices(axes: Sequence[str], chosen: str) -> str:
    """How to count, and what to show."""
    radios = "".join(
        f'<label><input type="radio" name="axis" value="{name}"{" checked" if name == chosen else ""}> '
        f"{_AXES[name]}</label>"
        for name in axes
    )
    return (
        f'<div class="choices"><fieldset><legend>Count by</legend>{radios}</fieldset>'
        '<label for="metric">Show</label> <select id="metric"></select></div>'
    )


def badge(status: str) -> str:
    """A run's status as a word with a colour."""
    return f'<span class="badge {escape(status)}">{text(status)}</span>'


def size(number: int) -> str:
    """Bytes for reading.

    >>> size(512), size(20_480), size(3_500_000)
    ('512 B', '20.5 kB', '3.5 MB')
    """
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def learners_table(lines: Sequence[LearnerLine], total: int) -> str:
    """The learners of a run, as a table; a column of which nothing may be told is left out."""
    columns: dict[str, list[object]] = {
        "learner": [e.learner for e in lines],
        "now": [e.state for e in lines],
        "group": [e.group or "–" for e in lines],
        "examples": [e.examples for e in lines],
        "commits": [e.commits for e in lines],
        "sent": [size(e.bytes) for e in lines],
        "steps": [e.steps for e in lines],
        "weight": [e.weight for e in lines],
        "staleness": [e.staleness for e in lines],
        "training s": [e.training for e in lines],
        "uploading s": [e.uploading for e in lines],
        "waiting s": [e.waiting for e in lines],
        "failed": [e.failed for e in lines],
    }
    told = {head: cells for head, cells in columns.items() if any(cell is not None for cell in cells)}
    rows = zip(*(["–" if cell is None else cell for cell in cells] for cells in told.values()), strict=True)
    words = f"{total} learners" if total == len(lines) else f"the {len(lines)} busiest of {total:,} learners"
    return scrolled(words, list(told), rows)


def newest_events(lines: Sequence[EventLine], caption: str = "the newest events") -> str:
    """Events of the journal, as a table."""
    rows = [(f"{e.sequence}", e.at, e.kind, e.learner or "–", _told(e.detail)) for e in lines]
    return scrolled(caption, ("event", "second", "kind", "learner", "what"), rows)


def _told(detail: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in detail.items()) or "–"
