"""Jinja environment and assets of all pages; every value is escaped.

The style sheet link carries the id and class that Plotly looks for, so Plotly adds no inline style and the content
security policy needs no exception.
"""

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

from abaton.report.evaluation_figures import format_estimate as interval
from abaton.report.findings import axis_percent, format_difference, local_benefit_axis, local_benefit_text
from abaton.report.training_curves import metric_label

Figures = Mapping[str, Mapping[str, Any]]

_NUMBER = re.compile(r"[<≥≤]?\d[\d,]*(\.\d+)?|–|none")
_MAX_UNBROKEN = 14  # characters of a name that is not broken


@cache
def environment(*packages: str) -> Environment:
    """Return the Jinja environment of all HTML pages: values are escaped, undefined ones are errors.

    Args:
        packages: Packages with a folder `templates`, besides the report's.
    """
    jinja = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "abaton.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {
        "display": format_value,
        "bytes": format_bytes,
        "slug": slug,
        "percent": lambda value: f"{value:.1%}",
    }
    jinja.globals |= {
        "grid": grid,
        **{
            function.__name__: function
            for function in (
                local_benefit_axis,
                local_benefit_text,
                metric_label,
                axis_percent,
                format_difference,
            )
        },
        "interval": interval,
    }
    return jinja


@dataclass(frozen=True, slots=True)
class PageAssets:
    """Style and scripts of a page, embedded with a content security policy, or linked.

    Attributes:
        policy: Content security policy of a page with embedded assets.
        style, scripts: Embedded assets.
        base: Base URL of linked assets.
        home: URL of the link back.
    """

    policy: str = ""
    style: str = ""
    scripts: tuple[Markup, ...] = ()
    base: str | None = None
    home: str = ""


@cache
def embedded_assets(*, drawing: bool) -> PageAssets:
    """Return the assets embedded in an HTML page, with a content security policy that allows only them."""
    style, scripts = read("abaton.css"), (read("plotly.js"), read("draw.js")) if drawing else ()
    policy = f"default-src 'none'; style-src {_csp_hash(style)}"
    if scripts:
        policy += f"; script-src {' '.join(map(_csp_hash, scripts))}; img-src data: blob:"
    return PageAssets(policy, Markup(style), tuple(map(Markup, scripts)))  # noqa: S704 - our own files


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(
    template: str, *, figures: Figures | None = None, assets: PageAssets | None = None, **values: Any
) -> str:
    """Render an HTML page from a template of the report.

    Args:
        template: Name of the template.
        figures: Figures by name.
        assets: Style and scripts; embedded by default.
        values: Variables of the template.
    """
    page_assets = assets or embedded_assets(drawing=bool(figures))
    plots = {
        name: {key: figure[key] for key in ("data", "layout")} for name, figure in (figures or {}).items()
    }
    context = {
        "assets": page_assets,
        "figures": figures or {},
        "plots": plots,
        "plotly_markers": plotly_style_markers() if plots else "",
    }
    return environment().get_template(template).render(**context, **values)


@cache
def read(name: str) -> str:
    """Return the text of an asset of HTML pages; Plotly's script comes from the installed package."""
    if name == "plotly.js":
        return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    return files("abaton.report").joinpath("static", name).read_text(encoding="utf-8")


@cache
def plotly_style_markers() -> Markup:
    """Return HTML elements that keep Plotly from adding its inline styles for maps.

    Plotly adds none if an element with the digest of the style as id exists.
    """
    ids = re.findall(r'getElementById\("([0-9a-f]{64})"\)', read("plotly.js"))
    return Markup("").join(Markup('<meta id="{}">').format(element_id) for element_id in dict.fromkeys(ids))


def format_value(value: object) -> str:
    """Return a value as text in an HTML page: numbers rounded, missing values marked.

    >>> format_value(0.123456), format_value(12345), format_value(None)
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
        return "; ".join(f"{name}: {format_value(entry)}" for name, entry in value.items())
    return value if isinstance(value, Markup) else str(value)


def format_bytes(count: int) -> str:
    """Return a number of bytes as text in an HTML page.

    >>> format_bytes(512), format_bytes(20_480), format_bytes(3_500_000)
    ('512 B', '20.5 kB', '3.5 MB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def slug(text: str) -> str:
    """Return a text as the id of an HTML element.

    >>> slug("Training and traffic")
    'training-and-traffic'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def grid(column_names: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, Any]:
    """Return the cells of an HTML table with their style: numbers right-aligned, digests broken.

    Suppressed counts are numbers, too; short names in the first column are not broken.

    >>> grid(["site", "read"], [("kos", "≥5"), ("athens", 384)])["columns"]
    [('site', 'nowrap'), ('read', 'n')]
    """
    cells_by_row = [tuple(row) for row in rows]
    columns = [[row[i] for row in cells_by_row] for i in range(len(column_names))]
    styles = ["n" if cells and all(map(_is_number, cells)) else "" for cells in columns]
    if styles and not styles[0] and all(len(str(cell)) <= _MAX_UNBROKEN for cell in columns[0]):
        styles[0] = "nowrap"
    return {
        "columns": list(zip(column_names, styles, strict=True)),
        "rows": [
            [(cell, style or _cell_style(cell)) for cell, style in zip(row, styles, strict=True)]
            for row in cells_by_row
        ],
    }


def _is_number(cell: object) -> bool:
    """Return whether the cell of an HTML table is a number, a suppressed count or missing."""
    return cell is None or isinstance(cell, int | float) or bool(_NUMBER.fullmatch(str(cell)))


def _cell_style(cell: object) -> str:
    """Return the style of a text cell in an HTML table.

    >>> _cell_style("0.832 (0.683 to 0.944)"), _cell_style("f" * 64), _cell_style("a sentence that may be broken")
    ('nowrap', 'long', '')
    """
    text = str(cell)
    if re.fullmatch(r"[+−-]?[\d.]+ \([^ ]+ to [^ ]+\)|\d{4}-\d\d-\d\d", text):
        return "nowrap"
    return "long" if max(map(len, text.split()), default=0) > 24 else ""
