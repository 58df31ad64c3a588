"""A study whose learners are tasks on a real Ray: the same model, consents asked at every round."""

from __future__ import annotations

import pytest
from tests.engines.ray import odd

from abaton.controller import Arrived, from_row
from abaton.engines.ray import ray_worker
from abaton.errors import SettingsError
from abaton.federation import StudyOptions, engine_factory, resume_study, run_study
from abaton.federation.engine_factory import simulated_secret
from abaton.governance import Registry, metadata
from abaton.lab.demo import NOW
from abaton.learners import Learner
from abaton.store import Database, Journal, Store


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
    policy = learning.policy.model_copy(update={"name": "SyncDVW", "evaluators": None, "choice": None})
    return study.model_copy(
        update={"learning": learning.model_copy(update={"policy": policy, "rounds": 3, "codec": "raw"})}
    )


def arrived(store, run):
    return [e for row in Journal(store, run).rows() if isinstance(e := from_row(*row), Arrived)]


def test_what_goes_to_a_cluster_of_a_learner_is_numbers_and_no_consents(four, store):
    seen = {}

    class Cut(Exception):
        """The engine is not needed."""

    class Here:
        name = "virtual"

        def secret(self, seed, site, states):
            return b"secret"

        def open(self, running):
            seen.update(running.learners())
            raise Cut

    with pytest.raises(Cut):
        run_study(four.study, four.sites, store, StudyOptions(5, resamples=0), engine=Here(), now=NOW)
    learner = seen["athens"]
    assert learner.elsewhere() is Learner, "a plain learner, which asks nobody"
    values = ray_worker.values_of(learner)
    secret = b"secret".hex()
    assert values == {"name": "athens", "seed": 5, "secret": secret, "batch": None, "own_order": True}
    assert {name: rows.dtype.kind for name, rows in ray_worker.pack(learner).items()} == {
        "train/x": "f", "train/y": "i", "validation/x": "f", "validation/y": "i",
    }  # fmt: skip


def test_without_ray_the_engine_is_refused_in_one_line(four, store, monkeypatch):
    monkeypatch.setattr("abaton.engines.ray.cluster.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'abaton\[ray\]'"):
        run_study(four.study, four.sites, store, StudyOptions(resamples=0), engine="ray", now=NOW)
    assert store.runs() == []


@pytest.mark.slow
@pytest.mark.network
def test_a_synchronous_study_gives_the_same_digests_on_virtual_local_and_ray(four, store, ray, monkeypatch):
    """If sites draw the secrets that they have under the virtual clock: rows are shuffled by them."""
    monkeypatch.setattr(engine_factory, "kept_secret", lambda states, site: simulated_secret(5, site))
    study, made = synchronous(four.study), {}
    for engine in ("virtual", "local", "ray"):
        options = StudyOptions(5, resamples=0)
        row = run_study(study, four.sites, store, options, engine=engine, now=NOW).row
        assert row.status == "finished"
        made[engine] = [model.digest for model in store.models(row.run)]
    assert made["ray"] == made["local"] == made["virtual"]


class Cut(Exception):
    """The power went."""


@pytest.mark.slow
@pytest.mark.network
def test_a_study_that_was_cut_off_goes_on_where_it_stopped(four, store, ray):
    def watch(state, event):
        if isinstance(event, Arrived):
            raise Cut

    with pytest.raises(Cut):
        run_study(four.study, four.sites, store, StudyOptions(5, resamples=0), engine="ray", watch=watch)
    (row,) = store.runs()
    before = [event.task for event in arrived(store, row.run)]
    assert resume_study(store, row).status == "finished"
    tasks = [event.task for event in arrived(store, row.run)]
    assert before
    assert tasks[: len(before)] == before
    assert len(tasks) == len(set(tasks))


@pytest.mark.slow
@pytest.mark.network
def test_an_asynchronous_study_asks_for_consent_before_every_task(four, store, ray):
    registry = Registry(Database(four.sites[0].parent / "consents.db", metadata))
    left = []

    def watch(state, event):
        if isinstance(event, Arrived) and event.learner == "athens" and not left:
            allowed = sorted(registry.subjects(four.study.study.id))
            for person in allowed:
                registry.withdraw(person, four.study.study.id, NOW)
            left.extend(allowed)

    row = run_study(
        four.study, four.sites, store, StudyOptions(5, resamples=0), engine="ray", watch=watch
    ).row
    assert row.status == "finished"
    events = arrived(store, row.run)
    assert all(len(event.cohort) == 64 for event in events)
    assert sum(event.learner == "athens" for event in events) <= 2, "one may have been under way"
    others = {event.learner for event in events} - {"athens"}
    assert len(others) >= 2, "who comes first where there are fewer processors than learners, Ray decides"
    assert not any(odd.folder_holds(store.folder / "states", person.encode()) for person in left[:5])
