"""Study runs from records to model: reproducible, resumable, with consents checked in every round."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from abaton.controller import UpdateReceived
from abaton.engines import Checkpoints
from abaton.errors import RefusedError, SettingsError
from abaton.federation import Run
from abaton.governance import ConsentAction, ConsentRegistry, metadata, rounds_with, snapshot_members
from abaton.lab.demo import NOW
from abaton.learners import stacked_training
from abaton.site import load_site, publish, subject_pseudonym
from abaton.site.factory import registry_key
from abaton.store import Database, Journal, Store
from abaton.study import study_from_toml, write_toml
from abaton.study_run import (
    POOLED,
    StudyOptions,
    baselines,
    ingest_sites,
    local_benefit,
    local_only_name,
    resume_study,
    run_study,
)


def options(four, **more) -> StudyOptions:
    return StudyOptions(profiles=four.profiles, **{"seed": 5, "bootstrap_resamples": 0, **more})


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


class PowerCut(Exception):
    """Simulated power cut."""


def after(events: int):
    def watch(state, event):
        watch.events += 1
        if watch.events == events:
            raise PowerCut

    watch.events = 0
    return watch


def test_a_run_goes_from_records_to_an_evaluated_model(four, store):
    row = run_study(
        four.study, four.sites, store, options(four, baselines=True, bootstrap_resamples=50), now=NOW
    ).row
    assert row.status == "finished"
    assert row.recipe["study"]["hash"] == four.study.hash
    assert set(row.recipe["tables"]) == set(row.recipe["cohorts"]) == {"athens", "kos", "pergamon", "trikala"}
    rows = {
        (evaluated["model"], evaluated["group"]): evaluated for evaluated in row.result["evaluation"]["rows"]
    }
    for model in ("community", POOLED, local_only_name("athens")):
        metrics = rows[model, "all sites"]["metrics"]
        assert metrics["auroc"]["low"] <= metrics["auroc"]["value"] <= metrics["auroc"]["high"]
    assert ("community", "sex: female") in rows
    traffic = row.result["traffic"]
    assert all(site_traffic["bytes_up"] < site_traffic["uncompressed"] for site_traffic in traffic.values())
    json.dumps(row.result, allow_nan=False)
    assert not any("Patient/" in json.dumps(part) for part in (row.recipe, row.result))


def test_a_withdrawn_subject_trains_no_baseline(four, store, monkeypatch):
    """The rows of every baseline are those in force at the evaluation: the demo's subject withdrew before."""
    trained = []

    def record(model, site_rows, *arguments):
        trained.append({s for rows in site_rows for s in (*rows.train.subjects, *rows.validation.subjects)})
        return train_baseline(model, site_rows, *arguments)

    train_baseline = baselines.train_baseline
    for module in (baselines, local_benefit):
        monkeypatch.setattr(module, "train_baseline", record)
    file = load_site(four.sites[0])
    (athens,) = ingest_sites(four.study, [file], NOW)
    run_study(four.study, four.sites, store, options(four, baselines=True), now=NOW, watch=four.watch)
    assert len(trained) == 5, "four sites and all rows, each trained once"
    keys = {
        subject_pseudonym(registry_key(file), patient): key for key, patient in athens.patient_ids.items()
    }
    everyone = set().union(*trained)
    assert everyone & set(keys.values())
    assert keys[four.withdrawn[0]] not in everyone


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(four, store):
    first = run_study(four.study, four.sites, store, options(four), now=NOW).row
    again = run_study(four.study, four.sites, store, options(four), now=NOW).row
    other = run_study(four.study, four.sites, store, options(four, seed=6), now=NOW).row
    assert first.recipe["tables"] == again.recipe["tables"]
    assert first.result["digest"] == again.result["digest"] != other.result["digest"]


@pytest.mark.slow
def test_a_resumed_run_gives_the_same_bits(four, store):
    uninterrupted = run_study(four.study, four.sites, store, options(four), now=NOW).row
    with pytest.raises(PowerCut):
        run_study(four.study, four.sites, store, options(four), now=NOW, watch=after(9))
    row = next(run for run in store.runs() if run.status == "running")
    assert resume_study(store, row).result["digest"] == uninterrupted.result["digest"]


