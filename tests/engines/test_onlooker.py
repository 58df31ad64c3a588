"""What those who look on are told is what the controller decided, once, however often the run is resumed."""

from __future__ import annotations

import numpy as np
import pytest
import sqlalchemy as sql

from abaton.codecs import parse
from abaton.controller import (
    POLICIES,
    Arrived,
    Commit,
    Rules,
    Scored,
    State,
    TrainSettings,
    community_model,
    from_row,
    step,
)
from abaton.engines import Driver, Profile, VirtualEngine
from abaton.learners import Examples, Learner, logistic
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


def decided(name: str, journal: Journal) -> list[tuple]:
    """What the controller says at every event of a journal, asked again: it is a pure function."""
    state, made, arrived = State(), [], {}
    for row in journal.rows():
        event, before = from_row(*row), state
        if isinstance(event, Arrived) and event.task in before.open:
            given = before.open[event.task]
            stale = before.committed - given.committed + event.steps, before.version - given.version
            arrived[event.task] = (event, given.version, *stale)
        state, said = step(rules(name), state, event)
        for one in said:
            if isinstance(one, Commit):
                update, version, staleness, missed = arrived[one.task]
                made.append(
                    (
                        event.at,
                        update.learner,
                        update.task,
                        version,
                        update.steps,
                        one.weight,
                        missed,
                        staleness,
                    )
                )
    return made


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_commits_are_those_that_the_controller_decided(store, name):
    journal = live(store, name)
    noted = rows(store, schema.commits)
    told = [(c.at, c.learner, c.task, c.version, c.steps, c.weight, c.missed, c.staleness) for c in noted]
    assert sorted(decided(name, journal)) == sorted(told) != []
    for commit in noted:
        assert commit.began <= commit.arrived - commit.uploading <= commit.arrived <= commit.at
        assert commit.staleness >= commit.steps
        assert commit.uploading > 0


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_validation_is_the_mean_loss_of_all_that_were_heard_of(store, name):
    journal = live(store, name)
    heard: dict[str, list[tuple[float, ...]]] = {}
    for row in journal.rows():
        event = from_row(*row)
        if isinstance(event, Arrived | Scored):
            heard.setdefault(event.task.partition("@")[0], []).append(event.score)
    noted = rows(store, schema.commits)
    for commit in noted:
        counts = heard[commit.task]
        assert len(counts) == (3 if "DVW" in name else 1)
        examples = sum(sum(each[2:4]) for each in counts)
        assert commit.validation == pytest.approx(sum(each[-1] for each in counts) / examples)


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
