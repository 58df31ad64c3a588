"""Personal layers stay at their site, and help where sites differ."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import parse_codec
from abaton.controller import STRATEGIES, AsynchronousScheduler, Strategy, TrainSettings
from abaton.errors import SettingsError
from abaton.federation import Federation, LocalSite
from abaton.learners import Learner, ParallelTrainer, PersonalLayersModel, TrainingJob
from abaton.metrics.predictions import validation_counts
from abaton.models import Examples, SklearnModel, cifar10_cnn, mlp
from abaton.store import Journal, Store

FULL_MODEL = mlp(features=4, classes=2, hidden=(6,))
SETTINGS = TrainSettings(epochs=5, batch_size=10, learning_rate=0.2)


def site(seed: int, count: int = 60, *, flipped: bool = False) -> Examples:
    """Return examples of one task; flipped sites have inverted labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    return Examples(x, 1 - y if flipped else y)


def learner(model, codec: str = "raw", **more) -> Learner:
    return Learner("north", model, site(0), parse_codec(codec), seed=3, validation=site(9), **more)


def test_shared_layout_contains_no_personal_tensors():
    model = PersonalLayersModel(FULL_MODEL, ["2.*"])
    assert [t.name for t in model.layout] == ["0.weight", "0.bias"]
    assert model.layout.size + sum(t.size for t in model.personal) == FULL_MODEL.layout.size
    assert model.initial(5).size == model.layout.size
    assert np.array_equal(model.initial(5), FULL_MODEL.initial(5)[: model.layout.size])


def test_personal_tensors_in_the_middle_are_removed_and_restored():
    model = PersonalLayersModel(mlp(features=3, hidden=(4, 5)), ["2.weight"], seed=8)
    full_model = model.model.initial(8)
    assert [t.name for t in model.layout] == ["0.weight", "0.bias", "2.bias", "4.weight", "4.bias"]
    assert np.array_equal(model._join(model.initial(8), None), full_model)


@pytest.mark.parametrize("codec", ["raw", "error_feedback | stc(sparsity=0.2)", "ecdq(bits=2)"])
def test_a_canary_in_a_personal_tensor_never_appears_in_a_payload(codec):
    """A payload depends on the shared values only."""
    model = PersonalLayersModel(FULL_MODEL, ["2.*"])
    instance = learner(model)
    payload = instance.train("t1", 0, model.initial(0), SETTINGS).payload
    personal_weight = instance.local_state["model/personal/2.weight"]
    for value in personal_weight.reshape(-1):
        assert np.float32(value).tobytes() not in payload
    canary = np.float32(123.456)
    payloads = []
    for value in (0.0, canary):
        second_learner = learner(model, codec)
        trained = next(second_learner.train_epochs("t1", model.initial(0), SETTINGS)).trained
        local = {**trained.local, "personal/2.weight": np.full((2, 6), value, np.float32)}
        result = type(trained)(trained.vector, trained.steps, trained.loss, local)
        payloads.append(second_learner.send("t1", 0, model.initial(0), result).payload)
        assert (second_learner.local_state["model/personal/2.weight"] == value).all()
    assert payloads[0] == payloads[1]
    assert canary.tobytes() not in payloads[1]


def test_personal_layers_are_restored_and_trained_further():
    model = PersonalLayersModel(FULL_MODEL, ["2.*"])
    instance, start = learner(model), model.initial(0)
    instance.train("t1", 0, start, SETTINGS)
    state = instance.local_state
    second = instance.train("t2", 1, start, SETTINGS).payload
    restored = learner(model)
    restored.restore(state)
    assert restored.train("t2", 1, start, SETTINGS).payload == second
    assert learner(model).train("t2", 1, start, SETTINGS).payload != second


def test_evaluator_uses_its_own_personal_layers():
    model = PersonalLayersModel(FULL_MODEL, ["2.*"])
    straight = Learner("a", model, site(1), parse_codec("raw"), 3, site(2))
    flipped = Learner("b", model, site(3, flipped=True), parse_codec("raw"), 3, site(4, flipped=True))
    shared = model.initial(0)
    for instance in (straight, flipped):
        instance.train("t1", 0, shared, SETTINGS)
    for instance, other in ((straight, flipped), (flipped, straight)):
        own_score, other_score = (
            model.score(shared, instance.validation, learner._local) for learner in (instance, other)
        )
        assert instance.evaluate(shared) == validation_counts(
            own_score.predictions, instance.validation.y, own_score.loss
        )
        assert instance.evaluate(shared) != validation_counts(
            other_score.predictions, instance.validation.y, other_score.loss
        )


