"""What those who look on are told is what the controller decided, once, however often the run is gone on with."""

from __future__ import annotations

import numpy as np
import pytest
import sqlalchemy as sql

from abaton.codecs import parse
from abaton.control import POLICIES, Rules, TrainSettings, community_model
from abaton.engines import Driver, Profile, VirtualEngine
from abaton.lab.history import history
from abaton.learning import Examples, Learner, logistic
from abaton.store import Journal, RunRow, Store, schema

MODEL = logistic(features=4)
SETTINGS = TrainSettings(epochs=1, batch_size=10)
POLICY_NAMES = sorted(POLICIES)


def rules(name: str) -> Rules:
    return Rules(3, 6, training=SETTINGS, seed=3, **POLICIES[name])


def live(store: Store, name: str, stop_after: int | None = None) -> Journal:
    journal, codec = Journal(store, "r"), parse("raw")
    learners = {}
    for i, who in enumerate("abc"):
        x = np.random.default_rng(i).normal(size=(30, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        learners[who] = Learner(who, MODEL, data, codec, 3, data)
    profiles = {"a": Profile(speed=50), "b": Profile(speed=200, dropout=0.2), "c": Profile(speed=100)}
    engine = VirtualEngine(learners, profiles, keep=journal.payloads.put, seed=3)
    community = community_model(rules(name), MODEL.layout, codec, MODEL.initial(3))
    seen = []

    def watch(state, event):
        seen.append(event)
        if len(seen) == stop_after:
            journal.flush()
            raise KeyboardInterrupt

    try:
        Driver(rules(name), community, engine, journal).run(watch)
    except KeyboardInterrupt:
        assert stop_after is not None
    engine.close()
    return journal


def rows(store: Store, table: sql.Table) -> list:
    with store.reading() as connection:
        return connection.execute(sql.select(table).order_by(*table.primary_key)).all()


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as opened:
        opened.add_run(
            RunRow("r", "2026-01-01T00:00:00+00:00", "virtual", {"name": "x"}, "", "running", None)
        )
        yield opened


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_commits_are_those_of_the_journal(store, name):
    journal = live(store, name)
    told = history(rules(name), journal.rows())
    noted = rows(store, schema.commits)
    assert [
        (c.at, c.learner, c.task, c.version, c.steps, c.weight) for c in sorted(told.commits, key=_order)
    ] == [(c.at, c.learner, c.task, c.version, c.steps, c.weight) for c in sorted(noted, key=_order)]
    for commit in noted:
        assert commit.began <= commit.arrived - commit.uploading <= commit.arrived <= commit.at
        assert commit.staleness >= commit.steps
        assert commit.uploading > 0
    for learner, first in told.staleness.items():
        assert [c.staleness for c in noted if c.learner == learner][: len(first)] == list(first)
    assert all(commit.validation > 0 for commit in noted)


def _order(commit) -> tuple[float, str]:
    return commit.at, commit.learner


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_version_has_its_milestone(store, name):
    live(store, name)
    versions = store.models("r")
    marks = rows(store, schema.milestones)
    assert [mark.version for mark in marks] == [version.version for version in versions]
    assert [mark.updates for mark in marks] == sorted(mark.updates for mark in marks)
    raw = MODEL.layout.size * 4
    assert all(mark.bytes > mark.updates * raw for mark in marks if mark.updates)


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("after", [1, 7, 12])
def test_a_run_that_is_gone_on_with_tells_nothing_twice(tmp_path, name, after):
    told = []
    for folder, cut in (("whole", None), ("cut", after)):
        with Store(tmp_path / folder) as store:
            store.add_run(
                RunRow("r", "2026-01-01T00:00:00+00:00", "virtual", {"name": "x"}, "", "running", None)
            )
            if cut:
                live(store, name, cut)
            live(store, name)
            told.append(
                [[tuple(row)[:9] for row in rows(store, table)] for table in (schema.tasks, schema.commits)]
            )
    assert told[0] == told[1]
