"""A compressed way down over every engine: learners hold the controller's bits, and every byte is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.engines import compressed
from tests.engines.compressed import DOWN, MODEL, RUNS, SIZE
from tests.engines.flower.loop import LoopPost, TwoDesks

from abaton.codecs import parse
from abaton.controller import Arrived, ByExamples, Scored, community_model
from abaton.engines import Checkpoints, Driver, Engine, LocalEngine, Profile, Replayed, VirtualEngine
from abaton.engines.flower import FlowerEngine, Lost, Network
from abaton.engines.flower.site_worker import Desk, Place
from abaton.learners import Learner
from abaton.store import Journal, Store


def virtual(
    learners: Mapping[str, Learner], keep: compressed.Keep, _: Path
) -> AbstractContextManager[Engine]:
    return closing(VirtualEngine(learners, {"c": Profile(speed=30.0)}, keep=keep, seed=0))


def local(
    learners: Mapping[str, Learner], keep: compressed.Keep, states: Path
) -> AbstractContextManager[Engine]:
    return LocalEngine(learners, keep=keep, check=compressed.check, states=states)


def post_of(learners: Mapping[str, Learner], states: Path) -> LoopPost:
    desks = [
        TwoDesks(lambda role, name=name, each=each: Desk(each, Place(role, states / name)))
        for name, each in learners.items()
    ]
    return LoopPost(dict(enumerate(desks)))


def network(post: LoopPost, keep: compressed.Keep) -> FlowerEngine:
    about = Network("run", MODEL.layout.digest, poll=0.001)
    return FlowerEngine(post, about, keep=keep, check=compressed.check)


@contextmanager
def flower(learners: Mapping[str, Learner], keep: compressed.Keep, states: Path) -> Iterator[Engine]:
    yield network(post_of(learners, states), keep)


ENGINES: dict[str, compressed.Make] = {"virtual": virtual, "local": local, "flower": flower}


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> compressed.Make:
    return ENGINES[request.param]


@pytest.mark.parametrize("name", RUNS)
def test_learners_hold_the_controllers_bits_and_less_goes_down(tmp_path, make, name):
    rules = RUNS[name]
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        made = compressed.learners(tmp_path / "noted")
        with make(made, journal.payloads.put, tmp_path / "states") as engine:
            outcome = compressed.drive(rules, engine, journal)
        assert outcome.version >= rules.rounds, outcome.reason
        expected, found = compressed.digests(journal), compressed.noted(tmp_path / "noted")
        assert len(found) > 1
        assert all({expected[version]} == seen for version, seen in found.items())
        assert outcome.bytes_down == compressed.down_of(journal)
        answered = compressed.answered(journal)
        assert 0 < outcome.bytes_down < 0.75 * answered * SIZE


@pytest.mark.parametrize("name", RUNS)
def test_the_journal_alone_gives_the_same_versions(tmp_path, make, name):
    """What everybody holds follows from the journal: the residual needs no place of its own."""
    rules = RUNS[name]
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        with make(compressed.learners(tmp_path / "n"), journal.payloads.put, tmp_path / "s") as engine:
            outcome = compressed.drive(rules, engine, journal)
        expected, written = compressed.digests(journal), Journal(store, "run")
        events = compressed.events_of(journal)
        with make(compressed.learners(tmp_path / "m"), written.payloads.put, tmp_path / "t") as unused:
            again = compressed.drive(rules, Replayed(unused, events), written)
        assert again.digest == outcome.digest
        assert compressed.digests(written) == expected


def test_rounds_come_out_the_same_on_every_engine(tmp_path):
    found = set()
    for name, make in ENGINES.items():
        with Store(tmp_path / name) as store:
            journal = Journal(store, "run")
            states = tmp_path / name / "states"
            with make(
                compressed.learners(tmp_path / f"{name} noted"), journal.payloads.put, states
            ) as engine:
                found.add(compressed.drive(RUNS["rounds"], engine, journal).digest)
    assert len(found) == 1


def test_without_a_downlink_every_model_goes_down_whole(tmp_path):
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        made = compressed.learners(tmp_path / "noted", downlink=None)
        with virtual(made, journal.payloads.put, tmp_path) as engine:
            outcome = compressed.drive(RUNS["rounds"], engine, journal, downlink=None)
        assert outcome.bytes_down == compressed.answered(journal) * SIZE


def test_bytes_down_decide_how_long_a_model_is_on_its_way(tmp_path):
    """The first model goes down whole; later ones are as many times sooner there as they are smaller."""
    seconds = {}
    slow = Profile(speed=1e9, bandwidth=1000.0, latency=0.0)
    for downlink in (None, DOWN):
        with Store(tmp_path / str(downlink)) as store:
            journal = Journal(store, "run")
            made = compressed.learners(tmp_path / "noted", downlink)
            with closing(
                VirtualEngine(made, dict.fromkeys(made, slow), keep=journal.payloads.put, seed=0)
            ) as e:
                seconds[downlink] = compressed.drive(RUNS["some of them"], e, journal, downlink).seconds
            events = [e for e in compressed.events_of(journal) if isinstance(e, Arrived)]
        assert seconds[downlink] == pytest.approx(sum(e.size + e.down for e in events) / 1000.0, rel=1e-6)
    assert seconds[DOWN] < 0.8 * seconds[None]


@pytest.mark.parametrize("downlink", ["quicfl(bits=1)", "eden(bits=2)", "ecdq(bits=2)", "raw", "fp16"])
def test_other_codecs_go_down_as_well_and_the_same_seed_gives_the_same_bits(tmp_path, downlink):
    found = []
    for turn in ("one", "two"):
        with Store(tmp_path / turn) as store:
            journal = Journal(store, "run")
            made = compressed.learners(tmp_path / f"{turn} noted", downlink)
            with virtual(made, journal.payloads.put, tmp_path) as engine:
                found.append(compressed.drive(RUNS["asynchronous"], engine, journal, downlink).digest)
    assert found[0] == found[1]


def test_what_crosses_a_pipe_is_what_is_counted(tmp_path, monkeypatch):
    crossed, send = [], Connection.send_bytes
    monkeypatch.setattr(
        Connection,
        "send_bytes",
        lambda self, data, *more: (crossed.append(len(data)), send(self, data, *more))[1],
    )
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        with local(compressed.learners(tmp_path / "n"), journal.payloads.put, tmp_path / "s") as engine:
            outcome = compressed.drive(RUNS["some of them"], engine, journal)
    assert sum(crossed[1::2]) == outcome.bytes_down, "after each header its freight"
    assert SIZE in crossed[1::2], "the first one whole"


def test_a_process_that_died_is_sent_the_whole_model_again(tmp_path):
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        made = compressed.learners(tmp_path / "noted")
        with LocalEngine(
            made, keep=journal.payloads.put, check=compressed.check, states=tmp_path / "s"
        ) as engine:
            rules = replace(RUNS["asynchronous"], weighting=(ByExamples(),))
            community = community_model(rules, MODEL.layout, compressed.CODEC, MODEL.initial(0))
            driver = Driver(rules, community, engine, journal, downlink=parse(DOWN))

            def kill(state, event):
                if isinstance(event, Arrived) and state.version == 5:
                    for each in engine._processes.values():
                        each.process.kill()

            outcome = driver.run(kill)
        assert outcome.version == 15
        found, expected = compressed.noted(tmp_path / "noted"), compressed.digests(journal)
        assert all({expected[version]} == seen for version, seen in found.items())
        arrived = [event for event in compressed.events_of(journal) if isinstance(event, Arrived)]
        sent = [event.down == SIZE for event in arrived]
        # One learner may be heard of before that alone, and another one after it.
        assert any(sent[:5])
        assert any(sent[5:]), "and again after its process had died"
        assert not all(sent)


def test_over_a_network_what_is_counted_is_what_was_sent_and_a_lost_base_is_made_good(tmp_path):
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        post = post_of(compressed.learners(tmp_path / "noted"), tmp_path / "states")

        def lose(desk: Desk, parcel):
            if parcel.about.get("version") == 3 and not (tmp_path / "lost").exists():
                (tmp_path / "lost").touch()
                for path in (tmp_path / "states").rglob("*.model"):
                    path.unlink()
            return None

        post.fate = lose
        outcome = compressed.drive(RUNS["rounds"], network(post, journal.payloads.put), journal)
        sent = sum(p.size for _, p in post.sent if p.kind in ("train", "evaluate"))
        assert outcome.bytes_down == sent
        assert (tmp_path / "lost").exists()
        expected, found = compressed.digests(journal), compressed.noted(tmp_path / "noted")
        assert all({expected[version]} == seen for version, seen in found.items())
        scored = [e.down for e in compressed.events_of(journal) if isinstance(e, Scored)]
        assert min(scored) < SIZE / 10, "a learner's model goes to evaluators as its update"
        for _, parcel in post.sent:
            if parcel.kind == "evaluate":
                starts = [task["start"] for task in parcel.about["tasks"] if task["exact"] or task["steps"]]
                assert len(starts) == len(set(starts)), "a version goes once in a message"


def test_a_message_that_is_lost_is_counted_each_time_it_is_sent(tmp_path):
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        post = post_of(compressed.learners(tmp_path / "noted"), tmp_path / "states")
        lost = []

        def once(desk: Desk, parcel):
            if parcel.about.get("version") == 2 and not lost:
                lost.append(parcel)
                return Lost(4)
            return None

        post.fate = once
        outcome = compressed.drive(RUNS["some of them"], network(post, journal.payloads.put), journal)
        assert lost
        assert outcome.bytes_down == sum(p.size for _, p in post.sent if p.kind == "train")


class Deterministic(VirtualEngine):
    """The virtual engine in the role of a real one: its answers are told from the journal."""

    real = True


class Cut(BaseException):
    """Somebody pulled the plug."""


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("cut", [9, 14])
def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path, name, cut):
    """What everybody holds is in the checkpoint, and with the mix so is the residual."""
    rules = RUNS[name]

    def go(store: Store, plug: int) -> list[int]:
        journal, checkpoints = Journal(store, "run"), Checkpoints(store.checkpoint_folder("run"), 4)
        known = {e.task: e for e in compressed.events_of(journal) if isinstance(e, Arrived)}
        made = compressed.learners(tmp_path / "noted")
        engine = Deterministic(made, {}, keep=journal.payloads.put, seed=0, finished=known)
        community = community_model(rules, MODEL.layout, compressed.CODEC, MODEL.initial(0))
        driver = Driver(rules, community, engine, journal, checkpoints=checkpoints, downlink=parse(DOWN))
        found = checkpoints.read()
        if found is not None:
            driver.go_on(found)
        left, told = [plug - journal.length], []

        def watch(*_: object) -> None:
            told.append(journal.length)
            left[0] -= 1
            if left[0] == 0:
                raise Cut

        driver.run(watch)
        assert found is not None
        assert set(found.parts) >= {"mix", "downlink"}
        assert told[0] > found.events, "what the checkpoint stands for is not told again"
        return told

    with Store(tmp_path / "cut") as store:
        with pytest.raises(Cut):
            go(store, cut)
        go(store, -1)
        resumed = compressed.digests(Journal(store, "run"))
        journal = Journal(store, "run")
        with virtual(compressed.learners(tmp_path / "m"), journal.payloads.put, tmp_path) as unused:
            compressed.drive(rules, Replayed(unused, compressed.events_of(journal)), journal)
        assert len(resumed) >= rules.rounds, "and the journal, told again as a whole, gives the same versions"
