"""What all pages are made of: safe text, tables that a screen reader can read, and a head that fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #fff; --bar: #0b6e75;
  --bad: #a40e26; --good: #116329; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa5b1; --line: #3b434b; --paper: #0f1419;
  --bar: #4fb8bf; --bad: #ff8182; --good: #6fdd8b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem;
  border-bottom: 1px solid var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.long { overflow-wrap: anywhere; min-width: 10em; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.absent { color: var(--soft); font-style: italic; } .yes { color: var(--good); } .no { color: var(--bad); }
.meter { display: inline-block; width: 12rem; height: .8rem; border: 1px solid var(--line); }
.meter span { display: block; height: 100%; background: var(--bar); print-color-adjust: exact; }
code { overflow-wrap: anywhere; } pre { white-space: pre-wrap; padding: .7rem; border: 1px solid var(--line); }
@media (min-width: 56rem) { .three { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .5rem; } }
.sign { display: grid; grid-template-columns: 1fr 1fr 1fr; gap: 2rem;
  margin-top: 3rem; } .sign div { border-top: 1px solid var(--ink); padding-top: .3rem; color: var(--soft); }
a.skip { position: absolute; left: -99rem; } a.skip:focus { left: 1rem; }
@media print { :root { --ink: #000; --soft: #333; --line: #999; --paper: #fff; --bar: #333; --bad: #000;
  --good: #000; } body { max-width: none; padding: 0; font-size: 10pt; } h2, caption { break-after: avoid; }
  tr { break-inside: avoid; } th, td { overflow-wrap: anywhere; }
  .scroll { overflow: visible; } a.skip { display: none; } }
"""

ABSENT = '<p class="absent">Not supplied.</p>'

_NOTHING = "default-src 'none'; style-src 'unsafe-inline'"
_DRAWING = f"{_NOTHING}; script-src 'unsafe-inline'; img-src data: blob:"


def head(title: str, script: str = "") -> str:
    """The head of a page: it fetches nothing, and runs no script but the one that is given."""
    rules = _DRAWING if script else _NOTHING
    inside = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style>{inside}</head>"
    )


def document(title: str, about: str, sections: Sequence[tuple[str, str]]) -> str:
    """A whole page with figures: a heading, and sections that a reader can jump between.

    Args:
        title: What it is about.
        about: A line under the heading.
        sections: Each with its heading and its content, which is HTML already.
    """
    from plotly.offline import get_plotlyjs

    body = "".join(
        f'<section aria-labelledby="s{i}"><h2 id="s{i}">{text(name)}</h2>{content}</section>'
        for i, (name, content) in enumerate(sections, 1)
    )
    return (
        f"{head(title, get_plotlyjs())}<body>"
        '<a class="skip" href="#main">Skip to the report</a>'
        f"<header><h1>{text(title)}</h1><p>{text(about)}</p></header>"
        f'<main id="main">{body}</main></body></html>\n'
    )


def figures_html(figures: Mapping[str, Any]) -> str:
    """Figures, three of them side by side where there is room; the page's own script draws them."""
    # Buttons would lie over the titles of small figures; dragging zooms, and a double click goes back.
    settings = {"displayModeBar": False, "responsive": True}
    made = (
        figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"figure-{name}", config=settings)
        for name, figure in figures.items()
    )
    look = ' class="three"' if len(figures) == 3 else ""
    return f"<div{look}>{''.join(made)}</div>"


def text(value: object) -> str:
    """Any value as safe text; numbers rounded for reading, absence said."""
    if value is None or value == "" or value == []:
        return '<span class="absent">not supplied</span>'
    if isinstance(value, bool):
        return '<span class="yes">yes</span>' if value else '<span class="no">no</span>'
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return escape(", ".join(str(item) for item in value))
    return escape(str(value))


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column names the row; columns of numbers are set to the right."""
    listed = [tuple(row) for row in rows]
    numeric = [
        bool(listed) and all(isinstance(row[i], int | float) or row[i] is None for row in listed)
        for i in range(len(heads))
    ]
    kind = [' class="n"' if number else "" for number in numeric]
    head = "".join(f'<th scope="col"{k}>{text(name)}</th>' for name, k in zip(heads, kind, strict=True))
    lines = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>'
        + "".join(
            f"<td{k or _long(cell)}>{text(cell)}</td>" for cell, k in zip(row[1:], kind[1:], strict=True)
        )
        + "</tr>"
        for row in listed
    )
    return (
        f'<div class="scroll"><table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _long(cell: object) -> str:
    """Whether a cell holds a word that must be broken to fit, such as a fingerprint."""
    return ' class="long"' if max(map(len, str(cell).split()), default=0) > 24 else ""


def pairs(caption: str, names: Mapping[str, str], part: Mapping[str, Any] | None) -> str:
    """A table of two columns: what, and its value."""
    if part is None:
        return ABSENT
    return table(caption, ("what", "value"), [(text, part.get(key)) for key, text in names.items()])
