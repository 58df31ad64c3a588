"""A study from records to model: pinned, repeatable, resumable; consents are asked at every round."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from abaton.controller import Arrived
from abaton.engines import Checkpoints
from abaton.errors import Refused, SettingsError
from abaton.federation import POOLED, Run, StudyOptions, alone, resume_study, run_study
from abaton.governance import Action, Registry, members_of, metadata, rounds_with
from abaton.lab.demo import NOW
from abaton.learners import parallel_trainer
from abaton.site import publish
from abaton.store import Database, Journal, Store
from abaton.study import study_from_toml, write_toml


def options(four, **more) -> StudyOptions:
    return StudyOptions(profiles=four.profiles, **{"seed": 5, "resamples": 0, **more})


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


class Cut(Exception):
    """The power went."""


def after(events: int):
    def watch(state, event):
        watch.heard += 1
        if watch.heard == events:
            raise Cut

    watch.heard = 0
    return watch


def test_a_run_goes_from_records_to_a_judged_model(four, store):
    row = run_study(four.study, four.sites, store, options(four, baselines=True, resamples=50), now=NOW).row
    assert row.status == "finished"
    assert row.recipe["study"]["hash"] == four.study.hash
    assert set(row.recipe["tables"]) == set(row.recipe["cohorts"]) == {"athens", "kos", "pergamon", "trikala"}
    lines = {(line["model"], line["subset"]): line for line in row.result["evaluation"]["lines"]}
    for model in ("community", POOLED, alone("athens")):
        measures = lines[model, "all sites"]["measures"]
        assert measures["auroc"]["low"] <= measures["auroc"]["value"] <= measures["auroc"]["high"]
    assert ("community", "sex: female") in lines
    traffic = row.result["traffic"]
    assert all(each["bytes_up"] < each["uncompressed"] for each in traffic.values())
    json.dumps(row.result, allow_nan=False)
    assert not any("Patient/" in json.dumps(part) for part in (row.recipe, row.result))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(four, store):
    first = run_study(four.study, four.sites, store, options(four), now=NOW).row
    again = run_study(four.study, four.sites, store, options(four), now=NOW).row
    other = run_study(four.study, four.sites, store, options(four, seed=6), now=NOW).row
    assert first.recipe["tables"] == again.recipe["tables"]
    assert first.result["digest"] == again.result["digest"] != other.result["digest"]


@pytest.mark.slow
def test_a_run_that_was_cut_off_ends_with_the_same_bits(four, store):
    whole = run_study(four.study, four.sites, store, options(four), now=NOW).row
    with pytest.raises(Cut):
        run_study(four.study, four.sites, store, options(four), now=NOW, watch=after(9))
    row = next(each for each in store.runs() if each.status == "running")
    assert resume_study(store, row).result["digest"] == whole.result["digest"]


@pytest.mark.slow
def test_a_local_run_that_was_cut_off_goes_on_where_it_stopped(four, store):
    with pytest.raises(Cut):
        run_study(four.study, four.sites, store, options(four), engine="local", now=NOW, watch=after(12))
    (row,) = store.runs()
    before = [body["task"] for kind, body in Journal(store, row.run).rows() if kind == "Arrived"]
    done = resume_study(store, row)
    after_all = [body["task"] for kind, body in Journal(store, row.run).rows() if kind == "Arrived"]
    assert done.status == "finished"
    assert before
    assert after_all[: len(before)] == before, "what had arrived is not trained again"
    assert len(set(after_all)) == len(after_all), "and nothing is counted twice"


def works(place: Path, start: datetime, end: datetime) -> None:
    words = f'hours = {{ start = "{start:%H:%M}", end = "{end:%H:%M}" }}'
    text = place.read_text().replace("[limits]", "")
    place.write_text(f"{text}\n[limits]\n{words}\n")


@pytest.mark.slow
def test_outside_its_hours_a_site_takes_no_part_and_the_others_go_on(four, store):
    local = NOW.astimezone()
    works(four.sites[0], local + timedelta(hours=2), local + timedelta(hours=4))
    row = run_study(four.study, four.sites, store, options(four), now=NOW).row
    assert "works from" in row.recipe["left_out"]["athens"]
    arrived = {body["learner"] for kind, body in Journal(store, row.run).rows() if kind == "Arrived"}
    assert arrived == {each.parent.name for each in four.sites[1:]}


@pytest.mark.slow
def test_a_site_whose_hours_end_refuses_the_next_task(four, store):
    begun = NOW.replace(second=59)  # the next minute begins after a second of simulated time
    local = begun.astimezone()
    works(four.sites[0], local - timedelta(hours=1), local + timedelta(minutes=1))
    row = run_study(four.study, four.sites, store, options(four), now=begun).row
    rows = list(Journal(store, row.run).rows())
    assert any(kind == "Failed" and body["learner"] == "athens" for kind, body in rows)
    assert row.status == "finished"


@pytest.mark.slow
def test_a_run_whose_records_have_changed_is_not_resumed(four, store):
    with pytest.raises(Cut):
        run_study(four.study, four.sites, store, options(four), now=NOW, watch=after(9))
    (row,) = store.runs()
    records = four.sites[1].parent / "Observation.ndjson"
    records.write_text("\n".join(records.read_text().splitlines()[:-40]) + "\n")
    with pytest.raises(Refused, match="what kos has for the study is not what the run was started with"):
        resume_study(store, row)


def test_who_withdraws_between_two_rounds_is_out_of_the_next(four, store):
    row = run_study(four.study, four.sites, store, options(four), now=NOW, watch=four.watch).row
    person, at = four.left
    study = four.study.study.id
    registry = Registry(Database(four.sites[0].parent / "consents.db", metadata))
    arrived = [
        body
        for kind, body in Journal(store, row.run).rows()
        if kind == "Arrived" and body["learner"] == "athens"
    ]
    used = [body for body in arrived if person in members_of(registry.database, body["cohort"])]
    assert len(used) == 3  # the demonstration lets them go after the third
    assert used == arrived[:3]
    told = {body["examples"] for body in arrived}
    assert len(told) == 1, "a number that went down by one would tell of the person who left"
    assert len(arrived) > 3
    # The registry tells the same, from the person's side.
    rounds = [number for run, number in rounds_with(registry.database, study, person) if run == row.run]
    assert rounds == four.rounds_of_who_left(row.run)
    assert len(rounds) == 3
    assert at > 0


@pytest.mark.slow
def test_a_site_that_everybody_leaves_stops_training_and_the_others_go_on(four, store):
    registry = Registry(Database(four.sites[1].parent / "consents.db", metadata))

    def watch(state, event):
        if isinstance(event, Arrived) and event.learner == "kos":
            for person in registry.subjects(four.study.study.id):
                registry.withdraw(person, four.study.study.id, NOW + timedelta(seconds=event.at))

    row = run_study(four.study, four.sites, store, options(four), now=NOW, watch=watch).row
    rows = list(Journal(store, row.run).rows())
    assert sum(kind == "Arrived" and body["learner"] == "kos" for kind, body in rows) == 1
    assert {body["reason"] for kind, body in rows if kind == "Failed"} <= {"task was refused"}
    assert row.status == "finished"
    assert not any(line["subset"] == "kos" for line in row.result["evaluation"]["lines"])


@pytest.mark.slow
def test_a_new_document_ends_the_cohort(four, store):
    registry = Registry(Database(four.sites[0].parent / "consents.db", metadata))

    def watch(state, event):
        if isinstance(event, Arrived) and event.learner == "athens":
            registry.publish(four.study.study.id, "0" * 64, NOW, ends=None, keep_until=None)

    row = run_study(four.study, four.sites, store, options(four), now=NOW, watch=watch).row
    arrived = [body["learner"] for kind, body in Journal(store, row.run).rows() if kind == "Arrived"]
    assert arrived.count("athens") == 1


@pytest.mark.slow
def test_a_local_run_asks_for_consent_too(four, store):
    row = run_study(four.study, four.sites, store, options(four), engine="local", now=None).row
    assert row.status == "finished"
    arrived = [body for kind, body in Journal(store, row.run).rows() if kind == "Arrived"]
    assert arrived
    assert all(len(body["cohort"]) == 64 for body in arrived)


def test_what_cannot_be_meant_is_refused(four, store):
    with pytest.raises(SettingsError, match="no engine"):
        run_study(four.study, four.sites, store, engine="quantum")
    with pytest.raises(SettingsError, match="two sites are called 'athens'"):
        run_study(four.study, [four.sites[0], four.sites[0]], store)
    with pytest.raises(Refused, match="1 of 1 sites can take part, 2 are needed"):
        run_study(four.study, four.sites[:1], store, now=NOW)
    assert store.runs() == []


def withdraw_somebody(four, site: int, event) -> str:
    """Let somebody whose records an update was trained on withdraw, at the time of the world."""
    registry = Registry(Database(four.sites[site].parent / "consents.db", metadata))
    person = members_of(registry.database, event["cohort"])[0]
    registry.withdraw(person, four.study.study.id, datetime.now(UTC))
    registry.database.close()
    return person


def in_rounds(four):
    return four.study.learning.policy.model_copy(
        update={"name": "SyncFedAvg", "evaluators": None, "choice": None}
    )


def rows_of(store: Store, run: str) -> list:
    return list(Journal(store, run).rows())


@pytest.mark.parametrize(
    ("engine", "codec"),
    [("virtual", "raw"), ("virtual", "error_feedback | stc(sparsity=0.2)"), ("local", "raw")],
)
def test_who_withdraws_while_a_run_is_cut_off_is_not_in_the_rest_of_it(
    four, store, engine, codec, monkeypatch
):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    changed: dict[str, object] = {"codec": codec}
    if engine == "local":  # in rounds everybody is heard of before the cut, however quick their processes are
        changed["policy"] = in_rounds(four)
    learning = four.study.learning.model_copy(update=changed)
    study = study_from_toml(write_toml(four.study.model_copy(update={"learning": learning})))
    for place in four.sites:  # the registry's document is the study's
        registry = Registry(Database(place.parent / "consents.db", metadata))
        republish(registry, four.study, study)
    chosen = {"virtual": options(four), "local": StudyOptions(5, resamples=0)}[engine]
    now = NOW if engine == "virtual" else None
    with pytest.raises(Cut):
        run_study(study, four.sites, store, chosen, name="cut", engine=engine, now=now, watch=after(12))
    before = rows_of(store, "cut")
    used = next(body for kind, body in before if kind == "Arrived" and body["learner"] == "athens")
    made = store.run("cut").recipe["fingerprint"]["sites"]
    withdraw_somebody(four, 0, used)
    ended = resume_study(store, store.run("cut"))
    assert ended.status == "finished"
    assert ended.row.recipe["fingerprint"]["sites"] == made, (
        "a withdrawal does not change what the run is made of"
    )
    whole = rows_of(store, "cut")
    assert whole[: len(before)] == before, "what had happened is not changed"
    later = [b for k, b in whole[len(before) :] if k == "Arrived" and b["learner"] == "athens"]
    assert len(later) > 1
    assert {body["examples"] for body in later} <= {used["examples"], used["examples"] - 1}
    registry = Registry(Database(four.sites[0].parent / "consents.db", metadata))
    person = members_of(registry.database, used["cohort"])[0]
    if engine == "local":  # an answer that its process had written when the power went is sent as it is
        later = later[1:]
    assert not any(person in members_of(registry.database, body["cohort"]) for body in later)


def test_a_withdrawal_means_the_same_from_a_checkpoint_and_from_the_journal(four, tmp_path, monkeypatch):
    """Somebody withdraws while a run is cut off; one copy of it has its checkpoint, the other its journal alone."""
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    often = partial(Checkpoints, every=3, clock=lambda: 0.0)
    monkeypatch.setattr("abaton.engines.launcher.Checkpoints", lambda folder, _every: often(folder))
    changed = {"policy": in_rounds(four), "rounds": 6, "codec": "error_feedback | stc(sparsity=0.2)"}
    learning = four.study.learning.model_copy(update=changed)
    study = study_from_toml(write_toml(four.study.model_copy(update={"learning": learning})))
    for place in four.sites:
        republish(Registry(Database(place.parent / "consents.db", metadata)), four.study, study)
    chosen = StudyOptions(5, resamples=0)
    with Store(tmp_path / "store") as store, pytest.raises(Cut):
        run_study(study, four.sites, store, chosen, name="cut", engine="local", watch=after(18))
    shutil.copytree(
        tmp_path / "store", tmp_path / "journal alone", ignore=shutil.ignore_patterns("checkpoints")
    )
    ends = []
    for folder in ("store", "journal alone"):
        with Store(tmp_path / folder) as store:
            before = rows_of(store, "cut")
            assert store.checkpoint_folder("cut").exists() == (folder == "store")
            if not ends:
                used = next(b for kind, b in before if kind == "Arrived" and b["learner"] == "athens")
                withdraw_somebody(four, 0, used)
            heard = after(0)
            ended = resume_study(store, store.run("cut"), watch=heard)
            assert ended.status == "finished"
            whole = rows_of(store, "cut")
            assert whole[: len(before)] == before
            told = heard.heard - (len(whole) - len(before))
            assert told < 8 if folder == "store" else told == len(before)
            later = [b for kind, b in whole[len(before) :] if kind == "Arrived" and b["learner"] == "athens"]
            assert {body["examples"] for body in later} <= {used["examples"], used["examples"] - 1}
            ends.append([row.digest for row in store.models("cut")])
    assert len(ends[0]) == 7
    assert ends[0] == ends[1]


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 1], ids=["nobody stays", "one stays"])
def test_a_site_that_everybody_leaves_while_a_run_is_cut_off_stops_and_the_others_go_on(
    four, store, monkeypatch, left
):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    with pytest.raises(Cut):
        run_study(four.study, four.sites, store, options(four), name="cut", now=NOW, watch=after(12))
    before = rows_of(store, "cut")
    registry = Registry(Database(four.sites[0].parent / "consents.db", metadata))
    everybody = sorted(registry.who_may(four.study.study.id, Action.TRAIN, NOW)[1])
    for person in everybody[left:]:
        registry.withdraw(person, four.study.study.id, datetime.now(UTC))
    registry.database.close()
    ended = resume_study(store, store.run("cut"))
    assert ended.status == "finished"
    whole = rows_of(store, "cut")
    assert whole[: len(before)] == before
    later = {body["learner"] for kind, body in whole[len(before) :] if kind == "Arrived"}
    assert later
    assert "athens" not in later
    told = [line["subset"] for line in ended.result["evaluation"]["lines"] if line["of"] == "site"]
    assert "athens" not in told


def republish(registry: Registry, old, new) -> None:
    """Publish another document, and let everybody who agreed to the old one agree to it."""
    everybody = sorted(registry.who_may(old.study.id, Action.TRAIN, NOW)[1])
    publish(registry, new, NOW - timedelta(days=30))
    until = dict.fromkeys(everybody, NOW + timedelta(days=3650))
    registry.enrol(until, new.study.id, new.hash, NOW - timedelta(days=30))
    registry.database.close()


def test_a_study_under_the_name_of_another_is_refused_with_what_differs(four, store):
    first = run_study(four.study, four.sites, store, options(four), name="mine", now=NOW)
    again = run_study(four.study, four.sites, store, options(four), name="mine", now=NOW)
    assert again.result == first.result, "a run that has ended is given back"
    with pytest.raises(Refused, match=r"rules.seed was 5 and is 6"):
        run_study(four.study, four.sites, store, options(four, seed=6), name="mine", now=NOW)
    assert not list(store.folder.rglob("prepared.json")), "who was dealt where is kept while a run goes on"


def test_another_evaluation_or_another_limit_of_a_site_is_another_run(four, store):
    run_study(four.study, four.sites, store, options(four), name="mine", now=NOW)
    with pytest.raises(Refused, match=r"study.evaluation.resamples was 0 and is 20"):
        run_study(four.study, four.sites, store, options(four, resamples=20), name="mine", now=NOW)
    asked = four.study.learning.evaluation.model_copy(update={"specificity": 0.8})
    learning = four.study.learning.model_copy(update={"evaluation": asked})
    with pytest.raises(Refused, match=r"study.evaluation.specificity was 0.9 and is 0.8"):
        run_study(
            four.study.model_copy(update={"learning": learning}),
            four.sites, store, options(four), name="mine", now=NOW,
        )  # fmt: skip
    place = four.sites[0]
    place.write_text(place.read_text() + "\n[limits]\nbatch = 4\n")
    with pytest.raises(Refused, match=r"study.largest batch.athens was None and is 4"):
        run_study(four.study, four.sites, store, options(four), name="mine", now=NOW)


def test_a_name_that_cannot_be_a_files_leaves_nothing_anywhere(four, store):
    with pytest.raises(SettingsError, match="cannot be a run's name"):
        run_study(four.study, four.sites, store, options(four), name="../../elsewhere/x", now=NOW)
    assert not (store.folder.parent / "elsewhere").exists()
    assert not (store.folder / "states").exists()


def test_the_model_of_a_study_is_there_to_be_used(four, store):
    run = run_study(four.study, four.sites, store, options(four, resamples=20), now=NOW)
    use = run.row.recipe["use"]
    assert use["columns"]
    assert set(use["scale"]) <= set(use["columns"])
    assert len(use["classes"]) == 2
    rows = {name: [np.nan, 0.0] if name in use["scale"] else [0.0, 1.0] for name in use["columns"]}
    chances = run.predict(rows)
    assert chances.shape == (2, 2)
    assert np.allclose(chances.sum(1), 1)
    fresh = Run(store, run.name)
    assert np.array_equal(fresh.predict(rows), chances), "the run alone knows how to use its model"
    logits = fresh.model(torch.zeros(1, len(use["columns"])))
    usual = {name: [np.nan if use["scale"].get(name, [0, 0, 0])[2] else 0.0] for name in use["columns"]}
    assert np.allclose(logits.softmax(1).detach().numpy(), fresh.predict(usual), atol=1e-6)
    assert 0 < run.metrics["auroc"] < 1, "after 16 rounds over 450 people no more can be said"
    with pytest.raises(SettingsError, match="there is no column"):
        run.predict({"nonsense": [1.0]})


def test_new_people_are_seen_in_the_ranges_that_the_model_has_learned_in(four, store):
    run = run_study(four.study, four.sites, store, options(four), now=NOW)
    use = run.row.recipe["use"]
    level = use["ranges"][0]
    assert level, "in this study ages are told in ranges"
    width = (5, 10, 20, 40)[level - 1]
    ages = [float(3 * width), 4 * width - 1.0, float(4 * width)]
    rows = {name: ages if name == "age" else [0.0] * 3 for name in use["columns"]}
    first, last, older = Run(store, run.name).predict(rows)[:, 1]
    assert first == last, "whoever is in one range is one to the model"
    assert last != older


def test_learners_of_a_study_that_are_alike_train_in_one_call(four, store, monkeypatch):
    together, train = [], parallel_trainer.train_stacked

    def counted(network, seats, *rest):
        together.append(len(seats))
        return train(network, seats, *rest)

    monkeypatch.setattr(parallel_trainer, "train_stacked", counted)
    policy = four.study.learning.policy.model_copy(update={"name": "SyncFedAvg"})
    learning = four.study.learning.model_copy(update={"policy": policy, "rounds": 2})
    study = four.study.model_copy(update={"learning": learning})
    run = run_study(study, four.sites, store, options(four), now=NOW)
    assert run.status == "finished"
    assert max(together) == len(four.sites)
