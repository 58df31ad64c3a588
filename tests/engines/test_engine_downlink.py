"""Compressed downlink over every engine: learners get the controller's bits, and every byte is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.engines import compressed_runs as compressed
from tests.engines.compressed_runs import DOWN, MODEL, RUNS, SIZE
from tests.engines.flower.loopback import LoopbackTransport, SiteWorkers

from abaton.codecs import parse_codec
from abaton.controller import EvaluationReceived, ExampleWeighting, UpdateReceived, community_model
from abaton.engines import (
    Checkpoints,
    Engine,
    LocalEngine,
    MachineProfile,
    ReplayedEngine,
    RunLoop,
    VirtualEngine,
)
from abaton.engines.flower import FlowerEngine, FlowerNetwork, MessageLost
from abaton.engines.flower.site_worker import SiteWorker, WorkerSettings
from abaton.learners import Learner
from abaton.store import Journal, Store


def virtual(
    learners: Mapping[str, Learner], store_payload: compressed.StorePayload, _: Path
) -> AbstractContextManager[Engine]:
    return closing(
        VirtualEngine(learners, {"c": MachineProfile(speed=30.0)}, store_payload=store_payload, seed=0)
    )


def local(
    learners: Mapping[str, Learner], store_payload: compressed.StorePayload, state_dir: Path
) -> AbstractContextManager[Engine]:
    return LocalEngine(
        learners, store_payload=store_payload, check_payload=compressed.check, state_dir=state_dir
    )


def build_transport(learners: Mapping[str, Learner], state_dir: Path) -> LoopbackTransport:
    workers = [
        SiteWorkers(
            lambda role, name=name, learner=learner: SiteWorker(
                learner, WorkerSettings(role, state_dir / name)
            )
        )
        for name, learner in learners.items()
    ]
    return LoopbackTransport(dict(enumerate(workers)))


def network(transport: LoopbackTransport, store_payload: compressed.StorePayload) -> FlowerEngine:
    settings = FlowerNetwork("run", MODEL.layout.digest, poll_seconds=0.001)
    return FlowerEngine(transport, settings, store_payload=store_payload, check_payload=compressed.check)


@contextmanager
def flower(
    learners: Mapping[str, Learner], store_payload: compressed.StorePayload, state_dir: Path
) -> Iterator[Engine]:
    yield network(build_transport(learners, state_dir), store_payload)


ENGINES: dict[str, compressed.Make] = {"virtual": virtual, "local": local, "flower": flower}


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> compressed.Make:
    return ENGINES[request.param]


@pytest.mark.parametrize("name", RUNS)
def test_learners_get_the_controllers_bits_in_fewer_bytes(tmp_path, make, name):
    strategy = RUNS[name]
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        learners = compressed.learners(tmp_path / "noted")
        with make(learners, journal.payloads.put, tmp_path / "state_dir") as engine:
            outcome = compressed.run_to_end(strategy, engine, journal)
        assert outcome.version >= strategy.rounds, outcome.reason
        expected, recorded = compressed.digests(journal), compressed.recorded_digests(tmp_path / "noted")
        assert len(recorded) > 1
        assert all({expected[version]} == seen for version, seen in recorded.items())
        assert outcome.bytes_down == compressed.downlink_bytes_of(journal)
        reply_count = compressed.reply_count(journal)
        assert 0 < outcome.bytes_down < 0.75 * reply_count * SIZE


@pytest.mark.parametrize("name", RUNS)
def test_the_journal_alone_gives_the_same_versions(tmp_path, make, name):
    """The versions follow from the journal: the residual is not stored separately."""
    strategy = RUNS[name]
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        with make(compressed.learners(tmp_path / "n"), journal.payloads.put, tmp_path / "s") as engine:
            outcome = compressed.run_to_end(strategy, engine, journal)
        expected, written = compressed.digests(journal), Journal(store, "run")
        events = compressed.events_of(journal)
        with make(compressed.learners(tmp_path / "m"), written.payloads.put, tmp_path / "t") as unused:
            again = compressed.run_to_end(strategy, ReplayedEngine(unused, events), written)
        assert again.digest == outcome.digest
        assert compressed.digests(written) == expected


def test_rounds_are_equal_on_every_engine(tmp_path):
    digests = set()
    for name, make in ENGINES.items():
        with Store(tmp_path / name) as store:
            journal = Journal(store, "run")
            state_dir = tmp_path / name / "state_dir"
            with make(
                compressed.learners(tmp_path / f"{name} noted"), journal.payloads.put, state_dir
            ) as engine:
                digests.add(compressed.run_to_end(RUNS["rounds"], engine, journal).digest)
    assert len(digests) == 1


def test_without_a_downlink_every_model_is_uncompressed(tmp_path):
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        learners = compressed.learners(tmp_path / "noted", downlink=None)
        with virtual(learners, journal.payloads.put, tmp_path) as engine:
            outcome = compressed.run_to_end(RUNS["rounds"], engine, journal, downlink=None)
        assert outcome.bytes_down == compressed.reply_count(journal) * SIZE


def test_downlink_bytes_determine_the_transfer_time(tmp_path):
    """The first model is sent uncompressed; the transfer time of later ones is proportional to their size."""
    seconds = {}
    slow = MachineProfile(speed=1e9, bandwidth=1000.0, latency=0.0)
    for downlink in (None, DOWN):
        with Store(tmp_path / str(downlink)) as store:
            journal = Journal(store, "run")
            learners = compressed.learners(tmp_path / "noted", downlink)
            with closing(
                VirtualEngine(
                    learners, dict.fromkeys(learners, slow), store_payload=journal.payloads.put, seed=0
                )
            ) as e:
                seconds[downlink] = compressed.run_to_end(RUNS["some of them"], e, journal, downlink).seconds
            events = [e for e in compressed.events_of(journal) if isinstance(e, UpdateReceived)]
        assert seconds[downlink] == pytest.approx(
            sum(e.payload_bytes + e.downlink_bytes for e in events) / 1000.0, rel=1e-6
        )
    assert seconds[DOWN] < 0.8 * seconds[None]


@pytest.mark.parametrize("downlink", ["quicfl(bits=1)", "eden(bits=2)", "ecdq(bits=2)", "raw", "fp16"])
def test_other_downlink_codecs_are_reproducible(tmp_path, downlink):
    digests = []
    for turn in ("one", "two"):
        with Store(tmp_path / turn) as store:
            journal = Journal(store, "run")
            learners = compressed.learners(tmp_path / f"{turn} noted", downlink)
            with virtual(learners, journal.payloads.put, tmp_path) as engine:
                digests.append(compressed.run_to_end(RUNS["asynchronous"], engine, journal, downlink).digest)
    assert digests[0] == digests[1]


def test_bytes_over_a_pipe_are_counted(tmp_path, monkeypatch):
    crossed, send = [], Connection.send_bytes
    monkeypatch.setattr(
        Connection,
        "send_bytes",
        lambda self, data, *more: (crossed.append(len(data)), send(self, data, *more))[1],
    )
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        with local(compressed.learners(tmp_path / "n"), journal.payloads.put, tmp_path / "s") as engine:
            outcome = compressed.run_to_end(RUNS["some of them"], engine, journal)
    assert sum(crossed[1::2]) == outcome.bytes_down, "a model follows each header"
    assert SIZE in crossed[1::2], "the first one is uncompressed"


def test_a_restarted_process_gets_the_uncompressed_model(tmp_path):
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        learners = compressed.learners(tmp_path / "noted")
        with LocalEngine(
            learners,
            store_payload=journal.payloads.put,
            check_payload=compressed.check,
            state_dir=tmp_path / "s",
        ) as engine:
            strategy = replace(RUNS["asynchronous"], weighting=(ExampleWeighting(),))
            community = community_model(strategy, MODEL.layout, compressed.CODEC, MODEL.initial(0))
            run_loop = RunLoop(strategy, community, engine, journal, downlink=parse_codec(DOWN))

            def kill(state, event):
                if isinstance(event, UpdateReceived) and state.version == 5:
                    for child in engine._processes.values():
                        child.process.kill()

            outcome = run_loop.run(kill)
        assert outcome.version == 15
        recorded, expected = compressed.recorded_digests(tmp_path / "noted"), compressed.digests(journal)
        assert all({expected[version]} == seen for version, seen in recorded.items())
        arrived = [event for event in compressed.events_of(journal) if isinstance(event, UpdateReceived)]
        sent = [event.downlink_bytes == SIZE for event in arrived]
        # Replies of only one learner may arrive before that, and of another one after it.
        assert any(sent[:5])
        assert any(sent[5:]), "and again after its process exited"
        assert not all(sent)


def test_network_bytes_are_counted_and_a_missing_base_is_replaced(tmp_path):
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        transport = build_transport(compressed.learners(tmp_path / "noted"), tmp_path / "state_dir")

        def lose(worker: SiteWorker, message):
            if message.header.get("version") == 3 and not (tmp_path / "lost").exists():
                (tmp_path / "lost").touch()
                for path in (tmp_path / "state_dir").rglob("*.model"):
                    path.unlink()
            return None

        transport.intercept = lose
        outcome = compressed.run_to_end(RUNS["rounds"], network(transport, journal.payloads.put), journal)
        sent = sum(p.size for _, p in transport.sent if p.message_type in ("train", "evaluate"))
        assert outcome.bytes_down == sent
        assert (tmp_path / "lost").exists()
        expected, recorded = compressed.digests(journal), compressed.recorded_digests(tmp_path / "noted")
        assert all({expected[version]} == seen for version, seen in recorded.items())
        scored = [
            e.downlink_bytes for e in compressed.events_of(journal) if isinstance(e, EvaluationReceived)
        ]
        assert min(scored) < SIZE / 10, "a learner's model is sent to evaluators as its update"
        for _, message in transport.sent:
            if message.message_type == "evaluate":
                starts = [
                    task["start"]
                    for task in message.header["evaluations"]
                    if task["exact_bytes"] or task["deltas"]
                ]
                assert len(starts) == len(set(starts)), "a message contains a version once"


def test_a_repeated_message_is_counted_each_time(tmp_path):
    with Store(tmp_path) as store:
        journal = Journal(store, "run")
        transport = build_transport(compressed.learners(tmp_path / "noted"), tmp_path / "state_dir")
        lost = []

        def once(worker: SiteWorker, message):
            if message.header.get("version") == 2 and not lost:
                lost.append(message)
                return MessageLost(4)
            return None

        transport.intercept = once
        outcome = compressed.run_to_end(
            RUNS["some of them"], network(transport, journal.payloads.put), journal
        )
        assert lost
        assert outcome.bytes_down == sum(p.size for _, p in transport.sent if p.message_type == "train")


class Deterministic(VirtualEngine):
    """Virtual engine in the role of a real-time one: known updates come from the journal."""

    is_real_time = True


class Interrupted(BaseException):
    """The run was interrupted."""


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("cut", [9, 14])
def test_a_run_resumes_from_a_checkpoint_with_the_same_bits(tmp_path, name, cut):
    """The checkpoint contains the sent version, and with the community model the residual."""
    strategy = RUNS[name]

    def run_once(store: Store, stop_at: int) -> list[int]:
        journal, checkpoints = Journal(store, "run"), Checkpoints(store.checkpoint_folder("run"), 4)
        known = {e.task: e for e in compressed.events_of(journal) if isinstance(e, UpdateReceived)}
        learners = compressed.learners(tmp_path / "noted")
        engine = Deterministic(learners, {}, store_payload=journal.payloads.put, seed=0, known_updates=known)
        community = community_model(strategy, MODEL.layout, compressed.CODEC, MODEL.initial(0))
        run_loop = RunLoop(
            strategy, community, engine, journal, checkpoints=checkpoints, downlink=parse_codec(DOWN)
        )
        checkpoint = checkpoints.read()
        if checkpoint is not None:
            run_loop.resume(checkpoint)
        remaining, lengths = [stop_at - journal.length], []

        def watch(*_: object) -> None:
            lengths.append(journal.length)
            remaining[0] -= 1
            if remaining[0] == 0:
                raise Interrupted

        run_loop.run(watch)
        assert checkpoint is not None
        assert set(checkpoint.components) >= {"community_model", "downlink"}
        assert lengths[0] > checkpoint.events, "events before the checkpoint are not replayed"
        return lengths

    with Store(tmp_path / "interrupted") as store:
        with pytest.raises(Interrupted):
            run_once(store, cut)
        run_once(store, -1)
        resumed = compressed.digests(Journal(store, "run"))
        journal = Journal(store, "run")
        with virtual(compressed.learners(tmp_path / "m"), journal.payloads.put, tmp_path) as unused:
            compressed.run_to_end(strategy, ReplayedEngine(unused, compressed.events_of(journal)), journal)
        assert len(resumed) >= strategy.rounds, "and the replayed journal gives the same versions"
