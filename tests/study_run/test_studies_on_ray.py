"""Study runs with learners as Ray tasks: the same model, consents checked in every round."""

from __future__ import annotations

import pytest
from tests.engines.ray import unusual_models as odd

from abaton.controller import UpdateReceived, event_from_row
from abaton.engines.ray import ray_worker
from abaton.errors import SettingsError
from abaton.federation import engine_factory
from abaton.federation.engine_factory import simulated_run_secret
from abaton.governance import ConsentRegistry, metadata
from abaton.lab.demo import NOW
from abaton.learners import Learner
from abaton.store import Database, Journal, Store
from abaton.study_run import StudyOptions, resume_study, run_study


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def ray():
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    from abaton.engines.ray import connect, disconnect

    ours = connect()
    yield
    if ours:
        disconnect()


def synchronous(study):
    learning = study.learning
    strategy = learning.strategy.model_copy(
        update={"name": "SyncDVW", "evaluators": None, "evaluator_selection": None}
    )
    return study.model_copy(
        update={"learning": learning.model_copy(update={"strategy": strategy, "rounds": 3, "codec": "raw"})}
    )


def updates_of(store, run):
    return [e for row in Journal(store, run).rows() if isinstance(e := event_from_row(*row), UpdateReceived)]


def test_a_cluster_receives_arrays_and_no_consents(four, store):
    seen = {}

    class PowerCut(Exception):
        """Stops the run when the learners exist."""

    class Here:
        name = "virtual"

        def secret(self, seed, site, states):
            return b"secret"

        def open(self, running):
            seen.update(running.learners())
            raise PowerCut

    with pytest.raises(PowerCut):
        run_study(
            four.study, four.sites, store, StudyOptions(5, bootstrap_resamples=0), engine=Here(), now=NOW
        )
    learner = seen["athens"]
    assert learner.remote_class() is Learner, "a plain learner without consent checks"
    values = ray_worker.learner_values(learner)
    secret = b"secret".hex()
    assert values == {
        "name": "athens",
        "seed": 5,
        "secret": secret,
        "max_batch_size": None,
        "has_secret_order": True,
    }
    assert {name: rows.dtype.kind for name, rows in ray_worker.pack_examples(learner).items()} == {
        "train/x": "f", "train/y": "i", "train/weights": "f",
        "validation/x": "f", "validation/y": "i", "validation/weights": "f",
    }  # fmt: skip


def test_without_ray_the_engine_is_refused_in_one_line(four, store, monkeypatch):
    monkeypatch.setattr("abaton.engines.ray.cluster.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'abaton\[ray\]'"):
        run_study(four.study, four.sites, store, StudyOptions(bootstrap_resamples=0), engine="ray", now=NOW)
    assert store.runs() == []


@pytest.mark.slow
@pytest.mark.network
def test_a_synchronous_study_gives_the_same_digests_on_virtual_local_and_ray(four, store, ray, monkeypatch):
    """With the secrets of the virtual clock, which determine the order of rows."""
    monkeypatch.setattr(engine_factory, "load_run_secret", lambda states, site: simulated_run_secret(5, site))
    study, digests = synchronous(four.study), {}
    for engine in ("virtual", "local", "ray"):
        options = StudyOptions(5, bootstrap_resamples=0)
        row = run_study(study, four.sites, store, options, engine=engine, now=NOW).row
        assert row.status == "finished"
        digests[engine] = [model.digest for model in store.models(row.run)]
    assert digests["ray"] == digests["local"] == digests["virtual"]


class PowerCut(Exception):
    """Simulated power cut."""


@pytest.mark.slow
@pytest.mark.network
def test_an_interrupted_study_resumes_on_ray(four, store, ray):
    def watch(state, event):
        if isinstance(event, UpdateReceived):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_study(
            four.study, four.sites, store, StudyOptions(5, bootstrap_resamples=0), engine="ray", watch=watch
        )
    (row,) = store.runs()
    before = [event.task for event in updates_of(store, row.run)]
    assert resume_study(store, row).status == "finished"
    tasks = [event.task for event in updates_of(store, row.run)]
    assert before
    assert tasks[: len(before)] == before
    assert len(tasks) == len(set(tasks))


@pytest.mark.slow
@pytest.mark.network
def test_an_asynchronous_study_asks_for_consent_before_every_task(four, store, ray):
    registry = ConsentRegistry(Database(four.sites[0].parent / "consents.db", metadata))
    left = []

    def watch(state, event):
        if isinstance(event, UpdateReceived) and event.learner == "athens" and not left:
            allowed = sorted(registry.subjects(four.study.study.id))
            for person in allowed:
                registry.withdraw(person, four.study.study.id, NOW)
            left.extend(allowed)

    row = run_study(
        four.study, four.sites, store, StudyOptions(5, bootstrap_resamples=0), engine="ray", watch=watch
    ).row
    assert row.status == "finished"
    events = updates_of(store, row.run)
    assert all(len(event.cohort) == 64 for event in events)
    assert sum(event.learner == "athens" for event in events) <= 2, "one may have been running"
    others = {event.learner for event in events} - {"athens"}
    assert len(others) >= 2, "the order of tasks is up to Ray if there are fewer processors than learners"
    assert not any(odd.folder_contains(store.folder / "states", person.encode()) for person in left[:5])
