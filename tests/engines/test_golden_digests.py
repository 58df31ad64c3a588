"""Golden digests: every strategy with every type of codec, to detect changes of the controller's arithmetic.

Training here uses only single additions and multiplications, which give the same bits on every processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from abaton.codecs import parse_codec
from abaton.controller import STRATEGIES, Strategy, TrainSettings, community_model
from abaton.engines import MachineProfile, RunLoop, VirtualEngine
from abaton.layout import Layout, Tensor, TensorRole, Vector
from abaton.learners import Learner
from abaton.metrics import ModelScore
from abaton.models import Examples, Model, TrainingPlan, TrainingResult
from abaton.store import Journal, Store, content_digest

CODECS = ("raw", "ecdq(bits=2)", "error_feedback | stc(sparsity=0.1)")
SIZE = 1024


class PullingModel(Model):
    """Model that moves a quarter of the way towards a site's values in each epoch."""

    layout = Layout([Tensor("weight", (32, 31), TensorRole.DENSE), Tensor("bias", (32,), TensorRole.BIAS)])

    def initial(self, seed: int) -> Vector:
        return self.layout.zeros()

    def epochs(self, vector: Vector, data: Examples, plan: TrainingPlan) -> Iterator[TrainingResult]:
        steps = 0
        while True:
            steps += -(-len(data) // plan.settings.batch_size)
            vector = vector + np.float32(0.25) * (data.x[0] - vector)
            yield TrainingResult(vector, steps, float(abs(data.x[0, 0] - vector[0])))

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> ModelScore:
        probabilities = np.zeros((len(data), 2))
        probabilities[:, 1] = data.x[:, 0] * vector[0]
        return ModelScore(float(abs(data.x[0, 0] - vector[0])), probabilities)


def sites() -> dict[str, Examples]:
    examples = {}
    for i, name in enumerate(("athens", "kos", "pergamon", "rhodes")):
        rows = 12 + 7 * i
        # Pseudo-random sixteenths, independent of the generator of a NumPy version.
        values = (np.arange(rows * SIZE) * (2 * i + 37) % 101 - 50) / 16
        labels = np.arange(rows) * (i + 3) % 5 % 2
        examples[name] = Examples(values.reshape(rows, SIZE).astype(np.float32), labels)
    return examples


def digest(store: Store, strategy_name: str, spec: str) -> str:
    """One digest of all versions of a run."""
    model, codec, settings = PullingModel(), parse_codec(spec), TrainSettings(epochs=3, batch_size=8)
    strategy = Strategy(
        **{"learners": 4, "rounds": 12, "training": settings, "seed": 5, **STRATEGIES[strategy_name]}
    )
    learners = {name: Learner(name, model, data, codec, 5, data) for name, data in sites().items()}
    profiles = {
        "athens": MachineProfile(speed=40.0, group="fast"),
        "kos": MachineProfile(speed=15.0, dropout_probability=0.2),
        "pergamon": MachineProfile(latency=0.5, leaves_at=2.0),
        "rhodes": MachineProfile(speed=25.0, bandwidth=20000.0),
    }
    journal = Journal(store, "run")
    engine = VirtualEngine(learners, profiles, store_payload=journal.payloads.put, seed=5)
    community = community_model(strategy, model.layout, codec, model.initial(5))
    RunLoop(strategy, community, engine, journal).run()
    versions = store.models("run")
    assert len(versions) > 3
    return content_digest("\n".join(version.digest for version in versions).encode())[:16]


GOLDEN = {
    ("SyncFedAvg", "raw"): "97ba5357242088ba",
    ("SyncFedAvg", "ecdq(bits=2)"): "5b6137ec33573399",
    ("SyncFedAvg", "error_feedback | stc(sparsity=0.1)"): "827c414fd009ad6a",
    ("SyncDVW", "raw"): "d7eac1e488eac2db",
    ("SyncDVW", "ecdq(bits=2)"): "f64b886e8cb24bf1",
    ("SyncDVW", "error_feedback | stc(sparsity=0.1)"): "d6ba531ebf0760cb",
    ("AsyncFedAvg", "raw"): "28cfc0ca55420e18",
    ("AsyncFedAvg", "ecdq(bits=2)"): "a3bec6e23969cf04",
    ("AsyncFedAvg", "error_feedback | stc(sparsity=0.1)"): "f975e1671c9d6413",
    ("FedAsync", "raw"): "c75bfe89123b1502",
    ("FedAsync", "ecdq(bits=2)"): "e8033dafbf9be398",
    ("FedAsync", "error_feedback | stc(sparsity=0.1)"): "5a9c6d970baf7d82",
    ("AsyncDVW(na)", "raw"): "80c92b6b202ec31e",
    ("AsyncDVW(na)", "ecdq(bits=2)"): "95ba84859e3f0ee9",
    ("AsyncDVW(na)", "error_feedback | stc(sparsity=0.1)"): "f5faa4ddd244f0e0",
    ("AsyncDVW(a)", "raw"): "eaac1673b1bb7759",
    ("AsyncDVW(a)", "ecdq(bits=2)"): "6b4a1de1b06fc3b8",
    ("AsyncDVW(a)", "error_feedback | stc(sparsity=0.1)"): "7346b5eec1c04228",
    ("FedBuff", "raw"): "2bd15eae01dc47c4",
    ("FedBuff", "ecdq(bits=2)"): "48955b7590acb511",
    ("FedBuff", "error_feedback | stc(sparsity=0.1)"): "fdae2c7d3e69fb32",
    ("FedBuffDVW", "raw"): "80ae38942c09296c",
    ("FedBuffDVW", "ecdq(bits=2)"): "2ff818249482f598",
    ("FedBuffDVW", "error_feedback | stc(sparsity=0.1)"): "9ef8379716103191",
}


@pytest.mark.parametrize("spec", CODECS)
@pytest.mark.parametrize("strategy_name", STRATEGIES)
def test_every_strategy_and_codec_gives_the_golden_versions(tmp_path, strategy_name, spec):
    with Store(tmp_path) as store:
        assert digest(store, strategy_name, spec) == GOLDEN[strategy_name, spec]
