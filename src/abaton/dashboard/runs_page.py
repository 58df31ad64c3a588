"""The pages of many runs: the list, and several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import urlencode

from abaton.dashboard.markup import Frame, axis_choices, badge, figure, scrolled, size
from abaton.report import AXES
from abaton.report.html import text
from abaton.store import Head, RunLine, RunRow, codec_of

MOST_COMPARED = 8
_HEADS = ("engine", "begun (UTC)", "versions", "updates", "sent", "newest result")


def runs_page(frame: Frame, lines: Sequence[RunLine], total: int, after: int) -> str:
    """The list of runs."""
    title = "<h1>Runs</h1>"
    if not lines:
        words = "<p>No runs yet: start one with <code>abaton run</code> or <code>abaton demo</code>.</p>"
        return frame.page("Runs", title + words, here="", script=False)
    heads = '<th scope="col"><span class="hidden">compare</span></th><th scope="col">run</th>' + "".join(
        f'<th scope="col"{_number(i > 1)}>{name}</th>' for i, name in enumerate(_HEADS)
    )
    rows = "".join(_run_row(frame, line, i) for i, line in enumerate(lines))
    listing = (
        f'<form action="{frame.base}/compare" method="get">'
        '<div class="scroll" tabindex="0" role="region" aria-label="Runs"><table class="runs">'
        f"<caption>{total:,} runs, the newest first</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        '<p class="actions"><button>Compare the chosen runs</button> '
        f'<span class="soft">choose two to {MOST_COMPARED}</span></p></form>'
    )
    return frame.page("Runs", title + listing + _more(frame, after, len(lines), total), here="", script=False)


def _number(is_one: bool) -> str:  # noqa: FBT001
    return ' class="n"' if is_one else ""


def _run_row(frame: Frame, line: RunLine, number: int) -> str:
    result = shown_metric(line.metrics)
    cells = (
        line.engine,
        line.created[:19].replace("T", " "),
        f"{line.version:,}",
        f"{line.updates:,}",
        size(line.bytes),
        f"{result[0]} {result[1]:.4f}" if result else "–",
    )
    return (
        f'<tr><td><input type="checkbox" name="run" id="c{number}" value="{escape(line.run)}" '
        f'aria-label="Compare {escape(line.run)}"></td>'
        f'<th scope="row">{frame.run_link(line.run)}<div class="below">{badge(line.status)} '
        f"{text(line.title or line.kind)}</div></th>"
        + "".join(f"<td{_number(i > 1)}>{text(cell)}</td>" for i, cell in enumerate(cells))
        + "</tr>"
    )


def shown_metric(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """The one number that stands for all: the area under the curve if there is one, else the first.

    >>> shown_metric({"loss": 0.4, "auroc": 0.8}), shown_metric({})
    (('auroc', 0.8), None)
    """
    if "auroc" in metrics:
        return "auroc", metrics["auroc"]
    return next(iter(metrics.items()), None)


def _more(frame: Frame, after: int, shown: int, total: int) -> str:
    links = []
    if after:
        links.append(f'<a href="{frame.base}/?after={max(0, after - shown)}">Newer runs</a>')
    if after + shown < total:
        links.append(f'<a href="{frame.base}/?after={after + shown}">Older runs</a>')
    return f'<nav aria-label="More runs">{" · ".join(links)}</nav>' if links else ""


def compare_page(
    frame: Frame, rows: Sequence[RunRow], heads: Sequence[Head], known: Sequence[RunLine]
) -> str:
    """Several runs side by side: how they went, one metric over time, and the settings in which they differ."""
    form = _chooser(frame, {row.run for row in rows}, known)
    if not rows:
        return frame.page("Compare", f"<h1>Compare runs</h1>{form}", here="/compare", script=False)
    names = [row.run for row in rows]
    query = escape(urlencode([("run", name) for name in names]))
    differing = _differing(rows)
    settings = (
        scrolled("settings that differ", ("setting", *names), differing)
        if differing
        else "<p>Their settings are the same.</p>"
    )
    sizes = "Bytes of the updates that travelled."
    body = (
        f'<div id="compare" data-place="{frame.base}/compare" data-query="{query}"><h1>Compare runs</h1>{form}'
        f"<p>{' · '.join(frame.run_link(name) for name in names)}</p>"
        f'<section class="card wide" aria-label="How they went">{_went(names, heads)}</section>'
        f"{axis_choices(list(AXES), 'at')}"
        f"{figure('metric', 'Community models', 'The same measure of every run.', wide=True)}"
        f"{figure('payloads', 'Payload sizes by codec', sizes, wide=True)}"
        f'<section class="card wide" aria-label="Settings">{settings}</section></div>'
    )
    return frame.page("Compare", body, here="/compare")


def _chooser(frame: Frame, chosen: set[str], known: Sequence[RunLine]) -> str:
    options = "".join(
        f'<option value="{escape(line.run)}"{" selected" if line.run in chosen else ""}>{text(line.run)}</option>'
        for line in known
    )
    return (
        f'<form class="filters" method="get" action="{frame.base}/compare">'
        f'<label for="runs">Runs (two to {MOST_COMPARED})</label>'
        f'<select id="runs" name="run" multiple size="5">{options}</select> <button>Compare</button></form>'
    )


def _went(names: Sequence[str], heads: Sequence[Head]) -> str:
    rows: list[tuple[object, ...]] = [
        ("status", *(state.status for state in heads)),
        ("versions", *(state.version for state in heads)),
        ("updates", *(state.updates for state in heads)),
        ("bytes sent", *(state.bytes for state in heads)),
        ("seconds of the engine's clock", *(state.at for state in heads)),
        ("seconds of wall-clock time", *(state.wall for state in heads)),
    ]
    measured = dict.fromkeys(name for state in heads for name in state.metrics)
    rows += [(name, *(state.metrics.get(name, "–") for state in heads)) for name in measured]
    return scrolled("how they went", ("what", *names), rows)


def _differing(rows: Sequence[RunRow]) -> list[tuple[str, ...]]:
    settings = [_settings(row) for row in rows]
    keys = dict.fromkeys(key for each in settings for key in each)
    lines = [(key, *(each.get(key, "–") for each in settings)) for key in keys]
    return [line for line in lines if len(set(line[1:])) > 1]


def _settings(row: RunRow) -> dict[str, str]:
    """A run's settings as plain pairs; documents and paths of sites are left out."""
    made = {"engine": row.engine, "recipe": str(row.recipe.get("name", "")), "codec": codec_of(row.recipe)}
    for part in (row.recipe.get("settings"), row.recipe.get("method")):
        if isinstance(part, Mapping):
            told = {str(k): str(v)[:80] for k, v in _flat(part)}
            made |= {k: v for k, v in told.items() if k not in ("study", "sites", "now", "codec")}
    return made


def _flat(part: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = []
    for key, value in part.items():
        if isinstance(value, Mapping) and before.count(".") < 2:
            made += _flat(value, f"{before}{key}.")
        else:
            made.append((f"{before}{key}", value))
    return made
