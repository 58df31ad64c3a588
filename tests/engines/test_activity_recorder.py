"""Recorded activity equals the decisions of the replayed controller."""

from __future__ import annotations

import numpy as np
import pytest
import sqlalchemy as sql

from abaton.codecs import parse_codec
from abaton.controller import (
    STRATEGIES,
    Commit,
    ControllerState,
    EvaluationReceived,
    Strategy,
    TrainSettings,
    UpdateReceived,
    community_model,
    event_from_row,
    transition,
)
from abaton.engines import MachineProfile, RunLoop, VirtualEngine
from abaton.learners import Learner
from abaton.models import Examples, logistic
from abaton.store import Journal, RunRow, Store, schema

MODEL = logistic(features=4)
SETTINGS = TrainSettings(epochs=1, batch_size=10)
STRATEGY_NAMES = sorted(STRATEGIES)


def strategy(name: str) -> Strategy:
    return Strategy(3, 6, training=SETTINGS, seed=3, **STRATEGIES[name])


def run_once(store: Store, name: str, stop_after: int | None = None) -> Journal:
    journal, codec = Journal(store, "r"), parse_codec("raw")
    learners = {}
    for i, who in enumerate("abc"):
        x = np.random.default_rng(i).normal(size=(30, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        learners[who] = Learner(who, MODEL, data, codec, 3, data)
    profiles = {
        "a": MachineProfile(speed=50),
        "b": MachineProfile(speed=200, dropout_probability=0.2),
        "c": MachineProfile(speed=100),
    }
    engine = VirtualEngine(learners, profiles, store_payload=journal.payloads.put, seed=3)
    community = community_model(strategy(name), MODEL.layout, codec, MODEL.initial(3))
    seen = []

    def watch(state, event):
        seen.append(event)
        if len(seen) == stop_after:
            journal.flush()
            raise KeyboardInterrupt

    try:
        RunLoop(strategy(name), community, engine, journal).run(watch)
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


def replayed_commits(name: str, journal: Journal) -> list[tuple]:
    """The commits of a journal, replayed through the controller, which is a pure function."""
    state, commits, received = ControllerState(), [], {}
    for row in journal.rows():
        event, before = event_from_row(*row), state
        if isinstance(event, UpdateReceived) and event.task in before.open_tasks:
            assignment = before.open_tasks[event.task]
            ages = (
                before.committed_steps - assignment.committed_steps + event.steps,
                before.version - assignment.version,
            )
            received[event.task] = (event, assignment.version, *ages)
        state, instructions = transition(strategy(name), state, event)
        for instruction in instructions:
            if isinstance(instruction, Commit):
                update, version, staleness, missed = received[instruction.task]
                commits.append(
                    (
                        event.timestamp,
                        update.learner,
                        update.task,
                        version,
                        update.steps,
                        instruction.weight,
                        missed,
                        staleness,
                    )
                )
    return commits


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_commits_are_those_that_the_controller_decided(store, name):
    journal = run_once(store, name)
    commits = rows(store, schema.commits)
    recorded = [
        (c.timestamp, c.learner, c.task, c.version, c.steps, c.weight, c.versions_missed, c.staleness)
        for c in commits
    ]
    assert sorted(replayed_commits(name, journal)) == sorted(recorded) != []
    for commit in commits:
        assert (
            commit.started_at
            <= commit.received_at - commit.upload_seconds
            <= commit.received_at
            <= commit.timestamp
        )
        assert commit.staleness >= commit.steps
        assert commit.upload_seconds > 0


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_validation_is_the_mean_loss_of_all_received_counts(store, name):
    journal = run_once(store, name)
    counts_by_task: dict[str, list[tuple[float, ...]]] = {}
    for row in journal.rows():
        event = event_from_row(*row)
        if isinstance(event, UpdateReceived | EvaluationReceived):
            counts_by_task.setdefault(event.task.partition("@")[0], []).append(event.counts)
    commits = rows(store, schema.commits)
    for commit in commits:
        counts = counts_by_task[commit.task]
        assert len(counts) == (3 if "DVW" in name else 1)
        examples = sum(sum(evaluator_counts[2:4]) for evaluator_counts in counts)
        assert commit.validation == pytest.approx(
            sum(evaluator_counts[-1] for evaluator_counts in counts) / examples
        )


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_every_version_has_its_totals(store, name):
    run_once(store, name)
    versions = store.models("r")
    totals = rows(store, schema.version_totals)
    assert [total.version for total in totals] == [version.version for version in versions]
    assert [total.updates for total in totals] == sorted(total.updates for total in totals)
    raw = MODEL.layout.size * 4
    assert all(total.bytes > total.updates * raw for total in totals if total.updates)


@pytest.mark.parametrize("name", STRATEGY_NAMES)
@pytest.mark.parametrize("after", [1, 7, 12])
def test_a_resumed_run_records_nothing_twice(tmp_path, name, after):
    recorded = []
    for folder, stop_after_events in (("whole", None), ("interrupted", after)):
        with Store(tmp_path / folder) as store:
            store.add_run(
                RunRow("r", "2026-01-01T00:00:00+00:00", "virtual", {"name": "x"}, "", "running", None)
            )
            if stop_after_events:
                run_once(store, name, stop_after_events)
            run_once(store, name)
            recorded.append(
                [[tuple(row)[:9] for row in rows(store, table)] for table in (schema.tasks, schema.commits)]
            )
    assert recorded[0] == recorded[1]
