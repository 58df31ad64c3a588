"""What a page's script draws, as JSON: figures and tables of one run, or one metric of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from abaton.dashboard.pages import event_table, learner_table, table_part
from abaton.report import AXES, activity_figures, letter, metric_figure, metric_names, payload_figure, short
from abaton.report.run_comparison import lettered
from abaton.store import Store, activity, codec_of, events_of, points, quartiles


def run_figures(store: Store, run: str, axis: str, metric: str, *, first: bool = False) -> bytes:
    """Everything that a run's page draws.

    Args:
        store: Where the run is.
        run: Its name.
        axis: How to count, one of :data:`abaton.report.AXES`.
        metric: What to show of the community model; the first that was measured if it was not.
        first: Whether the timeline shows the beginning instead of the newest.
    """
    simulated = store.run(run).engine == "virtual"
    versions = points(store, run)
    names = metric_names(versions)
    chosen = metric if metric in names else (names or [""])[0]
    by_wall = axis == "wall"
    did = activity(store, run, wall=by_wall, first=first)
    made: dict[str, Any] = activity_figures(did, words=AXES["wall" if by_wall or not simulated else "at"])
    if chosen:
        made["metric"] = metric_figure({run: versions}, chosen, axis, simulated=simulated)
    few = did.total != len(did.lines)
    words = f"the {len(did.lines)} busiest of {did.total:,} learners" if few else f"{did.total} learners"
    tables = {
        "learners": table_part(words, learner_table(did.lines)),
        "events": table_part("the newest events", event_table(events_of(store, run, most=8))),
    }
    return orjson.dumps({"figures": made, "tables": tables, "metrics": names, "metric": chosen})


def compared_figures(store: Store, runs: Sequence[str], axis: str, metric: str) -> bytes:
    """One metric of several runs, and the sizes of their updates by codec; a run is a letter, as on its page."""
    versions = {run: points(store, run) for run in runs}
    names = list(dict.fromkeys(name for each in versions.values() for name in metric_names(each)))
    chosen = metric if metric in names else (names or [""])[0]
    rows = {run: store.run(run) for run in runs}
    sizes = []
    for place, (run, row) in enumerate(rows.items()):
        label = f"{letter(place)}: {short(codec_of(row.recipe))}"
        sizes += [replace(each, name=label) for each in quartiles(store, run, "size", by_learner=False)]
    simulated = all(row.engine == "virtual" for row in rows.values())
    made: dict[str, Any] = {"payloads": payload_figure(sizes, None)}
    if chosen:
        curves = {f"{letter(i)}: {short(run)}": each for i, (run, each) in enumerate(versions.items())}
        made["metric"] = lettered(metric_figure(curves, chosen, axis, simulated=simulated))
    return orjson.dumps({"figures": made, "tables": {}, "metrics": names, "metric": chosen})
