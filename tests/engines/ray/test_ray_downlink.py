"""A compressed way down on a real Ray: workers read what they lack of a version, and hold the controller's bits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.engines import compressed
from tests.engines.compressed import RUNS, SIZE

from abaton.controller import Arrived, Scored
from abaton.engines import RayEngine, VirtualEngine
from abaton.learners import Learner
from abaton.store import Journal, Store

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def run(folder: Path, ray: bool, downlink: str | None = compressed.DOWN):
    with Store(folder) as store:
        journal = Journal(store, "run")
        made = compressed.learners(folder / "noted", downlink, Learner)
        keep = journal.payloads.put
        engine = (
            RayEngine(made, keep=keep, check=compressed.check, states=folder / "states")
            if ray
            else VirtualEngine(made, {}, keep=keep, seed=0)
        )
        with closing(engine):
            outcome = compressed.drive(RUNS["rounds"], engine, journal, downlink)
        return outcome, compressed.events_of(journal)


def test_workers_make_the_controllers_bits_of_what_they_lack(tmp_path):
    """Updates depend on every bit of what they start from: the same digest is the same start everywhere."""
    here, _ = run(tmp_path / "here", ray=False)
    there, events = run(tmp_path / "there", ray=True)
    assert there.digest == here.digest
    sizes = [event.down for event in events if isinstance(event, Arrived | Scored)]
    assert sum(sizes) == there.bytes_down < 0.5 * len(sizes) * SIZE
    assert SIZE in [e.down for e in events if isinstance(e, Arrived)], "a worker's first is whole"
    assert min(e.down for e in events if isinstance(e, Arrived)) < SIZE / 10


def test_without_a_downlink_a_worker_reads_whole_models(tmp_path):
    outcome, events = run(tmp_path / "plain", ray=True, downlink=None)
    assert outcome.bytes_down == SIZE * sum(isinstance(e, Arrived | Scored) for e in events)
