"""``abaton show``: the result of a run first, then who took part, then every version of its community model.

``abaton compare``: runs side by side, first what was set differently, then the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, room, save, table
from abaton.cli.runs import (
    JsonOption,
    RunArgument,
    StoreOption,
    complete_run,
    main_measure,
    measures_of,
    opened_store,
    summary,
    tell_outcome,
)

if TYPE_CHECKING:
    from abaton.store import RunRow, Store


_MOST_VERSIONS = 12  # that a table shows
_SHORT = {
    "no clear difference": "unclear",
    "too few people to tell": "too few",
}  # a table fits into 80 columns
_WIDE, _EACH = 60, 25  # columns of a table of results without its measures, and of one measure


def show(
    run: str = RunArgument,
    *,
    store: Path | None = StoreOption,
    figure: Path | None = typer.Option(
        None, "--figure", help="Draw which learner had which examples into this HTML file."
    ),
    json: bool = JsonOption,
) -> None:
    """Show a run: its result first, then who had which examples, and the versions of its community model.

    abaton show latest
    """
    with opened_store(store) as opened:
        row = opened.run(run)
        number = next(n for n, each in enumerate(opened.runs(), 1) if each.run == row.run)
        data = {"number": number, **summary(opened, row), "measures": measures_of(opened, row)}
        data["recipe"] = dict(row.recipe)
        versions = opened.models(row.run)
        if epsilons := [m.metrics["epsilon"] for m in versions if "epsilon" in m.metrics]:
            data["epsilon"] = epsilons[-1]
        data["models"] = [
            {"version": m.version, "at": m.at, "digest": m.digest, **m.metrics} for m in versions
        ]
        data |= found_of(row)
    if figure is not None:
        _draw_partition(row, figure)
    if json:
        emit(data)
        return
    told = main_measure(data)
    typer.echo(f"{row.run} (#{number}): {data['status']}{f', {told}' if told else ''}")
    if data["lines"]:
        print_found(data)
        print_results(data["lines"])
    if partition := row.recipe.get("partition"):
        columns = ("learner", "group", "examples", "classes")
        cells = [[line[column] for column in columns] for line in partition["learners"]]
        table(f"{partition['form']}, partition {partition['digest'][:12]}", columns, cells)
    _print_versions(data["models"])
    if "epsilon" in data:
        note(f"privacy: epsilon {data['epsilon']:.4g} spent by the learner, or release, that spent most")
    tell_outcome(data, store)


def _print_versions(models: Sequence[Mapping[str, Any]]) -> None:
    """The versions of a community model; of many, the first, the last and some between them."""
    if not models:
        return
    last = len(models) - 1
    step = max(1, -(-len(models) // _MOST_VERSIONS))
    shown = [m for place, m in enumerate(models) if place % step == 0 or place == last]
    metrics = sorted(
        (name for name in models[0] if name not in ("version", "at", "digest")),
        key=lambda name: name != "epsilon",
    )[: max(1, (room() - 40) // 12)]
    rows = [[m["version"], m["at"], m["digest"][:12], *(m[name] for name in metrics)] for m in shown]
    some = "" if len(shown) == len(models) else f", {len(shown)} of {len(models)} (all with --json)"
    table(f"versions of the community model{some}", ["version", "seconds", "digest", *metrics], rows)


def found_of(row: RunRow) -> dict[str, Any]:
    """What a study's run found, what each site gains, and every measure."""
    from abaton.report.findings import finding, site_gains

    evaluation = (row.result or {}).get("evaluation", {})
    method = row.recipe.get("method", {}).get("evaluation", {})
    return {
        "finding": finding(row.recipe.get("study", {}), evaluation, method.get("confidence", 0.95)),
        "gains": site_gains(evaluation),
        "lines": evaluation.get("lines", []),
    }


