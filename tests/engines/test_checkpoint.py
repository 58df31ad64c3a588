"""Resuming from a checkpoint gives the same run without aggregating its models again."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from abaton.codecs import parse_codec
from abaton.controller import (
    STRATEGIES,
    AsynchronousScheduler,
    ControllerState,
    DifferentialPrivacy,
    LatestContribution,
    ModelCache,
    ServerAdam,
    ServerMomentum,
    StalenessWeighting,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
    UpdateReceived,
    community_model,
    event_from_row,
)
from abaton.controller.aggregation import LatestMeanModel
from abaton.controller.state import from_json_value, to_json_value
from abaton.engines import Checkpoints, RunLoop, VirtualEngine
from abaton.engines.checkpoint import MAX_TIME_FRACTION, Checkpoint
from abaton.errors import SettingsError, StoreError
from abaton.learners import Learner
from abaton.models import Examples, logistic
from abaton.store import Journal, ScratchModelFile, Store

SETTINGS = TrainSettings(epochs=1, batch_size=10)
MODEL = logistic(features=4)
STRATEGY_OPTIONS = {
    **{name: dict(strategy) for name, strategy in STRATEGIES.items()},
    "sampled, with a deadline and momentum": {
        "scheduler": SynchronousScheduler(participants=2, deadline=50.0),
        "server_optimiser": ServerMomentum(),
    },
    "asynchronous, Adam, departed learners subtracted": {
        "scheduler": AsynchronousScheduler(),
        "server_optimiser": ServerAdam(),
        "contribution_rule": LatestContribution("subtract"),
    },
    "private": {"scheduler": AsynchronousScheduler(), "privacy": DifferentialPrivacy(8.0, 1e-5, 9.0)},
    "private rounds": {
        "weighting": (StalenessWeighting("constant"),),
        "privacy": DifferentialPrivacy(8.0, 1e-5, 9.0, "readers"),
    },
}


def learners(codec) -> dict[str, Learner]:
    built = {}
    for i, name in enumerate("abc"):
        x = np.random.default_rng(i).normal(size=(30, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        built[name] = Learner(name, MODEL, data, codec, 0, validation=data, secret=b"site " + name.encode())
    return built


class Deterministic(VirtualEngine):
    """Virtual engine in the role of a real-time one: known updates come from the journal."""

    is_real_time = True


class Interrupted(BaseException):
    pass


def run_once(
    store: Store,
    run: str,
    strategy: Strategy,
    spec: str,
    *,
    checkpoint_every: int = 4,
    interrupt_at: int = 0,
    attempts: list | None = None,
):
    codec = parse_codec(spec)
    journal = Journal(store, run)
    checkpoints = Checkpoints(store.checkpoint_folder(run), checkpoint_every, clock=lambda: 0.0)
    events = {
        e.task: e for e in map(lambda r: event_from_row(*r), journal.rows()) if isinstance(e, UpdateReceived)
    }
    learners_by_name = learners(codec)
    virtual = Deterministic(
        learners_by_name, {}, store_payload=journal.payloads.put, seed=0, known_updates=events
    )
    community = community_model(strategy, MODEL.layout, codec, MODEL.initial(0))
    run_loop = RunLoop(strategy, community, virtual, journal, checkpoints=checkpoints)
    checkpoint = checkpoints.read()
    if checkpoint is not None:
        run_loop.resume(checkpoint)
        if attempts is not None:
            attempts.append((checkpoint.events, journal.stored_events - checkpoint.events))
    seen = [journal.length]

    def watch(*_: object) -> None:
        seen[0] += 1
        if seen[0] == interrupt_at:
            raise Interrupted

    return run_loop.run(watch)


@pytest.mark.parametrize("name", STRATEGY_OPTIONS)
def test_the_state_at_every_event_survives_as_json(tmp_path, name):
    import json

    strategy = Strategy(learners=3, rounds=4, training=SETTINGS, **STRATEGY_OPTIONS[name])
    spec = "clip(norm=1) | gaussian_noise(std=9) | raw" if strategy.privacy else "raw"
    codec, states = parse_codec(spec), []
    with Store(tmp_path) as store:
        journal = Journal(store, "r")
        engine = VirtualEngine(learners(codec), {}, store_payload=journal.payloads.put, seed=0)
        community = community_model(strategy, MODEL.layout, codec, MODEL.initial(0))
        RunLoop(strategy, community, engine, journal).run(lambda state, _: states.append(state))
    assert len(states) > 6
    for state in [ControllerState(), *states]:
        assert from_json_value(json.loads(json.dumps(to_json_value(state)))) == state


@pytest.mark.parametrize("name", [n for n in STRATEGY_OPTIONS if n != "AsyncDVW(a)"])
def test_a_run_resumes_from_its_checkpoint_with_the_bits_of_its_journal(tmp_path, monkeypatch, name):
    """Interrupted and resumed, and replayed from the content journal without a checkpoint: the same versions."""
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    strategy = Strategy(learners=3, rounds=8, training=SETTINGS, **STRATEGY_OPTIONS[name])
    spec = "clip(norm=1) | gaussian_noise(std=9) | raw" if strategy.privacy else "ecdq(bits=4)"
    with Store(tmp_path) as store:
        attempts: list = []
        for interrupt_at in (6, 11, 17):
            with pytest.raises(Interrupted):
                run_once(store, "r", strategy, spec, interrupt_at=interrupt_at, attempts=attempts)
        outcome = run_once(store, "r", strategy, spec, attempts=attempts)
        assert outcome.version == 8
        assert attempts
        assert all(replayed < 4 for _, replayed in attempts), "only events after the checkpoint are replayed"
        digests = [model.digest for model in store.models("r")]
        assert len(digests) == 9
        journal = Journal(store, "r")
        codec = parse_codec(spec)
        unused = VirtualEngine({}, {}, store_payload=journal.payloads.put, seed=0)
        community = community_model(strategy, MODEL.layout, codec, MODEL.initial(0))
        replayed = RunLoop(strategy, community, unused, journal)
        replayed.resume()
        replayed.run()  # the journal compares every version's digest with the published one


def test_a_restored_community_model_has_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    models = rng.normal(size=(6, MODEL.layout.size)).astype(np.float32)
    one = LatestMeanModel(MODEL.layout, parse_codec("raw"), MODEL.layout.zeros(), ServerAdam())
    for i in range(6):
        one.replace(f"site{i % 4}", models[i], 1.0 + i)
        one.publish()
    one.remove_learner("site3")
    other = LatestMeanModel(MODEL.layout, parse_codec("raw"), MODEL.layout.zeros(), ServerAdam())
    other.load(one.save())
    for mix in (one, other):
        mix.replace("site1", models[0] * 1e9, 0.3)
        mix.publish()
    assert one.vector.tobytes() == other.vector.tobytes()
    assert one._total.tobytes() == other._total.tobytes()


def test_latest_models_in_a_file_are_saved_and_restored(tmp_path):
    """Also if they do not fit into memory together."""
    models = np.random.default_rng(0).normal(size=(6, MODEL.layout.size)).astype(np.float32)
    with (
        ScratchModelFile(tmp_path, MODEL.layout.size) as file,
        ScratchModelFile(tmp_path, MODEL.layout.size) as another,
    ):
        models_in_file = [
            LatestMeanModel(
                MODEL.layout,
                parse_codec("raw"),
                MODEL.layout.zeros(),
                model_cache=ModelCache(MODEL.layout.size, 0, scratch_file),
            )
            for scratch_file in (file, another)
        ]
        for i in range(6):
            models_in_file[0].replace(f"site{i}", models[i], 1.0 + i)
            models_in_file[0].publish()
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        checkpoints.write(Checkpoint(1, "", {"community_model": models_in_file[0].save()}))
        models_in_file[1].load(checkpoints.read().components["community_model"])
        for mix in models_in_file:
            for i in (4, 1):
                mix.replace(f"site{i}", models[0], 0.5)
            mix.remove_learner("site2")
            mix.publish()
        assert models_in_file[0].vector.tobytes() == models_in_file[1].vector.tobytes()


def write_checkpoint(folder: Path, store: Store) -> Checkpoints:
    with pytest.raises(Interrupted):
        run_once(store, "r", Strategy(learners=3, rounds=8, training=SETTINGS), "raw", interrupt_at=9)
    return Checkpoints(store.checkpoint_folder("r"))


def test_a_damaged_checkpoint_is_never_read(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path) as store:
        checkpoints = write_checkpoint(tmp_path, store)
        content = checkpoints.path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        for offset in (3, 20, 8 + length + 1, (8 + length + len(content)) // 2, len(content) - 2):
            changed = bytearray(content)
            changed[offset] ^= 1
            checkpoints.path.write_bytes(changed)
            with pytest.raises(StoreError, match="damaged"):
                checkpoints.read()
        for size in (0, 5, 100, 8 + length, len(content) - 1):
            checkpoints.path.write_bytes(content[:size])
            with pytest.raises(StoreError, match="damaged"):
                checkpoints.read()
        checkpoints.path.write_bytes(content.replace(b'"format": "1"', b'"format": "2"'))
        with pytest.raises(StoreError, match="another format"):
            checkpoints.read()


def test_a_checkpoint_matches_its_own_journal_only(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path) as store:
        checkpoint = write_checkpoint(tmp_path, store).read()
        assert checkpoint.events == 8
        assert len(list(Journal(store, "r").skip(8, checkpoint.last_event_digest))) == 1
        with pytest.raises(StoreError, match="do not match the journal"):
            Journal(store, "r").skip(8, "another digest")
        with store.reading() as connection:
            connection.exec_driver_sql("DELETE FROM events WHERE sequence > 3")
        with pytest.raises(StoreError, match="do not match the journal"):
            Journal(store, "r").skip(8, checkpoint.last_event_digest)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    with pytest.raises(StoreError, match="unknown"):
        from_json_value({"type": "unknown_type"})
    with pytest.raises(StoreError, match="unknown"):
        from_json_value({"type": "controller_state", "unknown_field": 3})
    with pytest.raises(SettingsError, match="checkpoints"):
        Checkpoints(tmp_path, 0)


def test_vectors_of_every_type_are_restored_exactly(tmp_path):
    vectors = {
        "none": np.zeros(0, np.float32),
        "strided": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2],
        "integers": np.array([-1, 2**62]),
        "exact": np.array([1 / 3, np.inf, np.nan]),
        "booleans": np.array([True, False]),
        'a name with \u20ac and "quotes"': np.uint8([7]),
    }
    checkpoint = Checkpoint(3, "digest", {"run": ({"values": [1, None, 0.1]}, {}), "other": ({}, vectors)})
    checkpoints = Checkpoints(tmp_path / "new")
    assert checkpoints.read() is None
    checkpoints.write(checkpoint)
    restored = checkpoints.read()
    assert (restored.events, restored.last_event_digest, restored.components["run"][0]) == (
        3,
        "digest",
        {"values": [1, None, 0.1]},
    )
    assert not restored.components["run"][1]
    read = restored.components["other"][1]
    assert set(read) == set(vectors)
    for name, values in vectors.items():
        assert read[name].dtype == values.dtype
        assert read[name].shape == values.shape
        assert read[name].tobytes() == values.tobytes()
    with pytest.raises(KeyError):
        read["other"]


def test_vectors_are_written_one_by_one(tmp_path):
    """At most the previous vector is alive while one is built."""
    alive: list[weakref.ref] = []

    class LazyVectors(Mapping):
        def __getitem__(self, name):
            assert sum(reference() is not None for reference in alive) <= 1
            values = np.full(1000, float(name))
            alive.append(weakref.ref(values))
            return values

        def __iter__(self):
            return map(str, range(20))

        def __len__(self):
            return 20

    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(Checkpoint(1, "", {"other": ({}, LazyVectors())}))
    assert len(alive) == 20
    assert checkpoints.read().components["other"][1]["17"][0] == 17.0


def test_writing_takes_a_bounded_fraction_of_the_time(tmp_path):
    """For models of any size and any interval."""
    now, written = [0.0], []
    checkpoints = Checkpoints(tmp_path, 10, clock=lambda: now[0])

    def slow() -> Checkpoint:
        now[0] += 3.0
        written.append(now[0])
        return Checkpoint(1, "", {})

    for event in range(1, 100_000):
        now[0] += 0.01
        checkpoints.offer(event, slow)
    assert len(written) > 5
    assert 3.0 * len(written) <= MAX_TIME_FRACTION * now[0] + 3.0

    quick: list[int] = []
    checkpoints = Checkpoints(tmp_path, 10, clock=lambda: 0.0)
    for event in range(1, 101):
        checkpoints.offer(event, lambda count=event: quick.append(count) or Checkpoint(count, "", {}))
    assert quick == list(range(10, 101, 10))


class CountingComponent:
    """A component with its own state."""

    def __init__(self) -> None:
        self.count, self.vector = 0, np.zeros(2, np.float32)

    def save(self):
        return {"count": self.count}, {"vector": self.vector}

    def load(self, saved) -> None:
        self.count, self.vector = saved[0]["count"], saved[1]["vector"]


def test_a_checkpoint_contains_further_components_and_matches_no_other_run(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    strategy = Strategy(learners=3, rounds=8, training=SETTINGS)
    codec, components = parse_codec("raw"), []

    def build_run_loop(journal: Journal, components: dict) -> RunLoop:
        engine = Deterministic(learners(codec), {}, store_payload=journal.payloads.put, seed=0)
        community = community_model(strategy, MODEL.layout, codec, MODEL.initial(0))
        checkpoints = Checkpoints(store.checkpoint_folder("r"), 3, clock=lambda: 0.0)
        run_loop = RunLoop(strategy, community, engine, journal, checkpoints=checkpoints)
        run_loop.components |= components
        return run_loop

    with Store(tmp_path) as store:
        components.append(CountingComponent())

        def watch(*_: object) -> None:
            components[0].count += 1
            components[0].vector = components[0].vector + 1
            if components[0].count == 11:
                raise Interrupted

        with pytest.raises(Interrupted):
            build_run_loop(Journal(store, "r"), {"memory": components[0]}).run(watch)
        checkpoint = Checkpoints(store.checkpoint_folder("r")).read()
        again = CountingComponent()
        build_run_loop(Journal(store, "r"), {"memory": again}).resume(checkpoint)
        assert again.count == checkpoint.events == 9
        assert again.vector.tolist() == [9.0, 9.0]
        for others in ({}, {"another": CountingComponent()}):
            with pytest.raises(StoreError, match="lacks state"):
                build_run_loop(Journal(store, "r"), others).resume(checkpoint)
