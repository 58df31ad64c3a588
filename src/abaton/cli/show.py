"""``abaton show`` and ``abaton compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, save, table, table_width
from abaton.cli.runs import (
    JsonOption,
    RunArgument,
    StoreOption,
    complete_run,
    main_metric,
    metrics_of,
    opened_store,
    print_outcome,
    summary,
)

if TYPE_CHECKING:
    from abaton.store import RunRow, Store


_MAX_VERSIONS = 12  # shown in a table
_BASE_WIDTH, _METRIC_WIDTH = 60, 25  # characters of a table of results without metrics, and of one metric


def show(
    run: str = RunArgument,
    *,
    store: Path | None = StoreOption,
    figure: Path | None = typer.Option(
        None, "--figure", help="Write a figure of the partition to this HTML file"
    ),
    json: bool = JsonOption,
) -> None:
    """Show a run: result, local benefit, partition and versions of its community model.

    abaton show latest
    """
    with opened_store(store) as opened:
        row = opened.run(run)
        number = next(n for n, other in enumerate(opened.runs(), 1) if other.run == row.run)
        data = {"number": number, **summary(opened, row), "metrics": metrics_of(opened, row)}
        data["recipe"] = dict(row.recipe)
        versions = opened.models(row.run)
        if epsilons := [m.metrics["epsilon"] for m in versions if "epsilon" in m.metrics]:
            data["epsilon"] = epsilons[-1]
        data["models"] = [
            {"version": m.version, "timestamp": m.timestamp, "digest": m.digest, **m.metrics}
            for m in versions
        ]
        data |= findings_of(row)
    if figure is not None:
        _draw_partition(row, figure)
    if json:
        emit(data)
        return
    main_result = main_metric(data)
    typer.echo(f"{row.run} (#{number}): {data['status']}{f', {main_result}' if main_result else ''}")
    if data["rows"]:
        print_findings(data)
        print_results(data["rows"])
    if partition := row.recipe.get("partition"):
        columns = ("learner", "group", "examples", "classes")
        cells = [[line[column] for column in columns] for line in partition["learners"]]
        table(f"{partition['form']}, partition {partition['digest'][:12]}", columns, cells)
    _print_versions(data["models"])
    if "epsilon" in data:
        note(f"privacy: epsilon {data['epsilon']:.4g} spent, the maximum over learners or releases")
    print_outcome(data, store)


def _print_versions(models: Sequence[Mapping[str, Any]]) -> None:
    """Print a community model's versions for `abaton show`; of many, a sample with the first and the last."""
    if not models:
        return
    last = len(models) - 1
    step = max(1, -(-len(models) // _MAX_VERSIONS))
    shown = [model for index, model in enumerate(models) if index % step == 0 or index == last]
    metrics = sorted(
        (name for name in models[0] if name not in ("version", "timestamp", "digest")),
        key=lambda name: name != "epsilon",
    )[: max(1, (table_width() - 40) // 12)]
    rows = [
        [model["version"], model["timestamp"], model["digest"][:12], *(model[name] for name in metrics)]
        for model in shown
    ]
    suffix = "" if len(shown) == len(models) else f", {len(shown)} of {len(models)} (all with --json)"
    table(f"versions of the community model{suffix}", ["version", "seconds", "digest", *metrics], rows)


def findings_of(row: RunRow) -> dict[str, Any]:
    """Return the finding, local benefit of each site, and all metrics of a study run to show."""
    from abaton.report.findings import local_benefits, main_finding

    evaluation = (row.result or {}).get("evaluation", {})
    method = row.recipe.get("method", {}).get("evaluation", {})
    return {
        "finding": main_finding(
            row.recipe.get("study", {}), evaluation, method.get("confidence_level", 0.95)
        ),
        "local_benefit": local_benefits(evaluation),
        "rows": evaluation.get("rows", []),
    }


def print_findings(data: Mapping[str, Any]) -> None:
    """Show the finding as a sentence, and the local benefit of each site."""
    from abaton.report.findings import format_difference, local_benefit_text

    if data["finding"]:
        typer.echo(data["finding"]["text"])
    if not data["local_benefit"]:
        return
    typer.echo(local_benefit_text(data["local_benefit"]))
    rows = [
        [benefit["site"], _value(benefit["local_only"]), _value(benefit["community"]),
         format_difference(benefit["benefit"]), benefit["verdict"]]
        for benefit in data["local_benefit"]
    ]  # fmt: skip
    metric = data["local_benefit"][0]["metric"]
    table(
        f"local benefit: {metric} on each site's test subjects",
        ("site", "local", "community", "local benefit", "verdict"),
        rows,
    )
    baselines = [f"{b['site']} {b['baseline']}" for b in data["local_benefit"] if b["baseline"]]
    if baselines:
        typer.echo(f"local-only models, chosen by cross-validation: {'; '.join(baselines)}")


def _value(estimate: Mapping[str, Any] | None) -> str:
    return "–" if estimate is None or estimate["value"] is None else f"{estimate['value']:.3f}"


def print_results(evaluated: Sequence[Mapping[str, Any]]) -> None:
    """Show the metrics of each model on the held-out test set, as many as fit the width."""
    from abaton.report.evaluation_figures import format_estimate

    limit = max(1, min(3, (table_width() - _BASE_WIDTH) // _METRIC_WIDTH))
    names = list(dict.fromkeys(name for row in evaluated for name in row["metrics"] or ()))[:limit]
    selected = [row for row in evaluated if row["grouping"] == "all" or row["model"] == "community"]
    rows = [
        [row["model"], row["group"], row["subjects"], *(format_estimate(row["metrics"], n) for n in names)]
        for row in selected
    ]
    table("held-out test set", ("model", "group", "subjects", *names), rows)


def _draw_partition(row: RunRow, path: Path) -> None:
    from abaton.errors import SettingsError
    from abaton.report import partition_figure, render_figures

    partition = row.recipe.get("partition")
    if partition is None:
        raise SettingsError(
            f"run '{row.run}' has no partition", where="--figure", remedy="choose a run of 'abaton lab'"
        )
    groups = {learner["learner"]: learner["group"] for learner in partition["learners"]}
    plot = partition_figure(
        partition["learners"], partition["classes"], title=partition["form"], groups=groups
    )
    save(path, render_figures(f"Partition of {row.run}", [plot]))
    note(f"wrote {path}")


def compare(
    runs: list[str] = typer.Argument(
        ...,
        metavar="RUN RUN...",
        help="Runs: names, parts of them, numbers, latest, or patterns such as 'heart-*'",
        autocompletion=complete_run,
        show_default=False,
    ),
    *,
    metric: str | None = typer.Option(None, help="Metric of the comparison (default: the main one)"),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write an HTML page with the curves to this file"
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Compare runs of the same task: differing settings, results, and when each reached a common target.

    Runs of different studies, outcomes, experiments or data are refused.
    """
    from abaton.report import compare_runs, render_comparison
    from abaton.report.run_comparison import difference_rows, result_rows, run_rows, target_rows

    with opened_store(store) as opened:
        selected = [row for name in runs for row in _find_runs(opened, name)]
        comparison = compare_runs([report_of(opened, row) for row in selected], metric)
    if out is not None:
        save(out, render_comparison(comparison))
        note(f"wrote {out}")
    if json:
        emit(comparison)
        return
    table("runs", *run_rows(comparison))
    column_names, rows = difference_rows(comparison)
    if rows:
        table("settings that differ", column_names, rows)
    else:
        note("the runs have the same settings, data and versions")
    table(f"last community model, by {comparison['metric']}", *result_rows(comparison))
    table(f"first at {comparison['metric']} {comparison['target']:.4g}", *target_rows(comparison))
    for remark in comparison["remarks"]:
        note(remark)


def _find_runs(store: Store, name: str) -> list[RunRow]:
    """Return the run of a name to show or compare, or all that match a pattern."""
    if "*" not in name:
        return [store.run(name)]
    from fnmatch import fnmatchcase

    return [row for row in store.runs() if fnmatchcase(row.run, name)]


def report_of(store: Store, row: RunRow) -> dict[str, Any]:
    """Return the report of a run in the store, to show or compare it."""
    from abaton.report import make_report
    from abaton.store import Journal, visible_activity

    rows = Journal(store, row.run).rows()
    return make_report(row, store.models(row.run), rows, visible_activity(store, row.run, first=True))
