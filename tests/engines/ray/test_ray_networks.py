"""Frozen tensors and normalisation statistics on a real Ray cluster: the same models and predictions as here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.federation.network_examples import examples, federation

from abaton.store import Store

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.mark.parametrize("network", ["frozen", "adapter", "batch norm"])
def test_predictions_are_those_of_the_workers(network, tmp_path):
    test = examples(network, 9, 400)
    with Store(tmp_path / "store") as store:
        virtual = federation(network).run("virtual", store=store)
        on_ray = federation(network).run("ray", store=store, engine="ray")
        assert on_ray.row.result["digest"] == virtual.row.result["digest"]
        expected = on_ray.predict(test.x)
        assert np.array_equal(expected, virtual.predict(test.x))
        native = on_ray.model(torch.from_numpy(test.x)).softmax(1).detach().numpy()
        np.testing.assert_allclose(native, expected, atol=1e-6)
        assert np.mean(expected.argmax(1) == test.y) == pytest.approx(on_ray.metrics["accuracy"], abs=1e-9)
