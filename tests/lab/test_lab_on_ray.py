"""Federations on a real Ray: the same digests as under the virtual clock, resumable, also with a model of your own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab import four_sites as four

from abaton.controller import ControllerState, Strategy, TrainSettings, UpdateReceived, event_from_row
from abaton.engines.runner import Watcher
from abaton.errors import SettingsError
from abaton.federation import Federation, LocalSite
from abaton.lab import build_from_recipe
from abaton.models import Examples, TorchModel
from abaton.store import Journal, Store

RECIPE = four.recipe(seed=3, rounds=3, scale=0.2)


class Cut(Exception):
    """The power went."""


def test_an_engine_that_there_is_not_is_refused(tmp_path):
    with Store(tmp_path) as store:
        with pytest.raises(SettingsError, match="use virtual or local or ray"):
            build_from_recipe(RECIPE).run(store=store, engine="quantum")
        assert store.runs() == []


def test_without_ray_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.engines.ray.cluster.find_spec", lambda name: None)
    with Store(tmp_path) as store:
        with pytest.raises(SettingsError, match=r"pip install 'abaton\[ray\]'"):
            build_from_recipe(RECIPE).run(store=store, engine="ray")
        assert store.runs() == []


@pytest.mark.slow
@pytest.mark.network
def test_a_recipe_gives_the_same_digests_as_under_the_virtual_clock_also_when_it_was_cut_off(tmp_path):
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    events_seen = []

    def watch(state: object, event: object) -> None:
        events_seen.append(event)
        if len(events_seen) == 9:
            raise Cut

    with Store(tmp_path) as store:
        federation = build_from_recipe(RECIPE)
        steady = {
            name: LocalSite(site.train) for name, site in federation.sites.items()
        }  # no learner drops out
        Federation(federation.model, steady, federation.strategy, federation.codec).run(
            "virtual", store=store
        )
        with pytest.raises(Cut):
            build_from_recipe(RECIPE).run("ray", store=store, engine="ray", watch=watch)
        done = build_from_recipe(RECIPE).run("ray", store=store, engine="ray").row
        assert (done.engine, done.status) == ("ray", "finished")
        virtual, ray = ([m.digest for m in store.models(run)] for run in ("virtual", "ray"))
        assert virtual == ray
        events = [event_from_row(*row) for row in Journal(store, "ray").rows()]
        tasks = [event.task for event in events if isinstance(event, UpdateReceived)]
        assert len(tasks) == len(set(tasks))


@pytest.mark.slow
@pytest.mark.network
def test_a_run_on_a_cluster_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("abaton.engines.checkpoint.MAX_TIME_FRACTION", float("inf"))
    events_seen: list[object] = []

    def cut(state: ControllerState, event: object) -> None:
        if state.version == 4:
            raise Cut

    with Store(tmp_path) as store:
        lab_federation = build_from_recipe(four.recipe(seed=3, rounds=6, scale=0.2))
        steady = {name: LocalSite(site.train) for name, site in lab_federation.sites.items()}
        codec = "error_feedback | stc(sparsity=0.2)"

        def go(run: str, engine: str, watch: Watcher | None = None) -> list[str]:
            federation = Federation(lab_federation.model, steady, lab_federation.strategy, codec)
            federation.run(run, store=store, engine=engine, watch=watch, checkpoints=3)
            return [row.digest for row in store.models(run)]

        expected = go("virtual", "virtual")
        with pytest.raises(Cut):
            go("ray", "ray", cut)
        known = Journal(store, "ray").stored_events
        assert store.checkpoint_folder("ray").exists()
        assert go("ray", "ray", lambda *event: events_seen.append(event)) == expected
        replayed = len(events_seen) - (Journal(store, "ray").stored_events - known)
        assert replayed < 12 < known, "only events after the checkpoint are replayed"
        assert not store.checkpoint_folder("ray").exists()


@pytest.mark.slow
@pytest.mark.network
def test_a_module_of_ones_own_trains_on_a_cluster(tmp_path):
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    rng, width = np.random.default_rng(0), 6

    def site() -> Examples:
        x = rng.normal(size=(40, 4)).astype(np.float32)
        return Examples(x, (x[:, 0] > 0).astype(np.int64))

    sites = {name: site() for name in ("athens", "kos")}

    def module() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))

    rules = Strategy(rounds=2, training=TrainSettings(epochs=1))
    codec = "error_feedback | stc(sparsity=0.2)"
    with Store(tmp_path) as store:
        for engine in ("virtual", "ray"):
            Federation(TorchModel(module), sites, rules, codec).run(engine, store=store, engine=engine)
        here, there = ([m.digest for m in store.models(run)] for run in ("virtual", "ray"))
    assert here == there
