"""``abaton run``, ``report`` and ``demo``: a study from its sites' records to a community model and its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, save, table
from abaton.cli.progress_view import watching
from abaton.cli.runs import (
    AddressOption,
    JsonOption,
    RunArgument,
    StoreOption,
    again,
    opened_store,
    stoppable,
    summary,
    tell_outcome,
)
from abaton.cli.show import found_of, print_found, print_results, told_of

if TYPE_CHECKING:
    from abaton.controller import Event, State
    from abaton.store import RunRow, Store

_STAGES = ("read", "eligible", "consented", "kept", "rows")


def run(
    study: Path = typer.Argument(..., metavar="STUDY", help="The study document.", show_default=False),
    more: list[Path] = typer.Argument(None, metavar="[SITE]...", help="Further sites, after --sites."),
    *,
    sites: list[Path] = typer.Option(
        ..., "--sites", metavar="SITE...", help="The sites' documents.", show_default=False
    ),
    engine: str = typer.Option(
        "virtual",
        help="virtual (a simulated clock), local (processes here), ray (tasks on a Ray cluster) or flower "
        "(a network on this machine).",
    ),
    address: str = AddressOption,
    seed: int = typer.Option(1990, min=0, help="Decides every random number."),
    baselines: bool = typer.Option(
        False,
        "--baselines",
        help="Also train each site alone, and all data pooled: for the lab, where rows may be brought together.",
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Run a study at its sites: consent, de-identification, features, training, evaluation.

    A site that cannot take part is named with the reason, and the others go on. With fewer than two sites nothing is
    trained (exit code 3). The run is kept: see 'abaton report'.

    abaton run study.toml --sites north/site.toml south/site.toml --engine virtual
    """
    from abaton.federation import StudyOptions, engine_of, run_study
    from abaton.study import load_study

    document, chosen = load_study(study, load=True), engine_of(engine, address)
    rounds = document.learning.rounds if document.learning else None
    with opened_store(store, make=True) as opened, stoppable(opened, store), watching(rounds) as view:
        options = StudyOptions(seed, baselines=baselines)
        places = [*sites, *(more or ())]
        row = run_study(document, places, opened, options, engine=chosen, watch=view.hear, step=view.step).row
        data = _told(opened, row)
    if json:
        emit(data)
        return
    _print(data, store)
    note(f"make its report: {again(f'abaton report {row.run} -o report.html', store)}")


def report(
    run: str = RunArgument,
    *,
    out: Path | None = typer.Option(None, "--out", "-o", help="Write one HTML page here."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Make the report of a run: what was found, what each site gains, who took part, how good, how private, how.

    The page opens anywhere, without a network. --json prints everything that is on it.
    """
    from abaton.errors import SettingsError

    if out is None and not json:
        raise SettingsError("there is nothing to make", where="report", remedy="give -o FILE.html, or --json")
    with opened_store(store) as opened:
        made = told_of(opened, opened.run(run))
    if out is not None:
        from abaton.report import page_of

        save(out, page_of(made))
        note(f"written: {out}")
    if json:
        emit(made)


def demo(
    *,
    seed: int = typer.Option(1990, min=0, help="Decides every random number: the same seed, the same bits."),
    quick: bool = typer.Option(False, "--quick", help="Fewer people: some seconds less."),
    out: Path = typer.Option(Path("abaton-demo.html"), "--out", "-o", help="Where the report is written."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Run a whole study: four invented hospitals, from FHIR records and consents to a community model.

    Some people refuse, some consents have run out, and somebody withdraws in the middle. The hospitals train
    asynchronously, weighted by validation, and send compressed updates. First comes what each hospital gains: its own
    model and the community model on its own people. The report is one HTML page.
    """
    with opened_store(store, make=True) as opened, stoppable(opened, store):
        from abaton.federation import StudyOptions, run_study
        from abaton.lab.demo import NOW, demonstration
        from abaton.report import page_of

        note("inventing four hospitals")
        made = demonstration(opened.folder / "demo", seed, 0.4 if quick else 1.0)
        options = StudyOptions(seed, made.profiles, baselines=True)
        rounds = made.study.learning.rounds if made.study.learning else None
        with watching(rounds) as view:

            def both(state: State, event: Event) -> None:
                made.watch(state, event)
                view.hear(state, event)

            row = run_study(made.study, made.sites, opened, options, watch=both, step=view.step, now=NOW).row
        data = _told(opened, row)
        data["withdrawal"] = {"at": made.left and made.left[1], "rounds": made.rounds_of_who_left(row.run)}
        save(out, page_of(told_of(opened, row)))
    if json:
        emit(data)
        return
    _print(data, store)
    if made.left is not None:
        used = ", ".join(map(str, data["withdrawal"]["rounds"]))
        note(f"somebody at athens withdrew after {made.left[1]:.1f} s: rounds {used} used them, none since")
    note(f"the report: {out}")


def _told(store: Store, row: RunRow) -> dict[str, Any]:
    """What is printed of a run."""
    result = row.result or {}
    return {
        **summary(store, row),
        "study": dict(row.recipe["study"]),
        "sites": {name: dict(told) for name, told in row.recipe["told"].items()},
        "left_out": dict(row.recipe["left_out"]),
        "anonymity": row.recipe["anonymity"],
        "tables": dict(row.recipe["tables"]),
        "cohorts": dict(row.recipe["cohorts"]),
        "traffic": result.get("traffic"),
        **found_of(row),
    }


def _print(data: Mapping[str, Any], store: Path | None) -> None:
    print_found(data)
    cells = []
    for name, told in data["sites"].items():
        funnel = {step["stage"]: step["subjects"] for step in told.get("funnel", ())}
        takes_part = data["left_out"].get(name) or "yes"
        cells.append([name, *(funnel.get(stage) for stage in _STAGES), takes_part])
    table("sites", ("site", *_STAGES, "takes part"), cells)
    for name, told in data["sites"].items():
        for aside in told.get("set_aside", ()):
            note(f"{name}: set aside: {aside['reason']} ({aside['count']})")
        for remark in told.get("remarks", ()):
            note(f"{name}: {remark}")
    print_results(data["lines"])
    from abaton.report import times_smaller, totals

    sent = totals(data["traffic"].values())
    for what, way in (("updates", "up"), ("models", "down")):
        smaller = times_smaller(sent, way)
        note(f"{what}: {sent[f'bytes_{way}']:,} bytes, {smaller:.1f} times smaller than uncompressed")
    tell_outcome(dict(data), store)
