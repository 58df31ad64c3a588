"""``abaton lab clinics``: the smallest federation, four synthetic tables, with a privacy budget if one is given."""

from __future__ import annotations

from pathlib import Path

import typer

from abaton.cli.live import watching
from abaton.cli.output import emit, note, table
from abaton.cli.runs import AddressOption, JsonOption, StoreOption, opened_store, summary, tell_outcome


def clinics(
    *,
    seed: int = typer.Option(1990, help="Decides every random number: the same seed gives the same bits."),
    rounds: int = typer.Option(30, min=1, help="How many rounds the clinics train."),
    epsilon: float | None = typer.Option(
        None,
        help="A privacy budget for each clinic: updates are clipped and noised, and the run ends in time.",
    ),
    engine: str = typer.Option(
        "virtual", help="virtual (a simulated clock) or ray (tasks on a Ray cluster)."
    ),
    address: str = AddressOption,
    quick: bool = typer.Option(False, "--quick", help="A small cohort and five rounds: a few seconds."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Let four synthetic clinics with ready tables train a model together, under a simulated clock.

    The table compares the community model with what each clinic reaches alone, and with all data in one pile. The run
    is kept: look at it again with 'abaton show'. A study from records to model is 'abaton demo'.
    """
    if quick:
        rounds = min(rounds, 5)
    scale = 0.3 if quick else 1.0
    with opened_store(store) as opened, watching(rounds) as view:
        from abaton.federation import engine_of
        from abaton.lab import clinics as lab_clinics

        chosen = engine_of(engine, address)
        federation = lab_clinics.federation(seed=seed, rounds=rounds, scale=scale, epsilon=epsilon)
        run = federation.run(store=opened, engine=chosen, watch=view.hear)
        row = run.row
        rows = lab_clinics.comparison(run.vector(), seed=seed, rounds=rounds, scale=scale)
        data = {**summary(opened, row), "comparison": rows}
    if json:
        emit(data)
    else:
        columns = ("model", "examples", "accuracy", "auroc")
        table("four clinics, one disease", columns, [[r[c] for c in columns] for r in rows])
        tell_outcome(data)
        elsewhere = f" --store {store}" if store else ""
        note(f"look at it again: abaton show {row.run}{elsewhere}")