@pytest.mark.slow
def test_a_local_run_resumes_without_training_again(four, store):
    with pytest.raises(PowerCut):
        run_study(four.study, four.sites, store, options(four), engine="local", now=NOW, watch=after(12))
    (row,) = store.runs()
    before = [body["task"] for kind, body in Journal(store, row.run).rows() if kind == "update_received"]
    done = resume_study(store, row)
    after_all = [body["task"] for kind, body in Journal(store, row.run).rows() if kind == "update_received"]
    assert done.status == "finished"
    assert before
    assert after_all[: len(before)] == before, "received updates are not trained again"
    assert len(set(after_all)) == len(after_all), "and no task counts twice"


def set_working_hours(path: Path, start: datetime, end: datetime) -> None:
    setting = f'working_hours = {{ start = "{start:%H:%M}", end = "{end:%H:%M}" }}'
    text = path.read_text().replace("[limits]", "")
    path.write_text(f"{text}\n[limits]\n{setting}\n")


@pytest.mark.slow
def test_a_site_outside_its_working_hours_is_excluded(four, store):
    local = NOW.astimezone()
    set_working_hours(four.sites[0], local + timedelta(hours=2), local + timedelta(hours=4))
    row = run_study(four.study, four.sites, store, options(four), now=NOW).row
    assert "works from" in row.recipe["excluded_sites"]["athens"]
    learners = {body["learner"] for kind, body in Journal(store, row.run).rows() if kind == "update_received"}
    assert learners == {path.parent.name for path in four.sites[1:]}


@pytest.mark.slow
def test_a_site_refuses_tasks_after_its_working_hours(four, store):
    started_at = NOW.replace(second=59)  # the next minute starts after a second of simulated time
    local = started_at.astimezone()
    set_working_hours(four.sites[0], local - timedelta(hours=1), local + timedelta(minutes=1))
    row = run_study(four.study, four.sites, store, options(four), now=started_at).row
    rows = list(Journal(store, row.run).rows())
    assert any(kind == "task_failed" and body["learner"] == "athens" for kind, body in rows)
    assert row.status == "finished"


@pytest.mark.slow
def test_a_run_with_changed_records_is_not_resumed(four, store):
    with pytest.raises(PowerCut):
        run_study(four.study, four.sites, store, options(four), now=NOW, watch=after(9))
    (row,) = store.runs()
    records = four.sites[1].parent / "Observation.ndjson"
    records.write_text("\n".join(records.read_text().splitlines()[:-40]) + "\n")
    with pytest.raises(RefusedError, match="the data of kos differ from the start of the run"):
        resume_study(store, row)


def test_a_subject_withdrawn_between_rounds_is_not_in_the_next(four, store):
    row = run_study(four.study, four.sites, store, options(four), now=NOW, watch=four.watch).row
    pseudonym, withdrawn_at = four.withdrawn
    study = four.study.study.id
    registry = ConsentRegistry(Database(four.sites[0].parent / "consents.db", metadata))
    updates = [
        body
        for kind, body in Journal(store, row.run).rows()
        if kind == "update_received" and body["learner"] == "athens"
    ]
    used = [body for body in updates if pseudonym in snapshot_members(registry.database, body["cohort"])]
    assert len(used) == 3  # the demo withdraws the subject after the third round
    assert used == updates[:3]
    examples = {body["examples"] for body in updates}
    assert len(examples) == 1, "a count decreased by one would disclose the withdrawal"
    assert len(updates) > 3
    # The registry reports the same rounds for the subject.
    rounds = [number for run, number in rounds_with(registry.database, study, pseudonym) if run == row.run]
    assert rounds == four.rounds_of_withdrawn_subject(row.run)
    assert len(rounds) == 3
    assert withdrawn_at > 0


@pytest.mark.slow
def test_a_site_without_subjects_stops_training_and_the_others_continue(four, store):
    registry = ConsentRegistry(Database(four.sites[1].parent / "consents.db", metadata))

    def watch(state, event):
        if isinstance(event, UpdateReceived) and event.learner == "kos":
            for pseudonym in registry.subjects(four.study.study.id):
                registry.withdraw(pseudonym, four.study.study.id, NOW + timedelta(seconds=event.timestamp))

    row = run_study(four.study, four.sites, store, options(four), now=NOW, watch=watch).row
    rows = list(Journal(store, row.run).rows())
    assert sum(kind == "update_received" and body["learner"] == "kos" for kind, body in rows) == 1
    assert {body["reason"] for kind, body in rows if kind == "task_failed"} <= {"refused"}
    assert row.status == "finished"
    assert not any(line["group"] == "kos" for line in row.result["evaluation"]["rows"])


