"""Two runs of the same learners in one process: what a learner keeps belongs to a run, never to the next one."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from tests.engines.flower.loop import LoopPost

from abaton.codecs import parse
from abaton.control import POLICIES, Rules, TrainSettings
from abaton.engines import Run, live, local, virtual
from abaton.engines.flower import Desk, FlowerEngine, Network, Place
from abaton.learning import Examples, Learner, Personal, SklearnModel
from abaton.store import Journal, Store

NAMES = ("a", "b", "c")
WHOLE = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2)
FEEDBACK = "error_feedback | stc(sparsity=0.5)"
KEEPS = {
    "error feedback": (FEEDBACK, WHOLE, TrainSettings(epochs=2, batch_size=10)),
    "personal layers": ("raw", Personal(WHOLE, ["*intercept*"]), TrainSettings(epochs=2, batch_size=10)),
}


def learners(codec: str, model: SklearnModel | Personal) -> dict[str, Learner]:
    made = {}
    for i, name in enumerate(NAMES):
        x = np.random.default_rng(i).normal(size=(40, 4)).astype(np.float32)
        data = Examples(x, (x[:, 0] > 0).astype(np.int64))
        made[name] = Learner(name, model, data, parse(codec), 0, validation=data)
    return made


@pytest.mark.parametrize("keeps", KEEPS)
@pytest.mark.parametrize("engines", ["virtual virtual", "local local", "virtual local", "local virtual"])
def test_a_run_leaves_nothing_for_the_next_one(tmp_path, keeps, engines):
    codec, model, settings = KEEPS[keeps]
    rules = Rules(learners=3, rounds=4, training=settings, **POLICIES["SyncFedAvg"])
    members = learners(codec, model)
    digests = []
    with Store(tmp_path / "store") as store:
        for i, engine in enumerate(engines.split()):
            run = Run(rules, model, parse(codec), Journal(store, f"run {i}"))
            machines = (
                virtual(members, run.journal, {}, 0)
                if engine == "virtual"
                else local(members, run, tmp_path / "states")
            )
            live(run, machines)
            digests.append([row.digest for row in store.models(f"run {i}")])
    assert len(digests[0]) == 5
    assert digests[0] == digests[1]


def test_a_desk_that_answers_two_runs_keeps_them_apart(tmp_path):
    codec, model, settings = KEEPS["error feedback"]
    rules = Rules(learners=3, rounds=4, training=settings, **POLICIES["SyncFedAvg"])
    desks = [
        Desk(learner, Place(role, tmp_path / name))
        for name, learner in learners(codec, model).items()
        for role in ("train", "evaluate")
    ]
    digests = []
    with Store(tmp_path / "store") as store:
        for name in ("first", "second"):
            run = Run(rules, model, parse(codec), Journal(store, name))
            post, network = LoopPost(dict(enumerate(desks))), Network(name, model.layout.digest, poll=0.001)
            live(run, FlowerEngine(post, network, keep=run.journal.payloads.put, check=run.check))
            digests.append([row.digest for row in store.models(name)])
    assert len(digests[0]) == 5
    assert digests[0] == digests[1]
