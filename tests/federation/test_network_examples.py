"""Frozen tensors, statistics of normalisation layers and tied weights are the same wherever a model is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation import network_examples
from tests.federation.network_examples import NETWORKS, examples, federation

from abaton.federation import Run
from abaton.metrics.predictions import score_metrics
from abaton.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run all networks here, then start another process that uses these runs and repeats them."""
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    with Store(here) as store:
        own = {name: federation(name).run(name.replace(" ", "-"), store=store) for name in NETWORKS}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        command = [sys.executable, "-m", network_examples.__name__, str(here), str(there)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        with Store(there) as other_store, np.load(there / "predictions.npz") as predictions:
            yield own, other_store, dict(predictions)


@pytest.mark.parametrize("network", NETWORKS)
def test_predictions_are_equal_in_a_second_process(runs, network):
    own, other_store, predictions = runs
    run, test = own[network], examples(network, 9, 400)
    assert run.metrics["accuracy"] > 0.7, "a model that has not learnt would prove nothing"
    expected = run.predict(test.x)
    assert np.array_equal(predictions[f"{network}/predict"], expected)
    np.testing.assert_allclose(predictions[f"{network}/model"], expected, atol=1e-6)
    native = run.model(torch.from_numpy(test.x)).softmax(1).detach().numpy()
    np.testing.assert_allclose(native, expected, atol=1e-6)
    assert np.mean(native.argmax(1) == test.y) == pytest.approx(run.metrics["accuracy"], abs=1e-9)

    repeated = Run(other_store, run.name)
    assert [row.digest for row in repeated.versions] == [row.digest for row in run.versions]
    local = Run(other_store, f"{run.name}-local", network_examples.model(network))
    assert np.array_equal(local.predict(test.x), predictions[f"{network}/local"])
    reported = local.metrics
    score = local.model_definition.score(local.vector(), test)
    assert score_metrics(score, test.y)["auroc"] == pytest.approx(reported["auroc"])
