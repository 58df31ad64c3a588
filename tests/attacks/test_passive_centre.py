"""A centre that watches updates: it rebuilds rows where it knows their order, and not at a site with its own.

`abaton bench reconstruction` measures the same on the heart study and the demonstration.
"""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import Key, parse
from abaton.controller import TrainSettings
from abaton.lab.reconstruction_attack import (
    Overheard,
    batches_of,
    difference,
    guesses,
    matched,
    read_off,
    rebuild,
    singling_out,
    with_difference,
)
from abaton.lab.synthetic_hospitals import study_text
from abaton.learners import Examples, Learner, logistic
from abaton.site import PolicyPart
from abaton.study import study_from_toml
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.task_contract import Contract
from abaton.training import round_key

COLUMNS, SEED = 6, 1
FLAGS = np.arange(COLUMNS) >= 4


def people(rows: int) -> Examples:
    """Invented rows: four measured columns and two flags."""
    rng = np.random.default_rng(rows)
    x = np.where(FLAGS, rng.random((rows, COLUMNS)) < 0.4, rng.normal(size=(rows, COLUMNS))).astype(
        np.float32
    )
    return Examples(x, (x[:, 0] + x[:, 4] + rng.normal(size=rows) > 0.2).astype(np.int64))


def rows_found(data: Examples, settings: TrainSettings, versions: int, *, own_order: bool) -> int:
    """How many rows a centre rebuilds that sends one model again and again."""
    model = logistic(features=COLUMNS, classes=2)
    learner = Learner("site", model, data, parse("raw"), SEED, secret=b"the site's own")
    learner.own_order = own_order
    start, heard = model.initial(SEED), []
    for version in range(versions):
        task = f"{version}.site"
        payload = learner.train(task, version, start, settings).payload
        update = learner.codec.decode(payload, model.layout, Key(round_key(SEED, version), "site"))
        known = batches_of("site", model, SEED, task, len(data), settings)
        heard.append(Overheard.of(start, update, known))
    return matched(data.x.astype(np.float64), rebuild(heard, len(data), settings), FLAGS)


@pytest.mark.parametrize(("rows", "batch", "versions"), [(5, 2, 15), (8, 3, 20), (12, 5, 24), (60, 16, 80)])
def test_who_knows_the_order_of_rows_rebuilds_them_all_and_who_does_not_guesses(rows, batch, versions):
    """Before, rows were shuffled by the run's seed, which the centre knows: of sixty rows eighty updates told all."""
    data = people(rows)
    settings = TrainSettings(epochs=2, batch_size=batch, learning_rate=0.01, momentum=0.5)
    assert rows_found(data, settings, versions, own_order=False) == rows, "the attack works where it must"
    x = data.x.astype(np.float64)
    guess = matched(x, guesses(x.mean(0), x.std(0), FLAGS, rows, np.random.default_rng(0)), FLAGS)
    assert rows_found(data, settings, versions, own_order=True) <= guess <= 1


def test_learners_of_studies_shuffle_by_their_sites_secret():
    assert ConsentedLearner.own_order
    assert not Learner.own_order


@pytest.mark.parametrize(
    ("learning", "small"),
    [
        ({}, False),
        ({"policy": "SyncFedAvg"}, False),
        ({"policy": "SyncDVW"}, False),
        ({"policy": "AsyncFedAvg", "privacy": {"epsilon": 50, "delta": 1e-3, "noise": 5}}, False),
        ({"policy": "SyncFedAvg", "privacy": {"epsilon": 50, "delta": 1e-3, "noise": 5}}, True),
    ],
)
def test_small_sites_take_part_only_in_rounds_without_scores_under_a_budget(learning, small):
    pytest.importorskip("dp_accounting")
    study = study_from_toml(study_text())
    content = study.model_dump(mode="json", exclude_none=True)
    content["learning"] |= learning
    made = type(study).model_validate(content)
    contract = Contract(made)
    assert contract.small_sites is small
    assert PolicyPart().fewest_rows == 50
    if small:
        assert 0 < contract.updates <= made.learning.rounds


def test_an_update_from_a_model_that_is_wrong_about_one_row_alone_is_that_row():
    """The positive control of `test_a_model_that_leaves_one_row_to_learn_from_gives_no_update`."""
    data = people(60)
    data = Examples(data.x, (data.x[:, 0] > 0).astype(np.int64))
    model = logistic(features=COLUMNS, classes=2)
    learner = Learner("site", model, data, parse("raw"), SEED, secret=b"the site's own")
    learner.own_order = True
    settings, start, found = (
        TrainSettings(epochs=2, batch_size=16, learning_rate=0.01, momentum=0.5),
        model.initial(SEED),
        [],
    )
    for wanted in singling_out(data.x.astype(np.float64), data.y, sharp=30.0):
        crafted = with_difference(start, wanted)
        assert learner.resting(crafted, settings) < 2
        payload = learner.train("0.site", 0, crafted, settings).payload
        update = learner.codec.decode(payload, model.layout, Key(round_key(SEED, 0), "site"))
        found.append(read_off(difference(update)))
    assert len(found) > 3
    assert matched(data.x.astype(np.float64), np.concatenate(found), FLAGS) == len(found)
    assert learner.resting(start, settings) > 30, "an honest model has something to learn from everybody"
