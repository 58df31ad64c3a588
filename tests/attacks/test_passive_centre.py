"""A centre that observes updates: it reconstructs rows if it knows their order, and not with a secret order.

`abaton bench reconstruction` measures the same on the heart study and the demonstration.
"""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import TrainSettings
from abaton.lab.reconstruction_attack import (
    ObservedUpdate,
    batches_from_seed,
    class_difference,
    count_reconstructed,
    random_guesses,
    read_from_gradient,
    reconstruct_rows,
    singling_out_models,
    with_class_difference,
)
from abaton.lab.synthetic_hospitals import study_text
from abaton.learners import Learner
from abaton.models import Examples, logistic
from abaton.site import SitePolicySection
from abaton.study import study_from_toml
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.task_contract import TaskContract
from abaton.training import round_key

COLUMNS, SEED = 6, 1
FLAGS = np.arange(COLUMNS) >= 4


def synthetic_examples(rows: int) -> Examples:
    """Return synthetic rows: four numeric columns and two flags."""
    rng = np.random.default_rng(rows)
    x = np.where(FLAGS, rng.random((rows, COLUMNS)) < 0.4, rng.normal(size=(rows, COLUMNS))).astype(
        np.float32
    )
    return Examples(x, (x[:, 0] + x[:, 4] + rng.normal(size=rows) > 0.2).astype(np.int64))


def rows_found(data: Examples, settings: TrainSettings, versions: int, *, has_secret_order: bool) -> int:
    """Return how many rows a centre reconstructs by sending one model repeatedly."""
    model = logistic(features=COLUMNS, classes=2)
    learner = Learner("site", model, data, parse_codec("raw"), SEED, secret=b"the site's own")
    learner.has_secret_order = has_secret_order
    start, observed = model.initial(SEED), []
    for version in range(versions):
        task = f"{version}.site"
        payload = learner.train(task, version, start, settings).payload
        update = learner.codec.decode(payload, model.layout, CodecKey(round_key(SEED, version), "site"))
        known = batches_from_seed("site", model, SEED, task, len(data), settings)
        observed.append(ObservedUpdate.of(start, update, known))
    return count_reconstructed(
        data.x.astype(np.float64), reconstruct_rows(observed, len(data), settings), FLAGS
    )


@pytest.mark.parametrize(("rows", "batch", "versions"), [(5, 2, 15), (8, 3, 20), (12, 5, 24), (60, 16, 80)])
def test_rows_are_reconstructed_only_with_a_known_order(rows, batch, versions):
    """Before, rows were shuffled by the run's seed, which the centre knows: 80 updates disclosed all of 60 rows."""
    data = synthetic_examples(rows)
    settings = TrainSettings(epochs=2, batch_size=batch, learning_rate=0.01, momentum=0.5)
    assert rows_found(data, settings, versions, has_secret_order=False) == rows, (
        "the attack works where it must"
    )
    x = data.x.astype(np.float64)
    guess = count_reconstructed(
        x, random_guesses(x.mean(0), x.std(0), FLAGS, rows, np.random.default_rng(0)), FLAGS
    )
    assert rows_found(data, settings, versions, has_secret_order=True) <= guess <= 1


def test_study_learners_shuffle_by_a_site_secret():
    assert ConsentedLearner.has_secret_order
    assert not Learner.has_secret_order


@pytest.mark.parametrize(
    ("learning", "small"),
    [
        ({}, False),
        ({"strategy": "SyncFedAvg"}, False),
        ({"strategy": "SyncDVW"}, False),
        (
            {"strategy": "AsyncFedAvg", "privacy": {"epsilon": 50, "delta": 1e-3, "noise_multiplier": 5}},
            False,
        ),
        ({"strategy": "SyncFedAvg", "privacy": {"epsilon": 50, "delta": 1e-3, "noise_multiplier": 5}}, True),
    ],
)
def test_small_sites_need_synchronous_rounds_and_a_privacy_budget(learning, small):
    pytest.importorskip("dp_accounting")
    study = study_from_toml(study_text())
    content = study.model_dump(mode="json", exclude_none=True)
    content["learning"] |= learning
    changed = type(study).model_validate(content)
    contract = TaskContract(changed)
    assert contract.may_admit_small_sites is small
    assert SitePolicySection().min_rows == 50
    if small:
        assert 0 < contract.max_updates <= changed.learning.rounds


def test_an_update_with_one_effective_example_discloses_the_row():
    """Positive control of `test_a_model_with_one_effective_example_gives_no_update`."""
    data = synthetic_examples(60)
    data = Examples(data.x, (data.x[:, 0] > 0).astype(np.int64))
    model = logistic(features=COLUMNS, classes=2)
    learner = Learner("site", model, data, parse_codec("raw"), SEED, secret=b"the site's own")
    learner.has_secret_order = True
    settings, start, reconstructed = (
        TrainSettings(epochs=2, batch_size=16, learning_rate=0.01, momentum=0.5),
        model.initial(SEED),
        [],
    )
    for wanted in singling_out_models(data.x.astype(np.float64), data.y, confidence=30.0):
        crafted = with_class_difference(start, wanted)
        assert learner.effective_examples(crafted, settings) < 2
        payload = learner.train("0.site", 0, crafted, settings).payload
        update = learner.codec.decode(payload, model.layout, CodecKey(round_key(SEED, 0), "site"))
        reconstructed.append(read_from_gradient(class_difference(update)))
    assert len(reconstructed) > 3
    assert count_reconstructed(data.x.astype(np.float64), np.concatenate(reconstructed), FLAGS) == len(
        reconstructed
    )
    assert learner.effective_examples(start, settings) > 30, "an honest model has many effective examples"
