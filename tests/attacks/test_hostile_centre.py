"""A hostile centre against a site: each request disclosed rows or small counts before there was a policy."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from tests.attacks.conftest import Centre

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import TrainSettings
from abaton.engines.flower.site_worker import run_folder
from abaton.governance import ConsentRegistry, metadata
from abaton.lab.reconstruction_attack import class_difference, count_reconstructed, read_from_gradient
from abaton.learners import Learner
from abaton.models import Examples, logistic
from abaton.site import ReleaseLog, load_site, subject_pseudonym
from abaton.store import Database
from abaton.study_run.messages import message_body
from abaton.study_run.outbound_preview import _single_site_recoding
from abaton.study_run.site_run_state import SiteRunFolder, SiteRunState
from abaton.training import round_key

REFUSED = "refused"


def reasons(reply) -> set[str]:
    """Return the refusal codes of all models."""
    if reply.reason is not None:
        return {reply.reason}
    return {counts if isinstance(counts, str) else "released" for counts in reply.header["counts_list"]}


def test_splits_by_other_seeds_are_refused(centre):
    """Sums over as many random halves as subjects are as many equations as unknowns."""
    centre.prepare(seed=1)
    for seed in range(2, 6):
        other = Centre(centre.demo, centre.folder, run=f"run {seed}")
        ingest = other.ask("ingest")
        assert not ingest["problem"]
        split = other.ask("split", **{**centre.body, "seed": seed})
        assert "sums" not in split
        assert "another seed" in split["problem"]


def test_a_scaling_that_singles_out_values_is_refused(centre):
    ingest = centre.ask("ingest")
    body = {"seed": 1, **_single_site_recoding(centre.study, ingest)}
    sums = centre.ask("split", **body)["sums"]
    name = next(
        name
        for name, column_sums in sums["columns"].items()
        if column_sums[0] and column_sums[1] != column_sums[2]
    )
    count, total, _ = sums["columns"][name]
    mean = total / count
    many = 10**9
    narrow = {**sums["columns"], name: [many, many * (mean + 3), many * (mean + 3) ** 2 * (1 + 1e-12)]}
    reply = centre.ask("scale", **body, scale={"columns": narrow, "label": [0.0, 1.0]})
    assert reply == {"reason": REFUSED}


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
        {"use_validation_data": True},
        {"time_budget_seconds": 0.001},
        {"max_grad_norm": 1e-9},
        {"elapsed_epochs": 10**9},
    ],
    ids=repr,
)
def test_settings_that_disclose_single_rows_are_refused(ready, settings):
    reply = ready.train(0, ready.start(), **settings)
    assert reply.reason == REFUSED
    assert not reply.attachments


def test_a_model_that_singles_out_a_row_is_refused(ready):
    """Weights so large that all rows but one are predicted with certainty leave that row in the update."""
    start = ready.start()
    assert ready.train(0, np.full_like(start, 1e6)).reason == REFUSED, (
        "the first model is determined by the seed"
    )
    assert ready.train(0, start).reason is None
    assert ready.train(1, np.full_like(start, 1e6)).reason == REFUSED
    assert ready.train(1, start + np.float32(0.01)).reason is None


def test_without_a_policy_one_step_on_one_row_discloses_the_row():
    """What the settings above disclose: the change of the weights divided by that of the bias."""
    rng = np.random.default_rng(0)
    data = Examples(rng.normal(size=(60, 7)).astype(np.float32), rng.integers(0, 2, 60))
    learner = Learner("site", logistic(features=7, classes=2), data, parse_codec("raw"), 1)
    trained = learner.train("task", 0, learner.model.initial(1), TrainSettings(steps=1, batch_size=1))
    update = learner.codec.decode(trained.payload, learner.model.layout, CodecKey(round_key(1, 0), "site"))
    reconstructed = read_from_gradient(class_difference(update))
    assert count_reconstructed(data.x.astype(np.float64), reconstructed, np.zeros(7, bool)) == 1


def test_a_model_with_one_effective_example_gives_no_update(centre, monkeypatch):
    """Close to the last model, so that its distance is no reason, and right about all subjects but one."""
    centre.prepare()
    monkeypatch.setattr(Learner, "effective_examples", lambda self, model, settings: 1.5)
    assert centre.train(0, centre.start()).reason == REFUSED
    monkeypatch.setattr(Learner, "effective_examples", lambda self, model, settings: 9.0)
    assert centre.train(0, centre.start()).reason is None


def test_the_order_of_rows_depends_on_a_site_secret(centre):
    """Two sites with the same rows, seed, name, task and model, and different secrets, send two updates."""
    centre.prepare()
    first = centre.train(0, centre.start()).attachments["update"]
    assert centre.train(0, centre.start()).attachments["update"] == first
    other = Centre(centre.demo, centre.folder / "other")
    other.prepare()
    assert other.train(0, other.start()).attachments["update"] != first


def test_no_version_is_trained_twice_and_none_after_the_last(ready):
    """Two updates of one version with different orders are two sets of equations about the same rows."""
    start = ready.start()
    first = ready.train(0, start, task_id="a")
    assert ready.train(0, start, task_id="b").reason == REFUSED
    again = ready.train(0, start, task_id="a")
    assert again.attachments["update"] == first.attachments["update"], (
        "what was lost is sent again, to the bit"
    )
    assert ready.train(16, start, task_id="c").reason == REFUSED
    assert ready.train(-1, start, task_id="d").reason == REFUSED


@pytest.mark.parametrize("message_type", ["evaluate", "evaluate_test"])
def test_crafted_models_are_not_evaluated(ready, message_type):
    """The counts of a model that uses one column disclose the values of that column."""
    ready.train(0, ready.start())
    crafted = []
    for index in range(3):
        model = np.zeros_like(ready.start())
        model[index] = 1e4
        crafted.append(model)
    assert reasons(ready.score(message_type, crafted)) == {REFUSED}


def test_the_number_of_test_evaluations_is_limited(ready):
    ready.train(0, ready.start())
    rng = np.random.default_rng(0)
    models = [ready.start() + rng.normal(0, 1e-3, len(ready.start())).astype(np.float32) for _ in range(66)]
    assert ready.score("evaluate_test", models[:64]).reason is None
    assert ready.score("evaluate_test", models[64:]).reason == REFUSED
    assert ready.score("evaluate_test", models[:2]).reason is None, "an earlier release may be repeated"


def test_groups_below_the_minimum_cell_count_are_not_evaluated(ready):
    """Five hundred bins of the predicted probability disclosed each subject's value with the outcome."""
    ready.train(0, ready.start())
    (groups,) = message_body(ready.score("evaluate_test", [ready.start() + np.float32(0.05)]))["counts"]
    counts = [number for _, _, cases in groups for rows in cases for row in rows for number in row[1:]]
    assert counts
    assert all(number == 0 or number >= 5 for number in counts)