@pytest.mark.slow
def test_a_new_document_ends_the_cohort(four, store):
    registry = ConsentRegistry(Database(four.sites[0].parent / "consents.db", metadata))

    def watch(state, event):
        if isinstance(event, UpdateReceived) and event.learner == "athens":
            registry.publish(four.study.study.id, "0" * 64, NOW, ends=None, keep_until=None)

    row = run_study(four.study, four.sites, store, options(four), now=NOW, watch=watch).row
    learners = [body["learner"] for kind, body in Journal(store, row.run).rows() if kind == "update_received"]
    assert learners.count("athens") == 1


@pytest.mark.slow
def test_a_local_run_checks_consents(four, store):
    row = run_study(four.study, four.sites, store, options(four), engine="local", now=None).row
    assert row.status == "finished"
    updates = [body for kind, body in Journal(store, row.run).rows() if kind == "update_received"]
    assert updates
    assert all(len(body["cohort"]) == 64 for body in updates)


def test_invalid_arguments_are_refused(four, store):
    with pytest.raises(SettingsError, match="no engine"):
        run_study(four.study, four.sites, store, engine="quantum")
    with pytest.raises(SettingsError, match="two sites have the id 'athens'"):
        run_study(four.study, [four.sites[0], four.sites[0]], store)
    with pytest.raises(RefusedError, match="1 of 1 sites can take part, 2 are needed"):
        run_study(four.study, four.sites[:1], store, now=NOW)
    assert store.runs() == []


def withdraw_subject(four, site: int, event) -> str:
    """Withdraw a subject of an update at the current time."""
    registry = ConsentRegistry(Database(four.sites[site].parent / "consents.db", metadata))
    pseudonym = snapshot_members(registry.database, event["cohort"])[0]
    registry.withdraw(pseudonym, four.study.study.id, datetime.now(UTC))
    registry.database.close()
    return pseudonym


def synchronous_strategy(four):
    return four.study.learning.strategy.model_copy(
        update={"name": "SyncFedAvg", "evaluators": None, "evaluator_selection": None}
    )


def rows_of(store: Store, run: str) -> list:
    return list(Journal(store, run).rows())


@pytest.mark.parametrize(
    ("engine", "codec"),
    [("virtual", "raw"), ("virtual", "error_feedback | stc(sparsity=0.2)"), ("local", "raw")],
)
def test_a_subject_withdrawn_during_an_interruption_is_not_used_again(
    four, store, engine, codec, monkeypatch
):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    changed: dict[str, object] = {"codec": codec}
    if engine == "local":  # in synchronous rounds all learners are seen before the interruption
        changed["strategy"] = synchronous_strategy(four)
    learning = four.study.learning.model_copy(update=changed)
    study = study_from_toml(write_toml(four.study.model_copy(update={"learning": learning})))
    for path in four.sites:  # the registry has the new study document
        registry = ConsentRegistry(Database(path.parent / "consents.db", metadata))
        republish(registry, four.study, study)
    study_options = {"virtual": options(four), "local": StudyOptions(5, bootstrap_resamples=0)}[engine]
    now = NOW if engine == "virtual" else None
    with pytest.raises(PowerCut):
        run_study(
            study, four.sites, store, study_options, name="cut", engine=engine, now=now, watch=after(12)
        )
    before = rows_of(store, "cut")
    used = next(body for kind, body in before if kind == "update_received" and body["learner"] == "athens")
    manifest_sites = store.run("cut").recipe["manifest"]["sites"]
    withdraw_subject(four, 0, used)
    resumed = resume_study(store, store.run("cut"))
    assert resumed.status == "finished"
    assert resumed.row.recipe["manifest"]["sites"] == manifest_sites, (
        "a withdrawal does not change what the run is made of"
    )
    all_rows = rows_of(store, "cut")
    assert all_rows[: len(before)] == before, "earlier events are unchanged"
    later = [b for k, b in all_rows[len(before) :] if k == "update_received" and b["learner"] == "athens"]
    assert len(later) > 1
    assert {body["examples"] for body in later} <= {used["examples"], used["examples"] - 1}
    registry = ConsentRegistry(Database(four.sites[0].parent / "consents.db", metadata))
    pseudonym = snapshot_members(registry.database, used["cohort"])[0]
    if engine == "local":  # a reply written before the interruption is sent unchanged
        later = later[1:]
    assert not any(pseudonym in snapshot_members(registry.database, body["cohort"]) for body in later)


