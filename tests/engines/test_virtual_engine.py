from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import parse_codec
from abaton.controller import (
    STRATEGIES,
    LearnerJoined,
    LearnerLeft,
    Strategy,
    TaskFailed,
    TimerFired,
    TrainSettings,
    UpdateReceived,
    community_model,
)
from abaton.engines import MachineProfile, RunLoop, TrainTask, VirtualEngine
from abaton.errors import SettingsError
from abaton.learners import Learner
from abaton.models import Examples, logistic
from abaton.store import Journal, Store

SETTINGS = TrainSettings(epochs=2, batch_size=10)


def learners(count: int = 3, seed: int = 0) -> dict[str, Learner]:
    rng = np.random.default_rng(0)
    model = logistic(features=4)
    built = {}
    for i in range(count):
        x = rng.normal(size=(20 + 10 * i, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        built[f"site{i}"] = Learner(f"site{i}", model, data, parse_codec("raw"), seed, validation=data)
    return built


def engine(profiles: dict[str, MachineProfile], count: int = 1, **more) -> VirtualEngine:
    payloads: dict[str, bytes] = {}

    def store_payload(payload: bytes) -> str:
        payloads[str(len(payloads))] = payload
        return str(len(payloads) - 1)

    return VirtualEngine(learners(count), profiles, store_payload=store_payload, seed=0, **more)


def task(task_id: str = "t", learner: str = "site0") -> TrainTask:
    return TrainTask(task_id, learner, 0, np.zeros(10, np.float32), SETTINGS)


def test_time_is_download_plus_compute_plus_upload_of_the_real_bytes():
    profile = MachineProfile(speed=8.0, bandwidth=100.0, latency=0.5)
    simulated = engine({"site0": profile})
    assert simulated.events() == (LearnerJoined(0.0, "site0", 20, labels=(12, 8)),)
    simulated.submit([task()])
    (event,) = simulated.events()
    assert isinstance(event, UpdateReceived)
    down, compute, up = 0.5 + 40 / 100, 4 / 8, 0.5 + event.payload_bytes / 100
    assert event.timestamp == pytest.approx(down + compute + up) == simulated.now()
    assert (event.steps, event.examples) == (4, 20)
    assert simulated.events() == ()


def test_timers_fire_and_cancelled_tasks_have_no_event():
    simulated = engine({"site0": MachineProfile(speed=1.0)})
    simulated.events()
    simulated.submit([task()])
    simulated.set_timer("timer", 0.5)
    assert simulated.events() == (TimerFired(0.5, "timer"),)
    simulated.cancel("t")
    assert simulated.events() == ()


def test_a_task_submitted_twice_counts_once():
    simulated = engine({})
    simulated.events()
    simulated.submit([task(), task()])
    simulated.submit([task()])
    assert len([simulated.events(), simulated.events()][0]) == 1
    assert simulated.events() == ()


def test_dropout_fails_the_given_fraction():
    simulated = engine({"site0": MachineProfile(dropout_probability=0.3)})
    simulated.events()
    simulated.submit([task(str(i)) for i in range(1000)])
    event_types = [type(simulated.events()[0]) for _ in range(1000)]
    assert event_types.count(TaskFailed) == pytest.approx(300, abs=60)


def test_departed_learners_never_reply():
    simulated = engine({"site0": MachineProfile(joins_at=1.0, leaves_at=2.0, speed=1.0)})
    assert simulated.events() == (LearnerJoined(1.0, "site0", 20, labels=(12, 8)),)
    simulated.submit([task()])
    assert simulated.events() == (LearnerLeft(2.0, "site0"),)
    assert simulated.events() == ()


@pytest.mark.parametrize(
    "invalid",
    [
        {"speed": 0},
        {"bandwidth": -1},
        {"latency": -1},
        {"dropout_probability": 2},
        {"joins_at": 3, "leaves_at": 1},
    ],
)
def test_impossible_profiles_are_refused(invalid):
    with pytest.raises(SettingsError, match="profile"):
        MachineProfile(**invalid)


def digests(store: Store, name: str, *, seed: int = 0, **options) -> list[str]:
    learners_by_name = learners(seed=seed)
    model = learners_by_name["site0"].model
    journal = Journal(store, name)
    profiles = {
        "site0": MachineProfile(speed=5),
        "site1": MachineProfile(dropout_probability=0.3),
        "site2": MachineProfile(latency=1, leaves_at=60.0),
    }
    strategy = Strategy(**{"learners": 3, "rounds": 6, "seed": seed, "training": SETTINGS, **options})
    simulated = VirtualEngine(learners_by_name, profiles, store_payload=journal.payloads.put, seed=seed)
    community = community_model(strategy, model.layout, parse_codec("raw"), model.initial(seed))
    outcome = RunLoop(strategy, community, simulated, journal).run()
    models = store.models(name)
    assert outcome.digest == models[-1].digest
    return [m.digest for m in models]


@pytest.mark.parametrize("policy", STRATEGIES)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path, policy):
    options = STRATEGIES[policy]
    with Store(tmp_path) as store:
        first, second = digests(store, "a", **options), digests(store, "b", **options)
        other = digests(store, "c", seed=1, **options)
    assert len(first) == 7
    assert first == second
    assert not set(first) & set(other)


def test_fedavg_equals_the_plain_loop(tmp_path):
    """Two synchronous rounds computed without the engine."""
    learners_by_name = learners()
    model = learners_by_name["site0"].model
    vector = model.initial(0)
    for version in range(2):
        sent = {
            n: m.train(f"{version}.1.{n}", version, vector, SETTINGS).payload
            for n, m in learners_by_name.items()
        }
        updates = [np.frombuffer(p[-4 * model.layout.size - 4 : -4], "<f4") for p in sent.values()]
        weights = [len(m.examples) for m in learners_by_name.values()]
        vector = (vector + np.average(updates, axis=0, weights=weights)).astype(np.float32)
    with Store(tmp_path) as store:
        journal = Journal(store, "a")
        strategy = Strategy(learners=3, rounds=2, training=SETTINGS)
        simulated = VirtualEngine(learners(), {}, store_payload=journal.payloads.put, seed=0)
        community = community_model(strategy, model.layout, parse_codec("raw"), model.initial(0))
        RunLoop(strategy, community, simulated, journal).run()
    assert community.vector == pytest.approx(vector, abs=1e-6)


def test_a_time_budget_is_as_many_steps_as_the_profiles_speed_does_in_it():
    speeds = {"site0": 10.0, "site1": 2.0, "site2": 0.1}
    simulated = engine(
        {name: MachineProfile(speed=s, latency=0.0, bandwidth=1e12) for name, s in speeds.items()}, 3
    )
    for _ in range(3):
        simulated.events()
    settings = TrainSettings(batch_size=10, time_budget_seconds=0.3)
    simulated.submit([TrainTask(f"t.{n}", n, 0, np.zeros(10, np.float32), settings) for n in speeds])
    received = {e.learner: e for e in (simulated.events()[0] for _ in range(3))}
    assert {name: e.steps for name, e in received.items()} == {"site0": 3, "site1": 1, "site2": 1}
    times = [received[name].timestamp for name in speeds]
    assert times == pytest.approx([0.3, 0.5, 10.0], abs=1e-6), (
        "a step that does not fit still takes its full time"
    )


def test_a_replayed_run_repeats_its_number_of_steps():
    simulated = engine({"site0": MachineProfile(speed=10.0)})
    simulated.events()
    budget = TrainSettings(batch_size=10, time_budget_seconds=0.5)
    task_in_time = TrainTask("t", "site0", 0, np.zeros(10, np.float32), budget)
    simulated.submit([task_in_time])
    (first,) = simulated.events()
    faster = engine({"site0": MachineProfile(speed=99.0)}, known_updates={"t": first})
    faster._learners["site0"]._transform_state = {
        "residual": np.zeros(1, np.float32)
    }  # so that it is trained again
    faster.events()
    faster.submit([task_in_time])
    (again,) = faster.events()
    assert (first.steps, again.steps) == (5, 5)
