"""A hostile centre against a site: each question gave rows, or small numbers of people, before there was a policy."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from tests.attacks.conftest import Centre

from abaton.codecs import Key, parse
from abaton.controller import TrainSettings
from abaton.engines.flower.site_worker import run_folder
from abaton.governance import Registry, metadata
from abaton.lab.reconstruction_attack import difference, matched, read_off
from abaton.learners import Examples, Learner, logistic
from abaton.site import Ledger, load_site, subject_tag
from abaton.store import Database
from abaton.study_run.invitation import _choice
from abaton.study_run.messages import body_of
from abaton.study_run.site_run_state import Notes
from abaton.study_run.site_service import Folder
from abaton.training import round_key

REFUSED = "task was refused"


def reasons(answer) -> set[str]:
    """Why nothing was told of any model."""
    if answer.reason is not None:
        return {answer.reason}
    return {each if isinstance(each, str) else "told" for each in answer.about["scores"]}


def test_dealing_again_by_other_seeds_would_solve_for_every_value(centre):
    """Sums over as many random halves as there are people are as many equations as unknowns."""
    centre.prepare(seed=1)
    for seed in range(2, 6):
        other = Centre(centre.made, centre.folder, run=f"run {seed}")
        read = other.ask("read")
        assert not read["problem"]
        dealt = other.ask("deal", **{**centre.body, "seed": seed})
        assert "sums" not in dealt
        assert "another seed" in dealt["problem"]


def test_a_scale_that_lets_single_values_stand_out_is_refused(centre):
    read = centre.ask("read")
    body = {"seed": 1, **_choice(centre.study, read)}
    told = centre.ask("deal", **body)["sums"]
    name = next(name for name, each in told["columns"].items() if each[0] and each[1] != each[2])
    count, total, _ = told["columns"][name]
    mean = total / count
    many = 10**9
    narrow = {**told["columns"], name: [many, many * (mean + 3), many * (mean + 3) ** 2 * (1 + 1e-12)]}
    answer = centre.ask("scale", **body, scale={"columns": narrow, "label": [0.0, 1.0]})
    assert answer == {"reason": REFUSED}


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 1, "batch_size": 1},
        {"batch_size": 1},
        {"steps": 1},
        {"learning_rate": 1e-6},
        {"learning_rate": 100.0},
        {"epochs": 1},
        {"momentum": 0.0},
        {"complete": True},
        {"budget": 0.001},
        {"clip": 1e-9},
        {"elapsed": 10**9},
    ],
    ids=repr,
)
def test_one_step_on_one_row_gives_the_row_and_is_not_trained(ready, settings):
    answer = ready.train(0, ready.start(), **settings)
    assert answer.reason == REFUSED
    assert not answer.blobs


def test_a_model_that_singles_out_a_row_is_not_trained_on(ready):
    """Weights so large that all rows but one are predicted surely leave that row's values in the update."""
    start = ready.start()
    assert ready.train(0, np.full_like(start, 1e6)).reason == REFUSED, "the first model follows from the seed"
    assert ready.train(0, start).reason is None
    assert ready.train(1, np.full_like(start, 1e6)).reason == REFUSED
    assert ready.train(1, start + np.float32(0.01)).reason is None


def test_without_a_policy_one_step_on_one_row_is_the_row():
    """What the settings above would give: the weights' change over the bias's."""
    rng = np.random.default_rng(0)
    data = Examples(rng.normal(size=(60, 7)).astype(np.float32), rng.integers(0, 2, 60))
    learner = Learner("site", logistic(features=7, classes=2), data, parse("raw"), 1)
    made = learner.train("task", 0, learner.model.initial(1), TrainSettings(steps=1, batch_size=1))
    update = learner.codec.decode(made.payload, learner.model.layout, Key(round_key(1, 0), "site"))
    found = read_off(difference(update))
    assert matched(data.x.astype(np.float64), found, np.zeros(7, bool)) == 1


def test_a_model_that_leaves_one_row_to_learn_from_gives_no_update(centre, monkeypatch):
    """Near the last model, so that its distance is no reason, and right about everybody but one."""
    centre.prepare()
    monkeypatch.setattr(Learner, "resting", lambda self, model, settings: 1.5)
    assert centre.train(0, centre.start()).reason == REFUSED
    monkeypatch.setattr(Learner, "resting", lambda self, model, settings: 9.0)
    assert centre.train(0, centre.start()).reason is None


def test_the_order_of_rows_does_not_follow_from_what_the_centre_knows(centre):
    """Two sites with the same rows, seed, name, task and model, and secrets of their own, send two updates."""
    centre.prepare()
    first = centre.train(0, centre.start()).blobs["update"]
    assert centre.train(0, centre.start()).blobs["update"] == first
    other = Centre(centre.made, centre.folder / "other")
    other.prepare()
    assert other.train(0, other.start()).blobs["update"] != first


def test_no_version_is_trained_on_twice_and_none_after_the_last(ready):
    """Two updates of one version, shuffled anew, are two sets of equations about the same rows."""
    start = ready.start()
    first = ready.train(0, start, key="a")
    assert ready.train(0, start, key="b").reason == REFUSED
    again = ready.train(0, start, key="a")
    assert again.blobs["update"] == first.blobs["update"], "what was lost is sent again, to the bit"
    assert ready.train(16, start, key="c").reason == REFUSED
    assert ready.train(-1, start, key="d").reason == REFUSED


