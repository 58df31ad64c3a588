"""Compressed downlink on a real Ray cluster: workers read missing deltas and get the controller's bits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.engines import compressed_runs as compressed
from tests.engines.compressed_runs import RUNS, SIZE

from abaton.controller import EvaluationReceived, UpdateReceived
from abaton.engines import RayEngine, VirtualEngine
from abaton.learners import Learner
from abaton.store import Journal, Store

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def run(folder: Path, ray: bool, downlink: str | None = compressed.DOWN):
    with Store(folder) as store:
        journal = Journal(store, "run")
        learners = compressed.learners(folder / "digests", downlink, Learner)
        store_payload = journal.payloads.put
        engine = (
            RayEngine(
                learners,
                store_payload=store_payload,
                check_payload=compressed.check,
                state_dir=folder / "state",
            )
            if ray
            else VirtualEngine(learners, {}, store_payload=store_payload, seed=0)
        )
        with closing(engine):
            outcome = compressed.run_to_end(RUNS["rounds"], engine, journal, downlink)
        return outcome, compressed.events_of(journal)


def test_workers_decode_the_controllers_bits_from_missing_deltas(tmp_path):
    """Updates depend on every bit of their start model: equal digests mean equal start models."""
    virtual, _ = run(tmp_path / "virtual", ray=False)
    on_ray, events = run(tmp_path / "on_ray", ray=True)
    assert on_ray.digest == virtual.digest
    sizes = [
        event.downlink_bytes for event in events if isinstance(event, UpdateReceived | EvaluationReceived)
    ]
    assert sum(sizes) == on_ray.bytes_down < 0.5 * len(sizes) * SIZE
    assert SIZE in [e.downlink_bytes for e in events if isinstance(e, UpdateReceived)], (
        "a worker's first model is uncompressed"
    )
    assert min(e.downlink_bytes for e in events if isinstance(e, UpdateReceived)) < SIZE / 10


def test_without_a_downlink_a_worker_reads_uncompressed_models(tmp_path):
    outcome, events = run(tmp_path / "uncompressed", ray=True, downlink=None)
    assert outcome.bytes_down == SIZE * sum(
        isinstance(e, UpdateReceived | EvaluationReceived) for e in events
    )
