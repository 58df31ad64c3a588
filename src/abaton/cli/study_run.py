"""``abaton run``, ``report`` and ``demo``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, save, table
from abaton.cli.runs import (
    AddressOption,
    JsonOption,
    RunArgument,
    StoreOption,
    command_with_store,
    opened_store,
    print_outcome,
    stoppable,
    summary,
)
from abaton.cli.show import findings_of, print_findings, print_results, report_of

if TYPE_CHECKING:
    from abaton.controller import ControllerState, Event
    from abaton.store import RunRow, Store

_STAGES = ("consented", "retained", "rows")


def run(
    study: Path = typer.Argument(..., metavar="STUDY", help="Study document", show_default=False),
    more: list[Path] = typer.Argument(None, metavar="[SITE]...", help="Further sites, after --sites"),
    *,
    sites: list[Path] = typer.Option(
        ..., "--sites", metavar="SITE...", help="Configurations of the sites", show_default=False
    ),
    engine: str = typer.Option(
        "virtual",
        help="Engine: virtual (simulated time), local (processes), ray (tasks on a Ray cluster) or flower (a network "
        "on this machine)",
    ),
    address: str = AddressOption,
    seed: int = typer.Option(1990, min=0, help="Seed of all random numbers"),
    baselines: bool = typer.Option(
        False,
        "--baselines",
        help="Also train local-only models and a model on pooled rows; only where rows may be pooled",
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Run a study at its sites: consent, de-identification, features, training, evaluation.

    Sites that cannot take part are excluded with the reason. Exit code 3: fewer than two sites remain.

    abaton run study.toml --sites north/site.toml south/site.toml --engine virtual
    """
    from abaton.cli.progress_view import show_progress
    from abaton.federation import resolve_engine
    from abaton.study import load_study
    from abaton.study_run import StudyOptions, run_study

    document, engine_factory = load_study(study, load=True), resolve_engine(engine, address)
    rounds = document.learning.rounds if document.learning else None
    with opened_store(store, create=True) as opened, stoppable(opened, store), show_progress(rounds) as view:
        options = StudyOptions(seed, baselines=baselines)
        site_files = [*sites, *(more or ())]
        row = run_study(
            document,
            site_files,
            opened,
            options,
            engine=engine_factory,
            watch=view.on_event,
            on_progress=view.on_step,
        ).row
        data = _run_data(opened, row)
    if json:
        emit(data)
        return
    _print_run(data, store)
    note(f"to write the report: {command_with_store(f'abaton report {row.run} -o report.html', store)}")


def report(
    run: str = RunArgument,
    *,
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the report as HTML to this file"),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Write the report of a run: findings, local benefit, attrition, evaluation, privacy, training.

    The page opens without a network. --json prints its content.
    """
    from abaton.errors import SettingsError

    if out is None and not json:
        raise SettingsError(
            "--out and --json are both missing", where="report", remedy="add -o FILE.html or --json"
        )
    with opened_store(store) as opened:
        report_data = report_of(opened, opened.run(run))
    if out is not None:
        from abaton.report import render_report

        save(out, render_report(report_data))
        note(f"wrote {out}")
    if json:
        emit(report_data)


def demo(
    *,
    seed: int = typer.Option(
        3000, min=0, help="Seed of all random numbers; the same seed gives the same model"
    ),
    miscoding: bool = typer.Option(
        False, "--miscoding", help="Add a seventh hospital that codes the outcome wrongly"
    ),
    small: bool = typer.Option(False, "--small", help="Use fewer subjects; faster by some seconds"),
    out: Path = typer.Option(Path("abaton-demo.html"), "--out", "-o", help="Write the report to this file"),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Run a complete study at six synthetic hospitals, from FHIR records and consents to a community model.

    Some subjects refuse, some consents have expired, and one subject withdraws during the run. The outcome is rare. The
    hospitals train asynchronously and send compressed updates, weighted by their loss at the other hospitals. The first
    table compares each hospital's local-only model with the community model on its test subjects. The report is one
    HTML page.
    """
    with opened_store(store, create=True) as opened, stoppable(opened, store):
        from abaton.cli.progress_view import show_progress
        from abaton.lab.demo import NOW, make_demo
        from abaton.lab.synthetic_hospitals import SEVEN_HOSPITALS, SIX_HOSPITALS
        from abaton.report import render_report
        from abaton.store import latest_weights
        from abaton.study_run import StudyOptions, run_study

        cohort = SEVEN_HOSPITALS if miscoding else SIX_HOSPITALS
        note(f"generating {len(cohort.hospitals)} synthetic hospitals")
        demo_study = make_demo(opened.folder / "demo", seed, 0.6 if small else 1.0, cohort=cohort)
        options = StudyOptions(seed, demo_study.profiles, baselines=True)
        rounds = demo_study.study.learning.rounds if demo_study.study.learning else None
        with show_progress(rounds) as view:

            def notify(state: ControllerState, event: Event) -> None:
                demo_study.watch(state, event)
                view.on_event(state, event)

            row = run_study(
                demo_study.study,
                demo_study.sites,
                opened,
                options,
                watch=notify,
                on_progress=view.on_step,
                now=NOW,
            ).row
        data = _run_data(opened, row)
        data["withdrawal"] = {
            "at": demo_study.withdrawn and demo_study.withdrawn[1],
            "rounds": demo_study.rounds_of_withdrawn_subject(row.run),
        }
        data["weights"] = latest_weights(opened, row.run)
        save(out, render_report(report_of(opened, row)))
    if json:
        emit(data)
        return
    _print_run(data, store)
    weights = ", ".join(f"{site} {weight:.2f}" for site, weight in data["weights"].items())
    note(f"latest weights of the hospitals: {weights}")
    if demo_study.withdrawn is not None:
        used = ", ".join(map(str, data["withdrawal"]["rounds"]))
        note(
            f"a subject at athens withdrew after {demo_study.withdrawn[1]:.1f} s: used in rounds {used}, excluded since"
        )
    note(f"report: {out}")


def _run_data(store: Store, row: RunRow) -> dict[str, Any]:
    """Return the data of a study run that `abaton run` prints."""
    from abaton.report.cohort_flow import complete_cohorts

    result = row.result or {}
    return {
        **summary(store, row),
        "study": dict(row.recipe["study"]),
        "sites": complete_cohorts(row.recipe["cohort_reports"], row.result),
        "excluded_sites": dict(row.recipe["excluded_sites"]),
        "anonymity": row.recipe["anonymity"],
        "tables": dict(row.recipe["tables"]),
        "cohorts": dict(row.recipe["cohorts"]),
        "traffic": result.get("traffic"),
        **findings_of(row),
    }


def _print_run(data: Mapping[str, Any], store: Path | None) -> None:
    print_findings(data)
    cells = []
    for name, site in data["sites"].items():
        attrition = {step["stage"]: step["subjects"] for step in site.get("attrition", ())}
        participation = data["excluded_sites"].get(name) or "yes"
        cells.append([name, *(attrition.get(stage) for stage in _STAGES), participation])
    table("sites", ("site", *_STAGES, "takes part"), cells)
    for name, site in data["sites"].items():
        for remark in site.get("remarks", ()):
            note(f"{name}: {remark}")
    print_results(data["rows"])
    from abaton.report import compression_ratio, sum_rows

    traffic = sum_rows(data["traffic"].values())
    for label, direction in (("updates", "up"), ("models", "down")):
        ratio = compression_ratio(traffic, direction)
        note(f"{label}: {traffic[f'bytes_{direction}']:,} bytes, {ratio:.1f} times smaller than uncompressed")
    print_outcome(dict(data), store)