@pytest.mark.parametrize("kind", ["evaluate", "judge"])
def test_crafted_models_are_neither_scored_nor_judged(ready, kind):
    """A model that looks at one column tells by its scores who has which value there."""
    ready.train(0, ready.start())
    crafted = []
    for place in range(3):
        model = np.zeros_like(ready.start())
        model[place] = 1e4
        crafted.append(model)
    assert reasons(ready.score(kind, crafted)) == {REFUSED}


def test_so_many_models_are_judged_and_no_more(ready):
    ready.train(0, ready.start())
    rng = np.random.default_rng(0)
    near = [ready.start() + rng.normal(0, 1e-3, len(ready.start())).astype(np.float32) for _ in range(66)]
    assert ready.score("judge", near[:64]).reason is None
    assert ready.score("judge", near[64:]).reason == REFUSED
    assert ready.score("judge", near[:2]).reason is None, "what was told may be told again"


def test_nobody_is_judged_among_fewer_than_the_smallest_count(ready):
    """Five hundred bins of the predicted chance told each person's own, with the outcome."""
    ready.train(0, ready.start())
    (told,) = body_of(ready.score("judge", [ready.start() + np.float32(0.05)]))["told"]
    counts = [number for _, _, cases in told for rows in cases for row in rows for number in row[1:]]
    assert counts
    assert all(number == 0 or number >= 5 for number in counts)


def test_scores_come_in_stretches_and_never_of_small_classes(ready):
    ready.train(0, ready.start())
    rng = np.random.default_rng(0)
    models = [ready.start() + rng.normal(0, 0.1, len(ready.start())).astype(np.float32) for _ in range(8)]
    scores = ready.score("evaluate", models).about["scores"]
    for score in scores:
        assert len(score) in (0, 6), "counts alone: a sum of losses is an exact number"
        assert all(number == 0 or number >= 5 for number in score[2:4])
    assert len({tuple(score) for score in scores}) <= 9


def test_two_runs_with_one_person_withdrawn_between_tell_nothing_of_them(centre, tmp_path):
    before = centre.prepare()
    file = load_site(centre.made.sites[0])
    kept = Folder(run_folder(centre.desk.place, "run")).kept(file).member
    gone = subject_tag(file.path("tags.key").read_bytes(), kept.people[kept.test.subjects[0]])
    registry = Registry(Database(file.path("consents.db"), metadata))
    registry.withdraw(gone, centre.study.study.id, datetime.now(UTC) - timedelta(hours=1))
    later = Centre(centre.made, tmp_path / "later", run="later")
    after = later.prepare()
    assert after["read"]["told"] == before["read"]["told"], "178 people, then 177, is one person"
    first, second = (
        set(group) for group in json.loads(file.path("athens.ledger").read_text())["groups"]["sums"]
    )
    assert gone not in second
    assert len(first ^ second) >= 5, "who is dealt where is drawn anew, so no subtraction leaves one person"


def test_who_leaves_in_the_middle_of_a_run_silences_the_evaluator_and_not_the_learner(ready):
    """The scores of one model with a person and without them differ by that person."""
    start = ready.start()
    before = ready.train(0, start)
    assert len(before.about["score"]) == 6
    file = load_site(ready.made.sites[0])
    kept = Folder(run_folder(ready.desk.place, "run")).kept(file).member
    registry = Registry(Database(file.path("consents.db"), metadata))
    for number, subject in enumerate(kept.rows.validation.subjects[:2]):
        gone = subject_tag(file.path("tags.key").read_bytes(), kept.people[subject])
        registry.withdraw(gone, ready.study.study.id, datetime.now(UTC) - timedelta(hours=1))
        after = ready.train(number + 1, start + np.float32(0.01 * (number + 1)))
        assert after.reason is None, "training goes on without them"
        assert not after.about["score"]
        assert after.about["examples"] == before.about["examples"]
        (score,) = ready.score("evaluate", [start + np.float32(0.1 * (number + 1))], f"{number}").about[
            "scores"
        ]
        assert not score


def test_what_was_told_of_a_group_is_told_again_of_it_or_of_one_that_differs_by_enough(tmp_path):
    ledger = Ledger(tmp_path / "ledger", lambda person: f"tag {person}", 5)
    people = {str(i) for i in range(20)}
    assert ledger.may_tell("scores", people)
    for gone in range(1, 5):
        assert not ledger.may_tell("scores", {str(i) for i in range(gone, 20)})
    assert ledger.may_tell("scores", {str(i) for i in range(5, 20)})
    assert not ledger.may_tell("scores", {str(i) for i in range(6, 20)}), "also by what was told since"
    assert not ledger.may_tell("scores", {"1", "2", "3"}), "fewer than the smallest count"
    again = Ledger(tmp_path / "ledger", lambda person: f"tag {person}", 5)
    assert again.may_tell("scores", people)
    assert [again.steady("rows", number) for number in (20, 19, 16, 15, 19)] == [20, 20, 20, 15, 15]
    assert [again.spend("study", task, 2) for task in ("a", "b", "a", "c")] == [True, True, True, False]


def test_a_ledger_holds_tags_and_numbers_and_nobody(ready):
    file = load_site(ready.made.sites[0])
    text = file.path("athens.ledger").read_text()
    ids = [
        line.split('"id":"')[1].split('"')[0] for line in file.path("Patient.ndjson").read_text().splitlines()
    ]
    assert not [each for each in ids if f'"{each}"' in text]
    assert file.path("athens.ledger").stat().st_mode & 0o077 == 0


def test_refusals_are_counted_at_the_site(ready):
    ready.train(0, ready.start(), batch_size=1)
    assert Notes("run", run_folder(ready.desk.place, "run") / "policy").refusals == 1
