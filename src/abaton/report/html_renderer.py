"""What all pages are made with: one set of templates in which every value is escaped, and the files they carry."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from abaton.report.evaluation_figures import told as interval
from abaton.report.findings import gains_axis, gains_words, on_axis, signed
from abaton.report.training_curves import measure_name

Figures = Mapping[str, Mapping[str, Any]]

_NUMBER = re.compile(r"[<≥≤]?\d[\d,]*(\.\d+)?|–|none")
_SHORT = 14  # letters of a name that is not broken


@cache
def environment(*rooms: str) -> Environment:
    """The templates of some rooms: every value is escaped, and one that is missing is an error.

    Args:
        rooms: Packages with a folder `templates`; those of the report are always there.
    """
    made = Environment(
        loader=ChoiceLoader([PackageLoader(room) for room in (*rooms, "abaton.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"told": told, "size": size, "slug": slug, "share": lambda value: f"{value:.1%}"}
    made.globals |= {
        "grid": grid,
        **{each.__name__: each for each in (gains_axis, gains_words, measure_name, on_axis, signed)},
        "interval": interval,
    }
    return made


@dataclass(frozen=True, slots=True)
class Assets:
    """Style and scripts of a page: carried inside, with a policy that allows these alone, or linked.

    Attributes:
        policy: What a page may do that carries everything.
        style, scripts: What it carries.
        base: Where linked files are, for a page of a server.
        home: Where such a page goes back to.
    """

    policy: str = ""
    style: str = ""
    scripts: tuple[Markup, ...] = ()
    base: str | None = None
    home: str = ""


@cache
def carried(*, drawing: bool) -> Assets:
    """What a page carries that opens anywhere: it fetches nothing, and runs no script but these."""
    style, scripts = read("abaton.css"), (read("plotly.js"), read("draw.js")) if drawing else ()
    policy = f"default-src 'none'; style-src {_mark(style)}"
    if scripts:
        policy += f"; script-src {' '.join(map(_mark, scripts))}; img-src data: blob:"
    return Assets(policy, Markup(style), tuple(map(Markup, scripts)))  # noqa: S704 - our own files


def _mark(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(
    template: str, *, figures: Figures | None = None, assets: Assets | None = None, **values: Any
) -> str:
    """A whole page from a template of the report.

    Args:
        template: Its name.
        figures: What is drawn, by name.
        assets: Style and scripts; carried inside if not given.
        values: What the template shows.
    """
    known = assets or carried(drawing=bool(figures))
    drawn = {name: {key: each[key] for key in ("data", "layout")} for name, each in (figures or {}).items()}
    more = {
        "assets": known,
        "figures": figures or {},
        "drawn": drawn,
        "marks": style_marks() if drawn else "",
    }
    return environment().get_template(template).render(**more, **values)


@cache
def read(name: str) -> str:
    """A file that pages need; Plotly's script as it is in its own package, in the version that is installed."""
    if name == "plotly.js":
        return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    return files("abaton.report").joinpath("static", name).read_text(encoding="utf-8")


@cache
def style_marks() -> Markup:
    """Elements that stand for styles which Plotly would write into the page for maps: no page here has one.

    It looks for an element with a fingerprint as its id, and writes nothing if there is one; so the pages need no
    exception from the rule that styles come from files.
    """
    marks = re.findall(r'getElementById\("([0-9a-f]{64})"\)', read("plotly.js"))
    return Markup("").join(Markup('<meta id="{}">').format(mark) for mark in dict.fromkeys(marks))


def told(value: object) -> str:
    """Any value for reading: numbers rounded, absence said.

    >>> told(0.123456), told(12345), told(None)
    ('0.1235', '12,345', Markup('<span class="absent">not supplied</span>'))
    """
    if value is None or value == "" or value == []:
        return Markup('<span class="absent">not supplied</span>')
    if isinstance(value, bool):
        return Markup('<span class="yes">yes</span>') if value else Markup('<span class="no">no</span>')
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {told(each)}" for name, each in value.items())
    return value if isinstance(value, Markup) else str(value)


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


def slug(words: str) -> str:
    """Words as an element's id.

    >>> slug("How to do it again")
    'how-to-do-it-again'
    """
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def grid(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, Any]:
    """A table's cells with how each is set: columns of numbers to the right, fingerprints broken, intervals whole.

    A count that is masked is a number too, and short names at the left are not broken.

    >>> grid(["site", "read"], [("kos", "≥5"), ("athens", 384)])["heads"]
    [('site', 'whole'), ('read', 'n')]
    """
    listed = [tuple(row) for row in rows]
    columns = [[row[i] for row in listed] for i in range(len(heads))]
    look = ["n" if cells and all(map(_counts, cells)) else "" for cells in columns]
    if look and not look[0] and all(len(str(cell)) <= _SHORT for cell in columns[0]):
        look[0] = "whole"
    return {
        "heads": list(zip(heads, look, strict=True)),
        "rows": [
            [(cell, kind or _look(cell)) for cell, kind in zip(row, look, strict=True)] for row in listed
        ],
    }


def _counts(cell: object) -> bool:
    """Whether a cell is a number, a masked one, or the lack of one."""
    return cell is None or isinstance(cell, int | float) or bool(_NUMBER.fullmatch(str(cell)))


def _look(cell: object) -> str:
    """How a cell of words is set.

    >>> _look("0.832 (0.683 to 0.944)"), _look("f" * 64), _look("a sentence, which may be broken")
    ('whole', 'long', '')
    """
    text = str(cell)
    if re.fullmatch(r"[+−-]?[\d.]+ \([^ ]+ to [^ ]+\)|\d{4}-\d\d-\d\d", text):
        return "whole"
    return "long" if max(map(len, text.split()), default=0) > 24 else ""