def test_checkpoint_and_journal_give_the_same_result_after_a_withdrawal(four, tmp_path, monkeypatch):
    """A subject withdraws during an interruption; one copy of the run has a checkpoint, the other its journal only."""
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    often = partial(Checkpoints, checkpoint_every=3, clock=lambda: 0.0)
    monkeypatch.setattr("abaton.engines.launcher.Checkpoints", lambda folder, _every: often(folder))
    changed = {
        "strategy": synchronous_strategy(four),
        "rounds": 6,
        "codec": "error_feedback | stc(sparsity=0.2)",
    }
    learning = four.study.learning.model_copy(update=changed)
    study = study_from_toml(write_toml(four.study.model_copy(update={"learning": learning})))
    for path in four.sites:
        republish(ConsentRegistry(Database(path.parent / "consents.db", metadata)), four.study, study)
    study_options = StudyOptions(5, bootstrap_resamples=0)
    with Store(tmp_path / "store") as store, pytest.raises(PowerCut):
        run_study(study, four.sites, store, study_options, name="cut", engine="local", watch=after(18))
    shutil.copytree(
        tmp_path / "store", tmp_path / "journal only", ignore=shutil.ignore_patterns("checkpoints")
    )
    digests = []
    for folder in ("store", "journal only"):
        with Store(tmp_path / folder) as store:
            before = rows_of(store, "cut")
            assert store.checkpoint_folder("cut").exists() == (folder == "store")
            if not digests:
                used = next(b for kind, b in before if kind == "update_received" and b["learner"] == "athens")
                withdraw_subject(four, 0, used)
            watch = after(0)
            resumed = resume_study(store, store.run("cut"), watch=watch)
            assert resumed.status == "finished"
            all_rows = rows_of(store, "cut")
            assert all_rows[: len(before)] == before
            replayed = watch.events - (len(all_rows) - len(before))
            assert replayed < 8 if folder == "store" else replayed == len(before)
            later = [
                b
                for kind, b in all_rows[len(before) :]
                if kind == "update_received" and b["learner"] == "athens"
            ]
            assert {body["examples"] for body in later} <= {used["examples"], used["examples"] - 1}
            digests.append([row.digest for row in store.models("cut")])
    assert len(digests[0]) == 7
    assert digests[0] == digests[1]


@pytest.mark.slow
@pytest.mark.parametrize("remaining", [0, 1], ids=["none remains", "one remains"])
def test_a_site_emptied_during_an_interruption_stops_and_the_others_continue(
    four, store, monkeypatch, remaining
):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with pytest.raises(PowerCut):
        run_study(four.study, four.sites, store, options(four), name="cut", now=NOW, watch=after(12))
    before = rows_of(store, "cut")
    registry = ConsentRegistry(Database(four.sites[0].parent / "consents.db", metadata))
    pseudonyms = sorted(registry.eligible_subjects(four.study.study.id, ConsentAction.TRAIN, NOW)[1])
    for pseudonym in pseudonyms[remaining:]:
        registry.withdraw(pseudonym, four.study.study.id, datetime.now(UTC))
    registry.database.close()
    resumed = resume_study(store, store.run("cut"))
    assert resumed.status == "finished"
    all_rows = rows_of(store, "cut")
    assert all_rows[: len(before)] == before
    later = {body["learner"] for kind, body in all_rows[len(before) :] if kind == "update_received"}
    assert later
    assert "athens" not in later
    sites = [line["group"] for line in resumed.result["evaluation"]["rows"] if line["grouping"] == "site"]
    assert "athens" not in sites


def republish(registry: ConsentRegistry, old, new) -> None:
    """Publish another document, and let all consenting subjects consent to it."""
    pseudonyms = sorted(registry.eligible_subjects(old.study.id, ConsentAction.TRAIN, NOW)[1])
    publish(registry, new, NOW - timedelta(days=30))
    until = dict.fromkeys(pseudonyms, NOW + timedelta(days=3650))
    registry.enrol(until, new.study.id, new.hash, NOW - timedelta(days=30))
    registry.database.close()


def test_a_run_name_of_another_study_is_refused_with_the_difference(four, store):
    first = run_study(four.study, four.sites, store, options(four), name="mine", now=NOW)
    again = run_study(four.study, four.sites, store, options(four), name="mine", now=NOW)
    assert again.result == first.result, "a finished run is returned"
    with pytest.raises(RefusedError, match=r"strategy.seed was 5 and is 6"):
        run_study(four.study, four.sites, store, options(four, seed=6), name="mine", now=NOW)
    assert not list(store.folder.rglob("prepared.json")), (
        "the preparation is stored only while a run is unfinished"
    )