def test_scores_have_no_loss_and_small_classes_are_suppressed(ready):
    ready.train(0, ready.start())
    rng = np.random.default_rng(0)
    models = [ready.start() + rng.normal(0, 0.1, len(ready.start())).astype(np.float32) for _ in range(8)]
    scores = ready.score("evaluate", models).header["counts_list"]
    for score in scores:
        assert len(score) in (0, 6), "counts only: a sum of losses is an exact value"
        assert all(number == 0 or number >= 5 for number in score[2:4])


def test_two_runs_around_a_withdrawal_reveal_nothing(centre, tmp_path):
    with centre.demo.sites[0].open("a") as text:
        text.write('\n[policy]\ndisclosure = "noisy"\n')
    centre = Centre(centre.demo, tmp_path / "earlier")
    before = centre.prepare()
    file = load_site(centre.demo.sites[0])
    site = SiteRunFolder(run_folder(centre.service.worker_settings, "run")).load_preparation(file).site
    pseudonym = subject_pseudonym(
        file.path("registry.key").read_bytes(), site.patient_ids[site.test.subjects[0]]
    )
    registry = ConsentRegistry(Database(file.path("consents.db"), metadata))
    registry.withdraw(pseudonym, centre.study.study.id, datetime.now(UTC) - timedelta(hours=1))
    later = Centre(centre.demo, tmp_path / "later", run="later")
    after = later.prepare()
    assert after["ingest"]["cohort_report"] == before["ingest"]["cohort_report"], (
        "178 people, then 177, is one person"
    )
    first, second = (
        set(group) for group in json.loads(file.path("athens.releases").read_text())["groups"]["sums"]
    )
    assert pseudonym not in second
    assert len(first ^ second) >= 5, "subjects are split again, so differencing leaves no single subject"


def test_a_release_is_repeated_for_the_same_group_or_one_that_differs_by_enough(tmp_path):
    release_log = ReleaseLog(tmp_path / "ledger", lambda person: f"tag {person}", 5)
    patients = {str(i) for i in range(20)}
    assert release_log.may_release("validation", patients)
    for first in range(1, 5):
        assert not release_log.may_release("validation", {str(i) for i in range(first, 20)})
    assert release_log.may_release("validation", {str(i) for i in range(5, 20)})
    assert not release_log.may_release("validation", {str(i) for i in range(6, 20)}), (
        "also compared with later releases"
    )
    assert not release_log.may_release("validation", {"1", "2", "3"}), "fewer than min_cell_count"
    reopened = ReleaseLog(tmp_path / "ledger", lambda person: f"tag {person}", 5)
    assert reopened.may_release("validation", patients)
    assert [reopened.spend_budget("study", task, 2) for task in ("a", "b", "a", "c")] == [
        True,
        True,
        True,
        False,
    ]


def test_the_release_log_has_pseudonyms_and_counts_only(ready):
    file = load_site(ready.demo.sites[0])
    text = file.path("athens.releases").read_text()
    ids = [
        line.split('"id":"')[1].split('"')[0] for line in file.path("Patient.ndjson").read_text().splitlines()
    ]
    assert not [patient_id for patient_id in ids if f'"{patient_id}"' in text]
    assert file.path("athens.releases").stat().st_mode & 0o077 == 0


def test_refusals_are_counted_at_the_site(ready):
    ready.train(0, ready.start(), batch_size=1)
    assert SiteRunState("run", run_folder(ready.service.worker_settings, "run") / "policy").refusal_count == 1
