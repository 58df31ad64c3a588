"""Going on from a checkpoint: the same run, without mixing its models again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from abaton.codecs import Key, parse
from abaton.control import (
    POLICIES,
    Adam,
    Arrived,
    Asynchronous,
    ByStaleness,
    Latest,
    Momentum,
    Privacy,
    Rules,
    State,
    Synchronous,
    TrainSettings,
    community_model,
    from_row,
)
from abaton.control.community import Newest
from abaton.control.draw import round_key
from abaton.control.snapshot import from_plain, to_plain
from abaton.engines import Checkpoints, Driver, LocalEngine, Replayed, VirtualEngine
from abaton.errors import SettingsError, StoreError
from abaton.learning import Examples, Learner, logistic
from abaton.store import Journal, Store

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
    journal, checkpoints = Journal(store, run), Checkpoints(store.folder, run, every)
    events = {e.task: e for e in map(lambda r: from_row(*r), journal.rows()) if isinstance(e, Arrived)}
    members = learners(codec)
    virtual = Deterministic(members, {}, keep=journal.payloads.put, seed=0, finished=events)
    community = community_model(rules, MODEL.layout, codec, MODEL.initial(0))
    driver = Driver(rules, community, virtual, journal, checkpoints=checkpoints)
    made = checkpoints.read()
    if made is not None:
        resumed = driver.restore(made)
        told = [from_row(*row) for row in journal.skip(made.events)]
        if tries is not None:
            tries.append((made.events, len(told)))
        driver.engine = Replayed(virtual, told, resumed)
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
        assert all(told < 4 for _, told in tries), "only what follows the checkpoint is told again"
        assert not Checkpoints(tmp_path, "r").path.exists(), "a run that has ended needs none"
        digests = [model.digest for model in store.models("r")]
        assert len(digests) == 9
        journal = Journal(store, "r")
        codec = parse(line)
        events = [from_row(*row) for row in journal.rows()]
        replayed = Driver(
            rules,
            community_model(rules, MODEL.layout, codec, MODEL.initial(0)),
            Replayed(VirtualEngine({}, {}, keep=journal.payloads.put, seed=0), events),
            journal,
        )
        replayed.run()  # the journal compares every version's digest with what was published


def test_real_processes_go_on_from_a_checkpoint(tmp_path):
    rules = Rules(learners=3, rounds=12, training=SETTINGS, **POLICIES["AsyncDVW(na)"])
    codec = parse("raw")

    def check(learner: str, version: int, payload: bytes) -> None:
        codec.decode(payload, MODEL.layout, Key(round_key(0, version), learner))

    def live(store: Store, cut: int):
        journal, checkpoints = Journal(store, "r"), Checkpoints(tmp_path, "r", 5)
        community = community_model(rules, MODEL.layout, codec, MODEL.initial(0))
        with LocalEngine(learners(codec), keep=journal.payloads.put, check=check) as local:
            driver = Driver(rules, community, local, journal, checkpoints=checkpoints)
            made = checkpoints.read()
            if made is not None:
                resumed = driver.restore(made)
                driver.engine = Replayed(local, [from_row(*r) for r in journal.skip(made.events)], resumed)
            seen = [0]

            def watch(*_: object) -> None:
                seen[0] += 1
                if seen[0] == cut:
                    raise Cut

            return driver.run(watch)

    with Store(tmp_path) as store:
        for cut in (9, 13):
            with pytest.raises(Cut):
                live(store, cut)
        assert live(store, 0).version == 12
        tasks = [b["task"] for kind, b in Journal(store, "r").rows() if kind == "Arrived"]
        assert len(tasks) == len(set(tasks))


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


def test_a_damaged_checkpoint_is_refused_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    rules = Rules(learners=3, rounds=8, training=SETTINGS)
    with Store(tmp_path) as store:
        with pytest.raises(Cut):
            drive(store, "r", rules, "raw", cut=9)
        checkpoints = Checkpoints(tmp_path, "r")
        whole = checkpoints.path.read_bytes()
        for place in (20, len(whole) // 2, len(whole) - 2):
            changed = bytearray(whole)
            changed[place] ^= 1
            checkpoints.path.write_bytes(changed)
            with pytest.raises(StoreError, match="remove it"):
                checkpoints.read()
        checkpoints.path.write_bytes(whole[:100])
        with pytest.raises(StoreError, match="remove it"):
            checkpoints.read()
        checkpoints.path.write_bytes(whole)
        with store.reading() as connection:
            connection.exec_driver_sql("DELETE FROM events WHERE sequence > 3")
        with pytest.raises(StoreError, match="remove the checkpoint"):
            drive(store, "r", rules, "raw")


def test_a_checkpoint_of_another_version_is_refused():
    with pytest.raises(StoreError, match="does not know"):
        from_plain({"is": "Unheard"})
    with pytest.raises(StoreError, match="does not know"):
        from_plain({"is": "State", "unheard": 3})
    with pytest.raises(SettingsError, match="checkpoints"):
        Checkpoints(Path(), "r", 0)