def test_other_evaluation_settings_or_site_limits_make_another_run(four, store):
    run_study(four.study, four.sites, store, options(four), name="mine", now=NOW)
    with pytest.raises(RefusedError, match=r"study.evaluation.bootstrap_resamples was 0 and is 20"):
        run_study(four.study, four.sites, store, options(four, bootstrap_resamples=20), name="mine", now=NOW)
    evaluation = four.study.learning.evaluation.model_copy(update={"specificity": 0.8})
    learning = four.study.learning.model_copy(update={"evaluation": evaluation})
    with pytest.raises(RefusedError, match=r"study.evaluation.specificity was 0.9 and is 0.8"):
        run_study(
            four.study.model_copy(update={"learning": learning}),
            four.sites, store, options(four), name="mine", now=NOW,
        )  # fmt: skip
    path = four.sites[0]
    path.write_text(path.read_text() + "\n[limits]\nmax_batch_size = 4\n")
    with pytest.raises(RefusedError, match=r"study.max_batch_size.athens was None and is 4"):
        run_study(four.study, four.sites, store, options(four), name="mine", now=NOW)


def test_an_invalid_run_name_leaves_no_files(four, store):
    with pytest.raises(SettingsError, match="is not a valid run name"):
        run_study(four.study, four.sites, store, options(four), name="../../outside/x", now=NOW)
    assert not (store.folder.parent / "outside").exists()
    assert not (store.folder / "states").exists()


def test_the_model_of_a_study_can_be_deployed(four, store):
    run = run_study(four.study, four.sites, store, options(four, bootstrap_resamples=20), now=NOW)
    deployment = run.row.recipe["deployment"]
    assert deployment["columns"]
    assert set(deployment["scale"]) <= set(deployment["columns"])
    assert len(deployment["classes"]) == 2
    rows = {
        name: [np.nan, 0.0] if name in deployment["scale"] else [0.0, 1.0] for name in deployment["columns"]
    }
    probabilities = run.predict(rows)
    assert probabilities.shape == (2, 2)
    assert np.allclose(probabilities.sum(1), 1)
    fresh = Run(store, run.name)
    assert np.array_equal(fresh.predict(rows), probabilities), "the run contains all deployment data"
    logits = fresh.model(torch.zeros(1, len(deployment["columns"])))
    typical = {
        name: [np.nan if deployment["scale"].get(name, [0, 0, 0])[2] else 0.0]
        for name in deployment["columns"]
    }
    assert np.allclose(logits.softmax(1).detach().numpy(), fresh.predict(typical), atol=1e-6)
    assert 0 < run.metrics["auroc"] < 1, "after 16 rounds over 450 subjects the metric is not stable"
    with pytest.raises(SettingsError, match="there is no column"):
        run.predict({"nonsense": [1.0]})


def test_new_patients_are_recoded_like_the_training_rows(four, store):
    run = run_study(four.study, four.sites, store, options(four), now=NOW)
    deployment = run.row.recipe["deployment"]
    level = deployment["ranges"][0]
    assert level, "the study recodes ages"
    width = (5, 10, 20, 40)[level - 1]
    ages = [float(3 * width), 4 * width - 1.0, float(4 * width)]
    rows = {name: ages if name == "age" else [0.0] * 3 for name in deployment["columns"]}
    first, last, older = Run(store, run.name).predict(rows)[:, 1]
    assert first == last, "ages of one range are equal to the model"
    assert last != older


def test_learners_with_equal_settings_train_in_one_call(four, store, monkeypatch):
    stack_sizes, train = [], stacked_training.train_stacked

    def counted(network, slots, *arguments):
        stack_sizes.append(len(slots))
        return train(network, slots, *arguments)

    monkeypatch.setattr(stacked_training, "train_stacked", counted)
    strategy = four.study.learning.strategy.model_copy(update={"name": "SyncFedAvg"})
    learning = four.study.learning.model_copy(update={"strategy": strategy, "rounds": 2})
    study = four.study.model_copy(update={"learning": learning})
    run = run_study(study, four.sites, store, options(four), now=NOW)
    assert run.status == "finished"
    assert max(stack_sizes) == len(four.sites)
