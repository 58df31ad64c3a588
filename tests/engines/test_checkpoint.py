"""Going on from a checkpoint: the same run, without mixing its models again."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from abaton.codecs import parse
from abaton.controller import (
    POLICIES,
    Adam,
    Arrived,
    Asynchronous,
    ByStaleness,
    Latest,
    Momentum,
    Privacy,
    Rules,
    Shelf,
    State,
    Synchronous,
    TrainSettings,
    community_model,
    from_row,
)
from abaton.controller.aggregation import Newest
from abaton.controller.state import from_plain, to_plain
from abaton.engines import Checkpoints, Driver, VirtualEngine
from abaton.engines.checkpoint import SHARE, Checkpoint
from abaton.errors import SettingsError, StoreError
from abaton.learners import Examples, Learner, logistic
from abaton.store import Journal, SlotFile, Store

SETTINGS = TrainSettings(epochs=1, batch_size=10)
MODEL = logistic(features=4)
RULES = {
    **{name: dict(chosen) for name, chosen in POLICIES.items()},
    "sampled, with a deadline and momentum": {
        "pacing": Synchronous(participants=2, deadline=50.0),
        "server": Momentum(),
    },
    "asynchronous, Adam, leavers go": {
        "pacing": Asynchronous(),
        "server": Adam(),
        "mixing": Latest("subtract"),
    },
    "private": {"pacing": Asynchronous(), "privacy": Privacy(8.0, 1e-5, 9.0)},
    "private rounds": {
        "weighting": (ByStaleness("constant"),),
        "privacy": Privacy(8.0, 1e-5, 9.0, "readers"),
    },
}


def learners(codec) -> dict[str, Learner]:
    made = {}
    for i, name in enumerate("abc"):
        x = np.random.default_rng(i).normal(size=(30, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        made[name] = Learner(name, MODEL, data, codec, 0, validation=data, secret=b"site " + name.encode())
    return made


class Deterministic(VirtualEngine):
    """The virtual engine in the role of a real one: its answers are told from the journal."""

    real = True


class Cut(BaseException):
    pass


def drive(
    store: Store,
    run: str,
    rules: Rules,
    line: str,
    *,
    every: int = 4,
    cut: int = 0,
    tries: list | None = None,
):
    codec = parse(line)
    journal = Journal(store, run)
    checkpoints = Checkpoints(store.checkpoint_folder(run), every, clock=lambda: 0.0)
    events = {e.task: e for e in map(lambda r: from_row(*r), journal.rows()) if isinstance(e, Arrived)}
    members = learners(codec)
    virtual = Deterministic(members, {}, keep=journal.payloads.put, seed=0, finished=events)
    community = community_model(rules, MODEL.layout, codec, MODEL.initial(0))
    driver = Driver(rules, community, virtual, journal, checkpoints=checkpoints)
    made = checkpoints.read()
    if made is not None:
        driver.go_on(made)
        if tries is not None:
            tries.append((made.events, journal.known - made.events))
    seen = [journal.length]

    def watch(*_: object) -> None:
        seen[0] += 1
        if seen[0] == cut:
            raise Cut

    return driver.run(watch)


@pytest.mark.parametrize("name", RULES)
def test_the_state_at_every_event_survives_as_plain_values(tmp_path, name):
    import json

    rules = Rules(learners=3, rounds=4, training=SETTINGS, **RULES[name])
    line = "clip(norm=1) | gaussian_noise(std=9) | raw" if rules.privacy else "raw"
    codec, states = parse(line), []
    with Store(tmp_path) as store:
        journal = Journal(store, "r")
        engine = VirtualEngine(learners(codec), {}, keep=journal.payloads.put, seed=0)
        community = community_model(rules, MODEL.layout, codec, MODEL.initial(0))
        Driver(rules, community, engine, journal).run(lambda state, _: states.append(state))
    assert len(states) > 6
    for state in [State(), *states]:
        assert from_plain(json.loads(json.dumps(to_plain(state)))) == state


@pytest.mark.parametrize("name", [n for n in RULES if n != "AsyncDVW(a)"])
def test_a_run_goes_on_from_its_checkpoint_with_the_bits_of_its_journal(tmp_path, monkeypatch, name):
    """Cut it off, resume it, and mix the whole journal again without a checkpoint: the same versions."""
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    rules = Rules(learners=3, rounds=8, training=SETTINGS, **RULES[name])
    line = "clip(norm=1) | gaussian_noise(std=9) | raw" if rules.privacy else "ecdq(bits=4)"
    with Store(tmp_path) as store:
        tries: list = []
        for cut in (6, 11, 17):
            with pytest.raises(Cut):
                drive(store, "r", rules, line, cut=cut, tries=tries)
        outcome = drive(store, "r", rules, line, tries=tries)
        assert outcome.version == 8
        assert tries
        assert all(told < 4 for _, told in tries), "only what follows the checkpoint is replayed"
        digests = [model.digest for model in store.models("r")]
        assert len(digests) == 9
        journal = Journal(store, "r")
        codec = parse(line)
        unused = VirtualEngine({}, {}, keep=journal.payloads.put, seed=0)
        community = community_model(rules, MODEL.layout, codec, MODEL.initial(0))
        replayed = Driver(rules, community, unused, journal)
        replayed.go_on()
        replayed.run()  # the journal compares every version's digest with what was published


def test_a_mix_goes_on_with_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    models = rng.normal(size=(6, MODEL.layout.size)).astype(np.float32)
    one = Newest(MODEL.layout, parse("raw"), MODEL.layout.zeros(), Adam())
    for i in range(6):
        one.replace(f"site{i % 4}", models[i], 1.0 + i)
        one.publish()
    one.retire("site3")
    other = Newest(MODEL.layout, parse("raw"), MODEL.layout.zeros(), Adam())
    other.load(one.save())
    for mix in (one, other):
        mix.replace("site1", models[0] * 1e9, 0.3)
        mix.publish()
    assert one.vector.tobytes() == other.vector.tobytes()
    assert one._total.tobytes() == other._total.tobytes()


def test_newest_models_that_are_in_a_file_are_saved_and_taken_over(tmp_path):
    """Also if they do not fit in memory together."""
    models = np.random.default_rng(0).normal(size=(6, MODEL.layout.size)).astype(np.float32)
    with SlotFile(tmp_path, MODEL.layout.size) as file, SlotFile(tmp_path, MODEL.layout.size) as another:
        mixes = [
            Newest(MODEL.layout, parse("raw"), MODEL.layout.zeros(), shelf=Shelf(MODEL.layout.size, 0, place))
            for place in (file, another)
        ]
        for i in range(6):
            mixes[0].replace(f"site{i}", models[i], 1.0 + i)
            mixes[0].publish()
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        checkpoints.write(Checkpoint(1, "", {"mix": mixes[0].save()}))
        mixes[1].load(checkpoints.read().parts["mix"])
        for mix in mixes:
            for i in (4, 1):
                mix.replace(f"site{i}", models[0], 0.5)
            mix.retire("site2")
            mix.publish()
        assert mixes[0].vector.tobytes() == mixes[1].vector.tobytes()


def one_checkpoint(folder: Path, store: Store) -> Checkpoints:
    with pytest.raises(Cut):
        drive(store, "r", Rules(learners=3, rounds=8, training=SETTINGS), "raw", cut=9)
    return Checkpoints(store.checkpoint_folder("r"))


def test_a_damaged_checkpoint_is_never_read(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    with Store(tmp_path) as store:
        checkpoints = one_checkpoint(tmp_path, store)
        whole = checkpoints.path.read_bytes()
        length = int.from_bytes(whole[:8], "little")
        for place in (3, 20, 8 + length + 1, (8 + length + len(whole)) // 2, len(whole) - 2):
            changed = bytearray(whole)
            changed[place] ^= 1
            checkpoints.path.write_bytes(changed)
            with pytest.raises(StoreError, match="damaged"):
                checkpoints.read()
        for size in (0, 5, 100, 8 + length, len(whole) - 1):
            checkpoints.path.write_bytes(whole[:size])
            with pytest.raises(StoreError, match="damaged"):
                checkpoints.read()
        checkpoints.path.write_bytes(whole.replace(b'"form": "1"', b'"form": "2"'))
        with pytest.raises(StoreError, match="another form"):
            checkpoints.read()


def test_a_checkpoint_fits_its_own_journal_only(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    with Store(tmp_path) as store:
        made = one_checkpoint(tmp_path, store).read()
        assert made.events == 8
        assert len(list(Journal(store, "r").skip(8, made.mark))) == 1
        with pytest.raises(StoreError, match="does not have"):
            Journal(store, "r").skip(8, "another mark")
        with store.reading() as connection:
            connection.exec_driver_sql("DELETE FROM events WHERE sequence > 3")
        with pytest.raises(StoreError, match="does not have"):
            Journal(store, "r").skip(8, made.mark)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    with pytest.raises(StoreError, match="does not know"):
        from_plain({"is": "Unheard"})
    with pytest.raises(StoreError, match="does not know"):
        from_plain({"is": "State", "unheard": 3})
    with pytest.raises(SettingsError, match="checkpoints"):
        Checkpoints(tmp_path, 0)


def test_vectors_of_every_kind_come_back_as_they_were(tmp_path):
    vectors = {
        "none": np.zeros(0, np.float32),
        "numbers": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2],
        "whole": np.array([-1, 2**62]),
        "exact": np.array([1 / 3, np.inf, np.nan]),
        "yes/no": np.array([True, False]),
        'a name with \u20ac and "quotes"': np.uint8([7]),
    }
    made = Checkpoint(3, "mark", {"run": ({"plain": [1, None, 0.1]}, {}), "own": ({}, vectors)})
    checkpoints = Checkpoints(tmp_path / "new")
    assert checkpoints.read() is None
    checkpoints.write(made)
    found = checkpoints.read()
    assert (found.events, found.mark, found.parts["run"][0]) == (3, "mark", {"plain": [1, None, 0.1]})
    assert not found.parts["run"][1]
    read = found.parts["own"][1]
    assert set(read) == set(vectors)
    for name, values in vectors.items():
        assert read[name].dtype == values.dtype
        assert read[name].shape == values.shape
        assert read[name].tobytes() == values.tobytes()
    with pytest.raises(KeyError):
        read["other"]


def test_vectors_are_written_one_by_one(tmp_path):
    """However many there are: no more than the one before is held while one is made."""
    alive: list[weakref.ref] = []

    class Lazily(Mapping):
        def __getitem__(self, name):
            assert sum(one() is not None for one in alive) <= 1
            values = np.full(1000, float(name))
            alive.append(weakref.ref(values))
            return values

        def __iter__(self):
            return map(str, range(20))

        def __len__(self):
            return 20

    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(Checkpoint(1, "", {"own": ({}, Lazily())}))
    assert len(alive) == 20
    assert checkpoints.read().parts["own"][1]["17"][0] == 17.0


def test_writing_takes_a_bounded_share_of_the_time(tmp_path):
    """However large the models and however short the interval."""
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
    assert 3.0 * len(written) <= SHARE * now[0] + 3.0

    quick: list[int] = []
    checkpoints = Checkpoints(tmp_path, 10, clock=lambda: 0.0)
    for event in range(1, 101):
        checkpoints.offer(event, lambda at=event: quick.append(at) or Checkpoint(at, "", {}))
    assert quick == list(range(10, 101, 10))


class Memory:
    """A part of a run that has a state of its own."""

    def __init__(self) -> None:
        self.heard, self.vector = 0, np.zeros(2, np.float32)

    def save(self):
        return {"heard": self.heard}, {"vector": self.vector}

    def load(self, saved) -> None:
        self.heard, self.vector = saved[0]["heard"], saved[1]["vector"]


def test_a_checkpoint_holds_further_parts_and_fits_no_run_that_has_others(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    rules = Rules(learners=3, rounds=8, training=SETTINGS)
    codec, memories = parse("raw"), []

    def driver(journal: Journal, parts: dict) -> Driver:
        engine = Deterministic(learners(codec), {}, keep=journal.payloads.put, seed=0)
        community = community_model(rules, MODEL.layout, codec, MODEL.initial(0))
        checkpoints = Checkpoints(store.checkpoint_folder("r"), 3, clock=lambda: 0.0)
        made = Driver(rules, community, engine, journal, checkpoints=checkpoints)
        made.parts |= parts
        return made

    with Store(tmp_path) as store:
        memories.append(Memory())

        def watch(*_: object) -> None:
            memories[0].heard += 1
            memories[0].vector = memories[0].vector + 1
            if memories[0].heard == 11:
                raise Cut

        with pytest.raises(Cut):
            driver(Journal(store, "r"), {"memory": memories[0]}).run(watch)
        made = Checkpoints(store.checkpoint_folder("r")).read()
        again = Memory()
        driver(Journal(store, "r"), {"memory": again}).go_on(made)
        assert again.heard == made.events == 9
        assert again.vector.tolist() == [9.0, 9.0]
        for others in ({}, {"another": Memory()}):
            with pytest.raises(StoreError, match="does not hold"):
                driver(Journal(store, "r"), others).go_on(made)
