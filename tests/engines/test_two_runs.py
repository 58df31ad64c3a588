"""Two runs of the same learners in one process: what a learner keeps belongs to a run, never to the next one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from tests.engines.flower.loop import LoopPost, TwoDesks

from abaton.codecs import parse
from abaton.controller import POLICIES, Rules, State, TrainSettings, community_model
from abaton.engines import Driver, Engine, LocalEngine, Running, VirtualEngine, live, local
from abaton.engines.flower import FlowerEngine, Network
from abaton.engines.flower.site_worker import Desk, Place
from abaton.learners import Examples, Learner, Personal, SklearnModel
from abaton.store import Journal, Store

NAMES = ("a", "b", "c")
WHOLE = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
FEEDBACK = "error_feedback | stc(sparsity=0.5)"
KEEPS = {
    "error feedback": (FEEDBACK, WHOLE, TrainSettings(epochs=2, batch_size=10)),
    "personal layers": ("raw", Personal(WHOLE, ["*intercept*"]), TrainSettings(epochs=2, batch_size=10)),
}


def learners(codec: str, model: SklearnModel | Personal) -> dict[str, Learner]:
    made = {}
    for i, name in enumerate(NAMES):
        x = np.random.default_rng(i).normal(size=(40, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        made[name] = Learner(name, model, data, parse(codec), 0, validation=data)
    return made


def digests(store: Store, name: str, keeps: str, make: Callable[[Journal], Engine]) -> list[str]:
    codec, model, settings = KEEPS[keeps]
    journal, rules = Journal(store, name), rules_for(settings)
    community = community_model(rules, model.layout, parse(codec), model.initial(0))
    with closing(make(journal)) as engine:
        Driver(rules, community, engine, journal).run()
    return [row.digest for row in store.models(name)]


def rules_for(settings: TrainSettings) -> Rules:
    return Rules(learners=3, rounds=4, training=settings, **POLICIES["SyncFedAvg"])


@pytest.mark.parametrize("keeps", KEEPS)
@pytest.mark.parametrize("engines", ["virtual virtual", "local local", "virtual local", "local virtual"])
def test_a_run_leaves_nothing_for_the_next_one(tmp_path, keeps, engines):
    codec, model, _ = KEEPS[keeps]
    members, made = learners(codec, model), []
    for i, engine in enumerate(engines.split()):

        def make(journal: Journal, engine: str = engine, states: Path = tmp_path / f"states {i}") -> Engine:
            keep = journal.payloads.put
            if engine == "virtual":
                return VirtualEngine(members, {}, keep=keep, seed=0)
            return LocalEngine(members, keep=keep, check=lambda *_: None, states=states)

        with Store(tmp_path / "store") as store:
            made.append(digests(store, f"run {i}", keeps, make))
    assert len(made[0]) == 5
    assert made[0] == made[1]


def test_a_desk_that_answers_two_runs_keeps_them_apart(tmp_path):
    codec, model, _ = KEEPS["error feedback"]
    desks = [
        TwoDesks(lambda role, name=name, each=each: Desk(each, Place(role, tmp_path / name)))
        for name, each in learners(codec, model).items()
    ]

    def make(journal: Journal) -> Engine:
        network = Network(journal.run, model.layout.digest, poll=0.001)
        keep = journal.payloads.put
        return FlowerEngine(LoopPost(dict(enumerate(desks))), network, keep=keep, check=lambda *_: None)

    with Store(tmp_path / "store") as store:
        first, second = (digests(store, name, "error feedback", make) for name in ("first", "second"))
    assert len(first) == 5
    assert first == second


class Cut(Exception):
    """The power went."""


def test_two_runs_that_are_given_one_folder_keep_what_they_keep_apart(tmp_path):
    """One is cut off, another is lived in between, the first goes on: both come to the same models."""
    codec, model, settings = KEEPS["error feedback"]
    members, heard = learners(codec, model), []

    def life(store: Store, name: str, watch: Callable[..., None] | None = None) -> list[str]:
        journal, states = Journal(store, name), tmp_path / "states" / name
        run = Running(rules_for(settings), model, parse(codec), journal, lambda: members, states)
        live(run, local(run), watch)
        return [row.digest for row in store.models(name)]

    def cut(*_: object) -> None:
        heard.append(_)
        if len(heard) == 8:
            raise Cut

    with Store(tmp_path / "store") as store:
        with pytest.raises(Cut):
            life(store, "first", cut)
        between = life(store, "second")
        assert len(between) == 5
        assert life(store, "first") == between


def test_a_run_over_a_network_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """Desks at the sites keep what they keep; the centre tells only what came after its checkpoint."""
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    monkeypatch.setattr("abaton.engines.checkpoint.SHARE", float("inf"))
    codec, model, settings = KEEPS["error feedback"]
    told: list[object] = []

    def life(store: Store, name: str, watch: Callable[..., None] | None = None) -> None:
        desks = [
            TwoDesks(lambda role, place=place, each=each: Desk(each, Place(role, tmp_path / name / place)))
            for place, each in learners(codec, model).items()
        ]
        journal, states = Journal(store, name), tmp_path / "states"
        run = Running(rules_for(settings), model, parse(codec), journal, dict, states, every=3)
        network = Network(name, model.layout.digest, poll=0.001)
        post = LoopPost(dict(enumerate(desks)))
        live(run, FlowerEngine(post, network, keep=journal.payloads.put, check=run.check), watch)

    def cut(state: State, _: object) -> None:
        if state.version == 3:
            raise Cut

    with Store(tmp_path / "store") as store:
        life(store, "whole")
        with pytest.raises(Cut):
            life(store, "cut", cut)
        known = Journal(store, "cut").known
        assert store.checkpoint_folder("cut").exists()
        life(store, "cut", lambda *event: told.append(event))
        assert len(told) - (Journal(store, "cut").known - known) < 6
        assert known > 9
        ends = [[row.digest for row in store.models(name)] for name in ("whole", "cut")]
    assert len(ends[0]) == 5
    assert ends[0] == ends[1]


def test_a_run_that_has_not_begun_finds_nothing_of_one_that_had_its_name(tmp_path):
    codec, model, settings = KEEPS["error feedback"]
    members, made = learners(codec, model), []
    for life in ("store", "another store"):
        with Store(tmp_path / life) as store:
            journal, states = Journal(store, "run"), tmp_path / "states"
            run = Running(rules_for(settings), model, parse(codec), journal, lambda: members, states)
            live(run, local(run))
            made.append([row.digest for row in store.models("run")])
    assert made[0] == made[1]
