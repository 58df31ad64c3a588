"""Two runs of the same learners in one process: the state of a learner belongs to one run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from tests.engines.flower.loopback import LoopbackTransport, SiteWorkers

from abaton.codecs import parse_codec
from abaton.controller import STRATEGIES, ControllerState, Strategy, TrainSettings, community_model
from abaton.engines import (
    Engine,
    LocalEngine,
    RunContext,
    RunLoop,
    VirtualEngine,
    open_local_engine,
    run_to_completion,
)
from abaton.engines.flower import FlowerEngine, FlowerNetwork
from abaton.engines.flower.site_worker import SiteWorker, WorkerSettings
from abaton.learners import Learner, PersonalLayersModel
from abaton.models import Examples, SklearnModel
from abaton.store import Journal, Store

NAMES = ("a", "b", "c")
FULL_MODEL = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
FEEDBACK = "error_feedback | stc(sparsity=0.5)"
STATEFUL = {
    "error feedback": (FEEDBACK, FULL_MODEL, TrainSettings(epochs=2, batch_size=10)),
    "personal layers": (
        "raw",
        PersonalLayersModel(FULL_MODEL, ["*intercept*"]),
        TrainSettings(epochs=2, batch_size=10),
    ),
}


def learners(codec: str, model: SklearnModel | PersonalLayersModel) -> dict[str, Learner]:
    built = {}
    for i, name in enumerate(NAMES):
        x = np.random.default_rng(i).normal(size=(40, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        built[name] = Learner(name, model, data, parse_codec(codec), 0, validation=data)
    return built


def digests(store: Store, name: str, case: str, make: Callable[[Journal], Engine]) -> list[str]:
    codec, model, settings = STATEFUL[case]
    journal, strategy = Journal(store, name), strategy_for(settings)
    community = community_model(strategy, model.layout, parse_codec(codec), model.initial(0))
    with closing(make(journal)) as engine:
        RunLoop(strategy, community, engine, journal).run()
    return [row.digest for row in store.models(name)]


def strategy_for(settings: TrainSettings) -> Strategy:
    return Strategy(learners=3, rounds=4, training=settings, **STRATEGIES["SyncFedAvg"])


@pytest.mark.parametrize("case", STATEFUL)
@pytest.mark.parametrize("engines", ["virtual virtual", "local local", "virtual local", "local virtual"])
def test_a_run_leaves_nothing_for_the_next_one(tmp_path, case, engines):
    codec, model, _ = STATEFUL[case]
    learners_by_name, run_digests = learners(codec, model), []
    for i, engine in enumerate(engines.split()):

        def make(
            journal: Journal, engine: str = engine, state_dir: Path = tmp_path / f"state_dir {i}"
        ) -> Engine:
            store_payload = journal.payloads.put
            if engine == "virtual":
                return VirtualEngine(learners_by_name, {}, store_payload=store_payload, seed=0)
            return LocalEngine(
                learners_by_name,
                store_payload=store_payload,
                check_payload=lambda *_: None,
                state_dir=state_dir,
            )

        with Store(tmp_path / "store") as store:
            run_digests.append(digests(store, f"run {i}", case, make))
    assert len(run_digests[0]) == 5
    assert run_digests[0] == run_digests[1]


def test_a_worker_separates_the_state_of_two_runs(tmp_path):
    codec, model, _ = STATEFUL["error feedback"]
    workers = [
        SiteWorkers(
            lambda role, name=name, learner=learner: SiteWorker(
                learner, WorkerSettings(role, tmp_path / name)
            )
        )
        for name, learner in learners(codec, model).items()
    ]

    def make(journal: Journal) -> Engine:
        network = FlowerNetwork(journal.run, model.layout.digest, poll_seconds=0.001)
        store_payload = journal.payloads.put
        return FlowerEngine(
            LoopbackTransport(dict(enumerate(workers))),
            network,
            store_payload=store_payload,
            check_payload=lambda *_: None,
        )

    with Store(tmp_path / "store") as store:
        first, second = (digests(store, name, "error feedback", make) for name in ("first", "second"))
    assert len(first) == 5
    assert first == second


class Interrupted(Exception):
    """The process was interrupted."""


def test_two_runs_in_one_folder_have_separate_state(tmp_path):
    """One is interrupted, another runs in between, the first is resumed: both give the same models."""
    codec, model, settings = STATEFUL["error feedback"]
    learners_by_name, seen_events = learners(codec, model), []

    def run_once(store: Store, name: str, watch: Callable[..., None] | None = None) -> list[str]:
        journal, state_dir = Journal(store, name), tmp_path / "state_dir" / name
        run = RunContext(
            strategy_for(settings), model, parse_codec(codec), journal, lambda: learners_by_name, state_dir
        )
        run_to_completion(run, open_local_engine(run), watch)
        return [row.digest for row in store.models(name)]

    def interrupt(*_: object) -> None:
        seen_events.append(_)
        if len(seen_events) == 8:
            raise Interrupted

    with Store(tmp_path / "store") as store:
        with pytest.raises(Interrupted):
            run_once(store, "first", interrupt)
        between = run_once(store, "second")
        assert len(between) == 5
        assert run_once(store, "first") == between


def test_a_network_run_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    """Workers store their state at the sites; the centre replays only events after its checkpoint."""
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("abaton.engines.checkpoint.MAX_TIME_FRACTION", float("inf"))
    codec, model, settings = STATEFUL["error feedback"]
    seen_events: list[object] = []

    def run_once(store: Store, name: str, watch: Callable[..., None] | None = None) -> None:
        workers = [
            SiteWorkers(
                lambda role, site=site, learner=learner: SiteWorker(
                    learner, WorkerSettings(role, tmp_path / name / site)
                )
            )
            for site, learner in learners(codec, model).items()
        ]
        journal, state_dir = Journal(store, name), tmp_path / "state_dir"
        run = RunContext(
            strategy_for(settings), model, parse_codec(codec), journal, dict, state_dir, checkpoint_every=3
        )
        network = FlowerNetwork(name, model.layout.digest, poll_seconds=0.001)
        transport = LoopbackTransport(dict(enumerate(workers)))
        run_to_completion(
            run,
            FlowerEngine(
                transport, network, store_payload=journal.payloads.put, check_payload=run.check_payload
            ),
            watch,
        )

    def interrupt(state: ControllerState, _: object) -> None:
        if state.version == 3:
            raise Interrupted

    with Store(tmp_path / "store") as store:
        run_once(store, "uninterrupted")
        with pytest.raises(Interrupted):
            run_once(store, "interrupted", interrupt)
        stored = Journal(store, "interrupted").stored_events
        assert store.checkpoint_folder("interrupted").exists()
        run_once(store, "interrupted", lambda *event: seen_events.append(event))
        assert len(seen_events) - (Journal(store, "interrupted").stored_events - stored) < 6
        assert stored > 9
        run_digests = [
            [row.digest for row in store.models(name)] for name in ("uninterrupted", "interrupted")
        ]
    assert len(run_digests[0]) == 5
    assert run_digests[0] == run_digests[1]


def test_a_new_run_has_no_state_of_an_earlier_run_with_its_name(tmp_path):
    codec, model, settings = STATEFUL["error feedback"]
    learners_by_name, run_digests = learners(codec, model), []
    for run_once in ("store", "another store"):
        with Store(tmp_path / run_once) as store:
            journal, state_dir = Journal(store, "run"), tmp_path / "state_dir"
            run = RunContext(
                strategy_for(settings),
                model,
                parse_codec(codec),
                journal,
                lambda: learners_by_name,
                state_dir,
            )
            run_to_completion(run, open_local_engine(run))
            run_digests.append([row.digest for row in store.models("run")])
    assert run_digests[0] == run_digests[1]
