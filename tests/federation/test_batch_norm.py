"""Running statistics of BatchNorm are averaged over sites, sent without loss, and used by evaluation and export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation.network_examples import examples, federation, model, normalised
from torch import nn

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import STRATEGIES, ServerAdam, ServerMomentum, Strategy, TrainSettings
from abaton.deployment import EXPORT_FORMATS, export_model, load_model, to_portable_model
from abaton.deployment.sklearn_export import to_estimator
from abaton.errors import SettingsError
from abaton.federation import Federation, RunMetadata
from abaton.layout import TensorRole
from abaton.learners import Learner, PersonalLayersModel
from abaton.models import Examples, TorchModel
from abaton.store import Store

TRAINING = TrainSettings(epochs=2, batch_size=16, learning_rate=0.1)


def metrics(network: str, folder: Path, **settings: object) -> dict[str, float]:
    """Return the metrics of a run on fresh rows, after comparing them with those of `run.model`."""
    data = [*(examples(network, i, 240 + i) for i in range(4)), examples(network, 1001, 2000)]
    # In other units than the initial statistics, so that these would be wrong.
    *rows, test = (Examples(4 * part.x, part.y) for part in data)
    sites = {f"site{i}": examples for i, examples in enumerate(rows)}
    with Store(folder / network) as store:
        run = Federation(model(network), sites, test=test, **settings).run("run", store=store)
        classes = run.model(torch.from_numpy(test.x)).argmax(1).numpy()
        assert np.mean(classes == test.y) == pytest.approx(run.metrics["accuracy"], abs=1e-3)
        return run.metrics


def strategy(name: str = "SyncFedAvg", rounds: int = 20, **settings: object) -> Strategy:
    return Strategy(rounds=rounds, training=TRAINING, **STRATEGIES[name], **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": strategy()},
        {"strategy": strategy(), "codec": "stc(sparsity=0.1)", "downlink": "stc(sparsity=0.1)"},
        {"strategy": strategy(), "codec": "quicfl(bits=2)"},
        {"strategy": strategy("AsyncDVW(na)", 80), "codec": "error_feedback | stc(sparsity=0.1)"},
        {"strategy": strategy("FedBuff", 80)},
        {"strategy": strategy("FedAsync", 80)},
        {"strategy": strategy(server_optimiser=ServerMomentum())},
        {"strategy": strategy(server_optimiser=ServerAdam(rate=0.1))},
    ],
    ids=["fedavg", "stc", "quicfl", "dvw", "fedbuff", "fedasync", "momentum", "fedadam"],
)
def test_batch_norm_is_as_good_as_group_norm(tmp_path, settings):
    batch_norm = metrics("batch norm", tmp_path, **settings)
    group_norm = metrics("group norm", tmp_path, **settings)
    assert group_norm["auroc"] > 0.96
    assert batch_norm["auroc"] > group_norm["auroc"] - 0.01
    assert batch_norm["loss"] < group_norm["loss"] + 0.03


def test_a_round_averages_the_statistics_that_pytorch_computes(tmp_path):
    """Each site trains plain PyTorch from the common start; the community has the mean, weighted by examples."""
    sites = {"one": examples("batch norm", 1, 96), "two": examples("batch norm", 2, 32)}
    network = model("batch norm")
    training = TrainSettings(epochs=1, batch_size=1000, learning_rate=0.1)
    start = network.layout.views(network.initial(4))
    expected: dict[str, list[np.ndarray]] = {"1.running_mean": [], "1.running_var": []}
    for data in sites.values():
        module = normalised(nn.BatchNorm1d(16))
        module.load_state_dict({n: torch.tensor(v) for n, v in start.items()}, strict=False)
        module.train()(torch.from_numpy(data.x))
        for name, values in expected.items():
            values.append(module.state_dict()[name].numpy())
    with Store(tmp_path) as store:
        one_round = Strategy(rounds=1, training=training, seed=4)
        run = Federation(network, sites, one_round).run("run", store=store)
        community = network.layout.views(run.vector())
    weights = [row_weight / 128 for row_weight in (96, 32)]
    for name, values in expected.items():
        mean = sum(w * v for w, v in zip(weights, values, strict=True))
        assert community[name] == pytest.approx(mean, abs=1e-5), name


def test_noise_for_differential_privacy_is_refused(tmp_path):
    codec = "clip(norm=1.0) | gaussian_noise(std=1.0) | raw"
    with pytest.raises(SettingsError, match=r"'1\.running_mean' would be sent without noise"):
        federation("batch norm", codec=codec)
    run = federation("frozen", codec=codec).run("run", store=tmp_path)
    frozen = [run.model_definition.layout.views(run.vector(v))["0.weight"] for v in (0, 12)]
    assert np.array_equal(*frozen)


def test_fedbn_leaves_normalisation_layers_at_the_sites():
    """The sites measure in different units, so that no common statistics fit."""
    full_model = model("batch norm")
    fedbn = PersonalLayersModel(full_model, ["role:norm", "role:statistic"])
    assert [t.name for t in fedbn.layout] == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert {t.role for t in fedbn.personal} == {TensorRole.NORM, TensorRole.STATISTIC}
    accuracy = {}
    for network in (full_model, fedbn):
        learners, tests = {}, {}
        for i in range(3):
            data, test = (examples("batch norm", 4 * (i + k), 200) for k in (0, 10))
            unit, name = np.float32(20.0**i), f"site{i}"
            learners[name] = Learner(name, network, Examples(data.x * unit, data.y), parse_codec("raw"), 3)
            tests[name] = Examples(test.x * unit, test.y)
        vector = network.initial(3)
        for task in range(15):
            updates = []
            for name, learner in learners.items():
                payload = learner.train(
                    f"{task}", task, vector, replace(TRAINING, learning_rate=0.02)
                ).payload
                key = CodecKey(b"raw needs no key", name)
                updates.append(learner.codec.decode(payload, network.layout, key))
            vector = vector + np.mean(updates, axis=0, dtype=np.float32)
        states = {
            name: {key.removeprefix("model/"): v for key, v in learner.local_state.items()}
            for name, learner in learners.items()
        }
        predictions = {n: network.score(vector, test, states[n]).predictions for n, test in tests.items()}
        accuracy[network] = np.mean([np.mean(p.argmax(1) == tests[n].y) for n, p in predictions.items()])
    assert accuracy[fedbn] > 0.85
    assert accuracy[fedbn] > accuracy[full_model] + 0.05


COLUMNS = tuple("abcdef")


@pytest.mark.parametrize("suffix", EXPORT_FORMATS)
def test_exported_files_contain_the_normalisation(tmp_path, suffix):
    network = TorchModel(
        lambda: nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2), nn.BatchNorm1d(2)
        )
    )  # fmt: skip
    deployment = {"columns": COLUMNS, "classes": ("no", "yes"), "label": (0.0, 1.0)}
    deployment["scale"] = {name: (0.4, 1.5, True) for name in COLUMNS}
    metadata = RunMetadata(deployment=deployment, study_facts={"study": {"id": "s", "hash": "h"}})
    sites = {f"site{i}": examples("batch norm", i, 90) for i in range(3)}
    x = examples("batch norm", 9, 100).x.astype(np.float64)
    x[::7, 2] = np.nan
    with Store(tmp_path / "store") as store:
        run = Federation(network, sites, strategy(rounds=5), metadata=metadata).run("run", store=store)
        expected, out = run.predict(x), tmp_path / f"model{suffix}"
        assert np.ptp(expected[:, 1]) > 0.2
        np.testing.assert_allclose(to_portable_model(run).predict(x), expected, atol=1e-5)
        if suffix == ".skops":
            pytest.importorskip("skops")
            predictions = to_estimator(to_portable_model(run)).predict_proba(x)
        elif suffix == ".onnx":
            pytest.importorskip("onnx")
            runtime = pytest.importorskip("onnxruntime")
            export_model(run, out)
            (predictions,) = runtime.InferenceSession(str(out)).run(None, {"x": x})
        else:
            export_model(run, out)
            predictions = load_model(out).predict(x)
    np.testing.assert_allclose(predictions, expected, atol=1e-5)