def print_found(data: Mapping[str, Any]) -> None:
    """What was found in a sentence, and what each site gains."""
    from abaton.report.findings import gains_words, signed

    if data["finding"]:
        typer.echo(data["finding"]["words"])
    if not data["gains"]:
        return
    typer.echo(gains_words(data["gains"]))
    rows = [
        [g["site"], _value(g["own"]), _value(g["community"]), signed(g["gain"]), _SHORT.get(g["verdict"], g["verdict"])]
        for g in data["gains"]
    ]  # fmt: skip
    measure = data["gains"][0]["measure"]
    table(
        f"what each site gains: {measure} on its own people",
        ("site", "own", "community", "gain", "verdict"),
        rows,
    )


def _value(found: Mapping[str, Any] | None) -> str:
    return "–" if found is None or found["value"] is None else f"{found['value']:.3f}"


def print_results(lines: Sequence[Mapping[str, Any]]) -> None:
    """How good each model is on subjects that nobody trained on; as many measures as there is room for."""
    most = max(1, min(3, (room() - _WIDE) // _EACH))
    names = list(dict.fromkeys(name for line in lines for name in line["measures"] or ()))[:most]
    chosen = [line for line in lines if line["of"] == "all" or line["model"] == "community"]
    rows = [
        [line["model"], line["subset"], line["subjects"], *(_measure(line["measures"], n) for n in names)]
        for line in chosen
    ]
    table("on subjects that nobody trained on", ("model", "subjects of", "number", *names), rows)


def _measure(measures: Mapping[str, Any] | None, name: str) -> str:
    if measures is None:
        return "too few"
    each = measures.get(name)
    if each is None or each["value"] is None or each["low"] is None:
        return "–"
    return f"{each['value']:.3f} ({each['low']:.3f} to {each['high']:.3f})"


def _draw_partition(row: RunRow, path: Path) -> None:
    from abaton.errors import SettingsError
    from abaton.report import figures_page, partition_figure

    partition = row.recipe.get("partition")
    if partition is None:
        raise SettingsError(
            f"run '{row.run}' keeps no partition", where="--figure", remedy="choose a run of 'abaton lab'"
        )
    groups = {line["learner"]: line["group"] for line in partition["learners"]}
    drawn = partition_figure(
        partition["learners"], partition["classes"], title=partition["form"], groups=groups
    )
    save(path, figures_page(f"Partition of {row.run}", [drawn]))
    note(f"written: {path}")


def compare(
    runs: list[str] = typer.Argument(
        ...,
        metavar="RUN RUN...",
        help="The runs: names or parts of them, numbers, or latest; 'heart-*' is all that fit.",
        autocompletion=complete_run,
        show_default=False,
    ),
    *,
    measure: str | None = typer.Option(None, help="Compare by this measure; by default the main one."),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write one HTML page with the curves over each other."
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Compare runs that learn the same: settings that differ first, then results, then who was as good how soon.

    Runs of different studies, outcomes, experiments or data sets are refused: their numbers do not mean the same.
    """
    from abaton.report import comparison, comparison_page
    from abaton.report.run_comparison import difference_rows, reached_rows, result_rows, run_rows

    with opened_store(store) as opened:
        chosen = [row for name in runs for row in _named(opened, name)]
        made = comparison([told_of(opened, row) for row in chosen], measure)
    if out is not None:
        save(out, comparison_page(made))
        note(f"written: {out}")
    if json:
        emit(made)
        return
    table("runs", *run_rows(made))
    heads, rows = difference_rows(made)
    if rows:
        table("settings in which they differ", heads, rows)
    else:
        note("the runs have the same settings, data and versions")
    table(f"the last community model, by {made['measure']}", *result_rows(made))
    table(f"first at {made['measure']} {made['target']:.4g}", *reached_rows(made))
    for remark in made["remarks"]:
        note(remark)


def _named(store: Store, name: str) -> list[RunRow]:
    """The run of a name, or with a star in it all that fit."""
    if "*" not in name:
        return [store.run(name)]
    from fnmatch import fnmatchcase

    return [row for row in store.runs() if fnmatchcase(row.run, name)]


def told_of(store: Store, row: RunRow) -> dict[str, Any]:
    """The report of a run in the store."""
    from abaton.report import report_of
    from abaton.store import Journal, activity

    rows = Journal(store, row.run).rows()
    return report_of(row, store.models(row.run), rows, activity(store, row.run, first=True))
