"""`abaton compare` on runs that a Python program made: settings, data, bytes in both directions, and their versions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli_runner import abaton

from abaton import Examples, Federation, Strategy, TrainSettings, strategy
from abaton.models import logistic
from abaton.store import Store


def examples(seed: int, rows: int = 60) -> Examples:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    return Examples(x, (x[:, 0] + 0.5 * x[:, 1] > 0).astype(np.int64))


SITES = {"kos": examples(1), "troy": examples(2), "delphi": examples(3)}


def run(folder: Path, name: str, rules: Strategy | None = None, *, sites=SITES, test: int = 9, **settings):
    federation = Federation(
        logistic(features=4), sites, rules or Strategy(rounds=4), test=examples(test), **settings
    )
    return federation.run(name, store=folder)


def compare(folder: Path, *names: str) -> dict:
    done = abaton("compare", *names, "--store", folder, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_settings_of_the_strategy_and_of_training_are_compared(tmp_path):
    run(tmp_path, "one")
    run(
        tmp_path,
        "two",
        Strategy(rounds=4, training=TrainSettings(learning_rate=0.2), robustness="capped"),
        codec="fp16",
    )
    differences = {row["setting"]: row["values"] for row in compare(tmp_path, "one", "two")["differences"]}
    assert differences["training.learning_rate"] == {"one": "0.05", "two": "0.2"}
    assert differences["robustness"] == {"one": "'none'", "two": "'capped'"}
    assert differences["codec"] == {"one": "raw", "two": "fp16"}
    assert "same settings" not in abaton("compare", "one", "two", "--store", tmp_path).stderr


def test_only_equal_runs_have_the_same_settings(tmp_path):
    run(tmp_path, "one")
    run(tmp_path, "two")
    done = abaton("compare", "one", "two", "--store", tmp_path)
    assert "the runs have the same settings, data and versions" in done.stdout + done.stderr
    run(tmp_path, "three", Strategy(rounds=4, training=TrainSettings(momentum=0.5)))
    done = abaton("compare", "one", "three", "--store", tmp_path)
    assert "the same" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test": 8}, "the test examples differ"),
        ({"sites": {**SITES, "troy": examples(7)}}, "the examples of site 'troy' differ"),
        ({"sites": {"kos": SITES["kos"], "troy": SITES["troy"]}}, "only one has the site 'delphi'"),
    ],
)
def test_runs_on_other_data_are_refused(tmp_path, settings, message):
    run(tmp_path, "one")
    run(tmp_path, "two", **settings)
    done = abaton("compare", "one", "two", "--store", tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "same sites and test examples" in done.stderr


def test_another_seed_and_a_held_out_validation_set_are_the_same_data(tmp_path):
    """Digests of the manifest are keyed by the seed, and cover the rows that remain for training."""
    run(tmp_path, "one")
    run(tmp_path, "two", strategy("SyncDVW", rounds=4, seed=5))
    assert [line["run"] for line in compare(tmp_path, "one", "two")["results"]] == ["one", "two"]


def test_bytes_are_counted_in_both_directions(tmp_path):
    full = run(tmp_path, "full").result
    small = run(tmp_path, "small", strategy("SyncDVW", rounds=4), downlink="fp16").result
    assert small["bytes_down"] != full["bytes_down"]
    comparison = compare(tmp_path, "full", "small")
    for line, result in zip(comparison["results"], (full, small), strict=True):
        assert (line["bytes_up"], line["bytes_down"]) == (result["bytes_up"], result["bytes_down"])
        last = comparison["curves"][line["run"]][-1]
        assert last["bytes"] == result["bytes_up"] + result["bytes_down"]
    done = abaton("compare", "full", "small", "--store", tmp_path)
    assert "bytes up" in done.stdout
    assert "bytes down" in done.stdout


def test_every_version_has_its_metrics(tmp_path):
    finished = run(tmp_path, "one", Strategy(rounds=45))
    assert len(finished.versions) == 46
    model = logistic(features=4)
    test = examples(9)
    for row in finished.versions:
        predictions = model.score(finished.vector(row.version), test).predictions
        accuracy = float((predictions.argmax(axis=1) == test.y).mean())
        assert row.metrics["accuracy"] == pytest.approx(accuracy)
    assert finished.metrics == finished.versions[-1].metrics


def test_of_many_versions_a_sample_is_evaluated(tmp_path):
    with Store(tmp_path) as store:
        training = TrainSettings(batch_size=60)
        finished = run(store, "long", strategy("AsyncFedAvg", rounds=1001, training=training))
        evaluated = [row for row in finished.versions if row.metrics]
        assert 15 <= len(evaluated) <= 21
        assert finished.versions[-1].metrics == finished.metrics
