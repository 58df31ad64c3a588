"""Golden digests: every policy with every kind of codec, so that a change of the controller's arithmetic is noticed.

What is trained here needs nothing but single additions and multiplications, which every processor does to the same
bits: the digests may be written down. A change that is wanted changes them, and says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from abaton.codecs import parse
from abaton.controller import POLICIES, Rules, TrainSettings, community_model
from abaton.engines import Driver, Profile, VirtualEngine
from abaton.learners import Examples, Learner, Lesson, Model, Score, Trained
from abaton.store import Journal, Store, digest_of
from abaton.kernels import Layout, Role, Tensor, Vector

CODECS = ("raw", "ecdq(bits=2)", "error_feedback | stc(sparsity=0.1)")
SIZE = 1024


class Pulled(Model):
    """A model that each epoch pulls a quarter of the way towards a site's own numbers."""

    layout = Layout([Tensor("weight", (32, 31), Role.DENSE), Tensor("bias", (32,), Role.BIAS)])

    def initial(self, seed: int) -> Vector:
        return self.layout.zeros()

    def epochs(self, vector: Vector, data: Examples, lesson: Lesson) -> Iterator[Trained]:
        steps = 0
        while True:
            steps += -(-len(data) // lesson.settings.batch_size)
            vector = vector + np.float32(0.25) * (data.x[0] - vector)
            yield Trained(vector, steps, float(abs(data.x[0, 0] - vector[0])))

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        chances = np.zeros((len(data), 2))
        chances[:, 1] = data.x[:, 0] * vector[0]
        return Score(float(abs(data.x[0, 0] - vector[0])), chances)


def sites() -> dict[str, Examples]:
    made = {}
    for i, name in enumerate(("athens", "kos", "pergamon", "rhodes")):
        rows = 12 + 7 * i
        # Sixteenths that look shuffled, without a generator whose numbers another version might draw otherwise.
        values = (np.arange(rows * SIZE) * (2 * i + 37) % 101 - 50) / 16
        labels = np.arange(rows) * (i + 3) % 5 % 2
        made[name] = Examples(values.reshape(rows, SIZE).astype(np.float32), labels)
    return made


def digest(store: Store, policy: str, line: str) -> str:
    """One digest of all versions of a run."""
    model, codec, settings = Pulled(), parse(line), TrainSettings(epochs=3, batch_size=8)
    rules = Rules(**{"learners": 4, "rounds": 12, "training": settings, "seed": 5, **POLICIES[policy]})
    learners = {name: Learner(name, model, data, codec, 5, data) for name, data in sites().items()}
    profiles = {
        "athens": Profile(speed=40.0, group="fast"),
        "kos": Profile(speed=15.0, dropout=0.2),
        "pergamon": Profile(latency=0.5, leaves=2.0),
        "rhodes": Profile(speed=25.0, bandwidth=20000.0),
    }
    journal = Journal(store, "run")
    engine = VirtualEngine(learners, profiles, keep=journal.payloads.put, seed=5)
    community = community_model(rules, model.layout, codec, model.initial(5))
    Driver(rules, community, engine, journal).run()
    versions = store.models("run")
    assert len(versions) > 3
    return digest_of("\n".join(version.digest for version in versions).encode())[:16]


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


@pytest.mark.parametrize("line", CODECS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_and_codec_gives_the_versions_that_it_always_gave(tmp_path, policy, line):
    with Store(tmp_path) as store:
        assert digest(store, policy, line) == GOLDEN[policy, line]
