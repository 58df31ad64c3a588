"""The pages of one run: everything that can be drawn of it, and its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from abaton.dashboard.access import Right
from abaton.dashboard.markup import (
    Frame,
    axis_choices,
    badge,
    data_table,
    figure,
    newest_events,
    section,
    size,
)
from abaton.dashboard.runs_page import shown_metric
from abaton.report import AXES, TITLES
from abaton.report.html import text
from abaton.store import EventLine, Head, RunRow, codec_of, tells_weights

_SMALL = ("weights", "staleness", "cycles", "payloads")
_MEASURED = "What was measured of each version, and the losses that evaluators found."
_STRETCH = (
    '<p class="choices"><label for="stretch">Show</label> <select id="stretch">'
    '<option value="newest">the newest stretch</option><option value="first">the beginning</option></select></p>'
)


def run_page(frame: Frame, row: RunRow, state: Head, notice: str = "") -> str:
    """One run: how far it has come, and everything that can be drawn of it."""
    place, simulated = _place(frame, row), row.engine == "virtual"
    axes = [name for name in AXES if simulated or name != "at"]
    small = [name for name in _SMALL if name != "weights" or tells_weights(row.recipe)]
    log = f'<p><a href="{place}/log">The whole log, with filters</a></p>'
    body = (
        f'<div id="run" data-place="{place}" data-status="{escape(state.status)}"><h1>{text(row.run)}</h1>'
        f'<p class="about"><span id="status">{badge(state.status)}</span> {text(_about(row))}</p>'
        f'<p id="told" role="status">{text(notice) if notice else ""}</p>'
        f"{_cards(state, simulated=simulated)}{axis_choices(axes, 'at' if simulated else 'wall')}"
        f"{figure('metric', 'Community model', _MEASURED, wide=True)}"
        f"{figure('timeline', *TITLES['timeline'], wide=True, more=_STRETCH)}"
        f"{section('learners', 'Learners', data_table('learners'))}"
        f'<div class="grid">{"".join(figure(name, *TITLES[name]) for name in small)}</div>'
        f"{figure('pace', *TITLES['pace'], wide=True)}"
        f"{section('events', 'Events', data_table('events') + log)}"
        f"{_operating(frame, place)}</div>"
    )
    return frame.page(row.run, body)


def _place(frame: Frame, row: RunRow) -> str:
    return escape(f"{frame.base}/runs/{quote(row.run, safe='')}")


def _about(row: RunRow) -> str:
    study = row.recipe.get("study")
    title = study.get("title") if isinstance(study, Mapping) else None
    begun = row.created[:19].replace("T", " ")
    parts = (title or row.recipe.get("name", ""), f"engine {row.engine}", f"codec {codec_of(row.recipe)}")
    return " · ".join((*map(str, parts), f"begun {begun} UTC"))


def _cards(state: Head, *, simulated: bool) -> str:
    metric = shown_metric(state.metrics)
    cards = (
        ("version", "Version", f"{state.version:,}"),
        ("updates", "Updates", f"{state.updates:,}"),
        ("bytes", "Sent", size(state.bytes)),
        ("at", "Simulated time" if simulated else "Time", f"{state.at:,.1f} s"),
        ("wall", "Wall-clock", f"{state.wall:,.1f} s"),
        ("result", metric[0] if metric else "Result", f"{metric[1]:.4f}" if metric else "–"),
    )
    made = (
        f'<div class="stat"><dt>{text(name)}</dt><dd data-head="{key}">{text(value)}</dd></div>'
        for key, name, value in cards
    )
    return f'<dl class="stats">{"".join(made)}</dl>'


def _operating(frame: Frame, place: str) -> str:
    if frame.caller is None or not frame.caller.person.may(Right.OPERATE):
        return ""
    words = (
        "<p>Removes old versions of the community model, and the updates if the run has ended. The journal, "
        "all digests and metrics, and the final model stay. A run that is being worked on is left alone.</p>"
    )
    form = (
        f'<form method="post" action="{place}/prune">{frame.form_key()}<label>Keep the newest '
        '<input name="last" type="number" min="1" max="100000" value="5"> versions</label> '
        "<button>Prune</button></form>"
    )
    return section("operate", "Free space", words + form)


def log_page(
    frame: Frame, row: RunRow, lines: Sequence[EventLine], kinds: Mapping[str, int], asked: Mapping[str, Any]
) -> str:
    """The events of a run, with filters."""
    place, learner = _place(frame, row), asked["learner"]
    boxes = "".join(_box(kind, number, kind in asked["kinds"]) for kind, number in kinds.items())
    older = ""
    if len(lines) == asked["most"]:
        filters = [*(("kind", kind) for kind in asked["kinds"]), ("learner", learner)]
        query = escape(urlencode([*filters, ("before", lines[-1].sequence)]))
        older = f'<p><a href="{place}/log?{query}">Older events</a></p>'
    shown = newest_events(lines, "events, the newest first")
    body = (
        f'<p class="crumbs"><a href="{place}">{text(row.run)}</a></p><h1>Log of events</h1>'
        f'<form class="filters" method="get" action="{place}/log">'
        f"<fieldset><legend>Kinds; none is all</legend>{boxes}</fieldset>"
        f'<label for="learner">Learner</label> '
        f'<input id="learner" name="learner" value="{escape(learner)}" autocomplete="off"> '
        "<button>Filter</button></form>"
        f'<section class="card wide" aria-label="Events">{shown if lines else "<p>No event fits.</p>"}{older}</section>'
    )
    return frame.page(f"Log of {row.run}", body, script=False)


def _box(kind: str, number: int, chosen: bool) -> str:  # noqa: FBT001
    ticked = " checked" if chosen else ""
    return (
        f'<label><input type="checkbox" name="kind" value="{escape(kind)}"{ticked}> {text(kind)} '
        f'<span class="soft">{number:,}</span></label>'
    )
