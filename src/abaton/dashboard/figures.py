"""What a page's script draws, as JSON: figures and tables of one run, or one metric of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from abaton.dashboard.markup import learners_table, newest_events
from abaton.report import (
    AXES,
    cycle_figure,
    metric_figure,
    metric_names,
    pace_figure,
    payload_figure,
    spread_figure,
    timeline_figure,
    weight_figure,
)
from abaton.store import (
    Store,
    busiest,
    codec_of,
    cycle_lines,
    events_of,
    model_bytes,
    points,
    quartiles,
    spans,
    stretches,
)

_DRAWN = 24  # learners in a figure; the table has more
_LINES = 8


def run_figures(store: Store, run: str, axis: str, metric: str, *, first: bool = False) -> bytes:
    """Everything that a run's page draws.

    Args:
        store: Where the run is.
        run: Its name.
        axis: How to count, one of :data:`abaton.report.AXES`.
        metric: What to show of the community model; the first that was measured if it was not.
        first: Whether the timeline shows the beginning instead of the newest.
    """
    row = store.run(run)
    simulated = row.engine == "virtual"
    lines, total = busiest(store, run)
    versions = points(store, run)
    names = metric_names(versions)
    chosen = metric if metric in names else (names or [""])[0]
    busy = [line.learner for line in sorted(lines, key=lambda line: (-line.commits, line.learner))]
    by_wall = axis == "wall"
    words = AXES["wall"] if by_wall or not simulated else AXES["at"]
    weights, _ = stretches(store, run, wall=by_wall, learners=busy[:_LINES])
    pace, width = stretches(store, run, wall=by_wall)
    shown = set(busy[:_DRAWN])
    made: dict[str, Any] = {
        "timeline": timeline_figure(
            [span for span in spans(store, run, first=first) if span.learner in shown],
            {line.learner: line.group for line in lines},
        ),
        "weights": weight_figure(weights, words=words),
        "staleness": spread_figure(
            [each for each in quartiles(store, run, "staleness") if each.name in shown],
            words="effective staleness (steps)",
        ),
        "cycles": cycle_figure(cycle_lines(store, run, busy[:_LINES])),
        "payloads": payload_figure(
            [
                replace(each, name=codec_of(row.recipe))
                for each in quartiles(store, run, "size", by_learner=False)
            ],
            model_bytes(store, run),
        ),
        "pace": pace_figure([(each.at, each.commits) for each in pace], width, words=words),
    }
    if chosen:
        made["metric"] = metric_figure({run: versions}, chosen, axis, simulated=simulated)
    tables = {
        "learners": learners_table(lines, total, floor_of(row.recipe)),
        "events": newest_events(events_of(store, run, most=8), floor_of(row.recipe)),
    }
    return orjson.dumps({"figures": made, "tables": tables, "metrics": names, "metric": chosen})


def compared_figures(store: Store, runs: Sequence[str], axis: str, metric: str) -> bytes:
    """One metric of several runs, and the sizes of their updates by codec."""
    versions = {run: points(store, run) for run in runs}
    names = list(dict.fromkeys(name for each in versions.values() for name in metric_names(each)))
    chosen = metric if metric in names else (names or [""])[0]
    rows = {run: store.run(run) for run in runs}
    sizes = []
    for run, row in rows.items():
        label = f"{codec_of(row.recipe)} ({run})"
        sizes += [replace(each, name=label) for each in quartiles(store, run, "size", by_learner=False)]
    simulated = all(row.engine == "virtual" for row in rows.values())
    made: dict[str, Any] = {"payloads": payload_figure(sizes, None)}
    if chosen:
        made["metric"] = metric_figure(versions, chosen, axis, simulated=simulated)
    return orjson.dumps({"figures": made, "tables": {}, "metrics": names, "metric": chosen})


def floor_of(recipe: Any) -> int:
    """The smallest number of people that may be told of a run."""
    study = recipe.get("study")
    return int(study.get("smallest_count", 5)) if isinstance(study, dict) else 5
