from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import parse
from abaton.controller import (
    POLICIES,
    Arrived,
    Failed,
    Joined,
    Left,
    Rules,
    Tick,
    TrainSettings,
    community_model,
)
from abaton.engines import Driver, Profile, TrainTask, VirtualEngine
from abaton.errors import SettingsError
from abaton.learners import Examples, Learner, logistic
from abaton.store import Journal, Store

SETTINGS = TrainSettings(epochs=2, batch_size=10)


def learners(count: int = 3, seed: int = 0) -> dict[str, Learner]:
    rng = np.random.default_rng(0)
    model = logistic(features=4)
    made = {}
    for i in range(count):
        x = rng.normal(size=(20 + 10 * i, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        made[f"site{i}"] = Learner(f"site{i}", model, data, parse("raw"), seed, validation=data)
    return made


def engine(profiles: dict[str, Profile], count: int = 1, **more) -> VirtualEngine:
    kept: dict[str, bytes] = {}

    def keep(payload: bytes) -> str:
        kept[str(len(kept))] = payload
        return str(len(kept) - 1)

    return VirtualEngine(learners(count), profiles, keep=keep, seed=0, **more)


def task(key: str = "t", learner: str = "site0") -> TrainTask:
    return TrainTask(key, learner, 0, np.zeros(10, np.float32), SETTINGS)


def test_time_is_download_plus_compute_plus_upload_of_the_real_bytes():
    profile = Profile(speed=8.0, bandwidth=100.0, latency=0.5)
    simulated = engine({"site0": profile})
    assert simulated.events() == (Joined(0.0, "site0", 20, labels=(12, 8)),)
    simulated.submit([task()])
    (event,) = simulated.events()
    assert isinstance(event, Arrived)
    down, compute, up = 0.5 + 40 / 100, 4 / 8, 0.5 + event.size / 100
    assert event.at == pytest.approx(down + compute + up) == simulated.now()
    assert (event.steps, event.examples) == (4, 20)
    assert simulated.events() == ()


def test_timers_tick_and_cancelled_tasks_are_not_heard_of():
    simulated = engine({"site0": Profile(speed=1.0)})
    simulated.events()
    simulated.submit([task()])
    simulated.set_timer("bell", 0.5)
    assert simulated.events() == (Tick(0.5, "bell"),)
    simulated.cancel("t")
    assert simulated.events() == ()


def test_a_task_submitted_twice_counts_once():
    simulated = engine({})
    simulated.events()
    simulated.submit([task(), task()])
    simulated.submit([task()])
    assert len([simulated.events(), simulated.events()][0]) == 1
    assert simulated.events() == ()


def test_dropout_fails_the_share_it_names():
    simulated = engine({"site0": Profile(dropout=0.3)})
    simulated.events()
    simulated.submit([task(str(i)) for i in range(1000)])
    kinds = [type(simulated.events()[0]) for _ in range(1000)]
    assert kinds.count(Failed) == pytest.approx(300, abs=60)


def test_learners_join_and_leave_in_the_middle_and_never_answer_afterwards():
    simulated = engine({"site0": Profile(joins=1.0, leaves=2.0, speed=1.0)})
    assert simulated.events() == (Joined(1.0, "site0", 20, labels=(12, 8)),)
    simulated.submit([task()])
    assert simulated.events() == (Left(2.0, "site0"),)
    assert simulated.events() == ()


@pytest.mark.parametrize(
    "wrong", [{"speed": 0}, {"bandwidth": -1}, {"latency": -1}, {"dropout": 2}, {"joins": 3, "leaves": 1}]
)
def test_impossible_profiles_are_refused(wrong):
    with pytest.raises(SettingsError, match="profile"):
        Profile(**wrong)


def digests(store: Store, name: str, *, seed: int = 0, **rules) -> list[str]:
    members = learners(seed=seed)
    model = members["site0"].model
    journal = Journal(store, name)
    profiles = {
        "site0": Profile(speed=5),
        "site1": Profile(dropout=0.3),
        "site2": Profile(latency=1, leaves=60.0),
    }
    run_rules = Rules(**{"learners": 3, "rounds": 6, "seed": seed, "training": SETTINGS, **rules})
    simulated = VirtualEngine(members, profiles, keep=journal.payloads.put, seed=seed)
    community = community_model(run_rules, model.layout, parse("raw"), model.initial(seed))
    outcome = Driver(run_rules, community, simulated, journal).run()
    models = store.models(name)
    assert outcome.digest == models[-1].digest
    return [m.digest for m in models]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path, policy):
    chosen = POLICIES[policy]
    with Store(tmp_path) as store:
        first, second = digests(store, "a", **chosen), digests(store, "b", **chosen)
        other = digests(store, "c", seed=1, **chosen)
    assert len(first) == 7
    assert first == second
    assert not set(first) & set(other)


def test_fedavg_equals_the_plain_loop(tmp_path):
    """Two synchronous rounds by hand, with nothing of the engine in between."""
    members = learners()
    model = members["site0"].model
    vector = model.initial(0)
    for version in range(2):
        sent = {n: m.train(f"{version}.1.{n}", version, vector, SETTINGS).payload for n, m in members.items()}
        updates = [np.frombuffer(p[-4 * model.layout.size - 4 : -4], "<f4") for p in sent.values()]
        weights = [len(m.examples) for m in members.values()]
        vector = (vector + np.average(updates, axis=0, weights=weights)).astype(np.float32)
    with Store(tmp_path) as store:
        journal = Journal(store, "a")
        rules = Rules(learners=3, rounds=2, training=SETTINGS)
        simulated = VirtualEngine(learners(), {}, keep=journal.payloads.put, seed=0)
        community = community_model(rules, model.layout, parse("raw"), model.initial(0))
        Driver(rules, community, simulated, journal).run()
    assert community.vector == pytest.approx(vector, abs=1e-6)


def test_a_time_budget_is_as_many_steps_as_the_profiles_speed_does_in_it():
    speeds = {"site0": 10.0, "site1": 2.0, "site2": 0.1}
    simulated = engine({name: Profile(speed=s, latency=0.0, bandwidth=1e12) for name, s in speeds.items()}, 3)
    for _ in range(3):
        simulated.events()
    settings = TrainSettings(batch_size=10, budget=0.3)
    simulated.submit([TrainTask(f"t.{n}", n, 0, np.zeros(10, np.float32), settings) for n in speeds])
    arrived = {e.learner: e for e in (simulated.events()[0] for _ in range(3))}
    assert {name: e.steps for name, e in arrived.items()} == {"site0": 3, "site1": 1, "site2": 1}
    times = [arrived[name].at for name in speeds]
    assert times == pytest.approx([0.3, 0.5, 10.0], abs=1e-6), "one step that does not fit takes its time"


def test_a_run_that_is_lived_through_again_does_the_steps_it_did():
    simulated = engine({"site0": Profile(speed=10.0)})
    simulated.events()
    budget = TrainSettings(batch_size=10, budget=0.5)
    task_in_time = TrainTask("t", "site0", 0, np.zeros(10, np.float32), budget)
    simulated.submit([task_in_time])
    (first,) = simulated.events()
    faster = engine({"site0": Profile(speed=99.0)}, finished={"t": first})
    faster._learners["site0"]._memory = {"residual": np.zeros(1, np.float32)}  # so that it is trained again
    faster.events()
    faster.submit([task_in_time])
    (again,) = faster.events()
    assert (first.steps, again.steps) == (5, 5)
