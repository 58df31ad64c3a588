"""A study rehearsed on this machine as on a network: real programs, TLS and keys."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from abaton.errors import SettingsError
from abaton.federation import StudyOptions, resume_study, run_study
from abaton.store import Store


@pytest.mark.hosts
@pytest.mark.network
@pytest.mark.slow
def test_a_study_runs_on_virtual_local_and_flower(rounds, tmp_path):
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    said: list[str] = []
    with Store(tmp_path / "store") as store:
        rows = {
            engine: run_study(
                rounds.study, rounds.sites[:2], store, StudyOptions(5, resamples=20), step=said.append,
                now=datetime.now(UTC), engine=engine,
            ).row
            for engine in ("virtual", "local", "flower")
        }  # fmt: skip
        digests = {engine: [m.digest for m in store.models(row.run)] for engine, row in rows.items()}
        with pytest.raises(SettingsError, match="on a network"):
            resume_study(store, rows["flower"])
    assert digests["virtual"][0] == digests["local"][0] == digests["flower"][0]
    assert len({len(each) for each in digests.values()}) == 1
    assert len({each[-1] for each in digests.values()}) == 3, (
        "each site trains in an order that it draws itself"
    )
    assert rows["virtual"].recipe["tables"].keys() == rows["flower"].recipe["tables"].keys()
    assert rows["virtual"].result["evaluation"].keys() == rows["flower"].result["evaluation"].keys()
    assert any(line.startswith("the centre listens at 127.0.0.1:") for line in said)


def test_what_only_one_machine_can_have_is_refused(four, tmp_path):
    with Store(tmp_path / "store") as store:
        for options in (StudyOptions(baselines=True), StudyOptions(profiles=four.profiles)):
            with pytest.raises(SettingsError, match="a network has no profiles"):
                run_study(four.study, four.sites, store, options, engine="flower")