def test_all_parallel_modes_agree(tmp_path):
    model = PersonalLayersModel(cifar10_cnn(size=4, classes=2, response_norm=False), ["*.bias"])
    rng = np.random.default_rng(0)
    data = Examples(rng.normal(size=(6, 3, 4, 4)).astype(np.float32), rng.integers(0, 2, 6))
    assert model.parallel_mode(data) == "processes"
    settings, payloads = TrainSettings(batch_size=3), []
    for workers in (1, 2):
        learners = {n: Learner(n, model, data, parse_codec("raw"), 0) for n in "ab"}
        with ParallelTrainer(learners, workers=workers) as trainer:
            for task in ("t1", "t2"):
                jobs = [TrainingJob(n, task, 0, model.initial(0), settings) for n in learners]
                payloads.append([update.payload for update in trainer.train(jobs)])
        assert "model/personal/0.bias" in learners["a"].local_state
    assert payloads[:2] == payloads[2:]


@pytest.mark.parametrize("patterns", [["nothing.*"], [], ["*"], ["2.*", "9.*"]])
def test_patterns_that_match_no_or_all_tensors_are_refused(patterns):
    with pytest.raises(SettingsError, match="personal layers"):
        PersonalLayersModel(FULL_MODEL, patterns)


def test_estimators_may_have_personal_tensors():
    from sklearn.linear_model import SGDClassifier

    model = PersonalLayersModel(
        SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2), ["*intercept*"]
    )
    update = learner(model).train("t1", 0, model.initial(0), SETTINGS)
    assert update.payload


def federation(model, policy: str) -> Federation:
    is_flipped = {i: i % 2 == 1 for i in range(6)}
    sites = {
        f"s{i}": LocalSite(site(i, flipped=f), site(100 + i, 40, flipped=f)) for i, f in is_flipped.items()
    }
    rules = Strategy(learners=6, rounds=24, training=SETTINGS, **STRATEGIES[policy])
    return Federation(model, sites, rules)


def accuracy(store: Store, federation: Federation, run: str) -> float:
    """Return the mean accuracy of the sites with the community model and their personal layers."""
    vector = store.model_files.get(store.models(run)[-1].digest)
    accuracies = []
    for name, local_site in federation.sites.items():
        instance = Learner(name, federation.model, local_site.train, parse_codec("raw"), 0)
        if isinstance(federation.model, PersonalLayersModel):
            instance.train("last", 0, vector, SETTINGS)  # trains the personal layers from the community model
        validation = local_site.validation
        predictions = federation.model.score(vector, validation, instance._local).predictions.argmax(1)
        accuracies.append(float((predictions == validation.y).mean()))
    return float(np.mean(accuracies))


@pytest.mark.parametrize("policy", ["SyncFedAvg", "AsyncDVW(na)"])
def test_personal_layers_improve_a_run_with_different_sites_and_resume(tmp_path, monkeypatch, policy):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path) as store:
        personal, shared = (
            federation(PersonalLayersModel(FULL_MODEL, ["2.*"]), policy),
            federation(FULL_MODEL, policy),
        )
        personal.run("own", store=store)
        shared.run("none", store=store)
        assert accuracy(store, personal, "own") > accuracy(store, shared, "none") + 0.2
        digests = [model.digest for model in store.models("own")]

        class Crash(BaseException):
            pass

        events = []

        def monitor(*_: object) -> None:
            events.append(0)
            if len(events) == 40:
                raise Crash

        with pytest.raises(Crash):
            personal.run("cut", store=store, watch=monitor)
        personal.run("cut", store=store)
        assert [model.digest for model in store.models("cut")] == digests


def test_asynchronous_updates_contain_only_the_shared_part(tmp_path):
    asynchronous = federation(PersonalLayersModel(FULL_MODEL, ["2.*"]), "AsyncFedAvg")
    assert isinstance(asynchronous.strategy.scheduler, AsynchronousScheduler)
    with Store(tmp_path) as store:
        asynchronous.run("run", store=store)
        journal = Journal(store, "run")
        sizes = {
            len(journal.payloads.get(row["payload"]))
            for tag, row in journal.rows()
            if tag == "update_received"
        }
    assert sizes == {28 + 4 * asynchronous.model.layout.size}
