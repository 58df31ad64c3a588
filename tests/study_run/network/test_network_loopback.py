"""A study on a loopback network: real processes, TLS and keys."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from abaton.errors import SettingsError
from abaton.store import Store
from abaton.study_run import StudyOptions, resume_study, run_study


@pytest.mark.hosts
@pytest.mark.network
@pytest.mark.slow
def test_a_study_runs_on_virtual_local_and_flower(rounds, tmp_path):
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    lines: list[str] = []
    with Store(tmp_path / "store") as store:
        rows = {
            engine: run_study(
                rounds.study, rounds.sites[:2], store, StudyOptions(5, bootstrap_resamples=20),
                on_progress=lines.append, now=datetime.now(UTC), engine=engine,
            ).row
            for engine in ("virtual", "local", "flower")
        }  # fmt: skip
        digests = {engine: [m.digest for m in store.models(row.run)] for engine, row in rows.items()}
        with pytest.raises(SettingsError, match="is a network run"):
            resume_study(store, rows["flower"])
    assert digests["virtual"][0] == digests["local"][0] == digests["flower"][0]
    assert len({len(run_digests) for run_digests in digests.values()}) == 1
    assert len({run_digests[-1] for run_digests in digests.values()}) == 3, (
        "each site trains in an order that it draws itself"
    )
    assert rows["virtual"].recipe["tables"].keys() == rows["flower"].recipe["tables"].keys()
    assert rows["virtual"].result["evaluation"].keys() == rows["flower"].result["evaluation"].keys()
    assert any(line.startswith("the centre listens at 127.0.0.1:") for line in lines)


def test_options_of_a_single_machine_are_refused(four, tmp_path):
    with Store(tmp_path / "store") as store:
        for options in (StudyOptions(baselines=True), StudyOptions(profiles=four.profiles)):
            with pytest.raises(SettingsError, match="not available on a network"):
                run_study(four.study, four.sites, store, options, engine="flower")
