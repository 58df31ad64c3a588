"""The lab's experiments on a real Ray: the same digests as under the virtual clock, resumable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from abaton.lab.experiment import remade

from abaton.control import from_row
from abaton.control.messages import Arrived
from abaton.errors import SettingsError
from abaton.lab import build, clinics, resume, simulate, start
from abaton.store import Journal, Store

RECIPE = clinics.recipe(seed=3, rounds=3, scale=0.2)


class Cut(Exception):
    """The power went."""


def test_an_engine_that_the_lab_does_not_have_is_refused(tmp_path):
    with Store(tmp_path) as store:
        with pytest.raises(SettingsError, match="use virtual or ray"):
            start(store, RECIPE, engine="quantum")
        assert store.runs() == []


def test_without_ray_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.engines.ray.cluster.find_spec", lambda name: None)
    with Store(tmp_path) as store:
        with pytest.raises(SettingsError, match=r"pip install 'abaton\[ray\]'"):
            start(store, RECIPE, engine="ray")
        assert store.runs() == []


def test_a_worker_makes_the_learner_that_the_recipe_describes():
    import json

    experiment = build(RECIPE)
    made = remade({"recipe": json.dumps(RECIPE), "name": "kos"}, experiment.sites["kos"], None)
    assert (made.name, len(made.examples)) == ("kos", len(experiment.sites["kos"]))
    assert made.model.layout.digest == experiment.model.layout.digest


@pytest.mark.slow
@pytest.mark.network
def test_an_experiment_gives_the_same_digests_as_under_the_virtual_clock_also_when_it_was_cut_off(tmp_path):
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    heard = []

    def watch(state: object, event: object) -> None:
        heard.append(event)
        if len(heard) == 9:
            raise Cut

    with Store(tmp_path) as store:
        steady = replace(build(RECIPE), profiles={})  # nobody drops out
        simulate(steady, Journal(store, "virtual"))
        with pytest.raises(Cut):
            start(store, RECIPE, watch, engine="ray")
        (row,) = store.runs()
        done = resume(store, row)
        assert (done.engine, done.status) == ("ray", "finished")
        virtual, ray = ([m.digest for m in store.models(run)] for run in ("virtual", row.run))
        assert virtual == ray
        events = [from_row(*each) for each in Journal(store, row.run).rows()]
        tasks = [event.task for event in events if isinstance(event, Arrived)]
        assert len(tasks) == len(set(tasks))
