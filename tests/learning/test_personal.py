"""Personal layers stay at their site, and help where sites differ."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import parse
from abaton.controller import POLICIES, Asynchronous, Rules, TrainSettings
from abaton.errors import SettingsError
from abaton.federation import Federation, Holding
from abaton.learners import Crew, Examples, Job, Learner, Personal, SklearnModel, cifar10_cnn, mlp
from abaton.metrics.predictions import count
from abaton.store import Journal, Store

WHOLE = mlp(features=4, classes=2, hidden=(6,))
SETTINGS = TrainSettings(epochs=5, batch_size=10, learning_rate=0.2)


def site(seed: int, count: int = 60, *, flipped: bool = False) -> Examples:
    """The same question everywhere; some sites write the answer the other way round."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    return Examples(x, 1 - y if flipped else y)


def learner(model, codec: str = "raw", **more) -> Learner:
    return Learner("north", model, site(0), parse(codec), seed=3, validation=site(9), **more)


def test_the_shared_layout_has_no_place_for_personal_tensors():
    model = Personal(WHOLE, ["2.*"])
    assert [t.name for t in model.layout] == ["0.weight", "0.bias"]
    assert model.layout.size + sum(t.size for t in model.personal) == WHOLE.layout.size
    assert model.initial(5).size == model.layout.size
    assert np.array_equal(model.initial(5), WHOLE.initial(5)[: model.layout.size])


def test_personal_tensors_in_the_middle_are_cut_out_and_put_back():
    model = Personal(mlp(features=3, hidden=(4, 5)), ["2.weight"], seed=8)
    whole = model.model.initial(8)
    assert [t.name for t in model.layout] == ["0.weight", "0.bias", "2.bias", "4.weight", "4.bias"]
    assert np.array_equal(model._join(model.initial(8), None), whole)


@pytest.mark.parametrize("codec", ["raw", "error_feedback | stc(sparsity=0.2)", "ecdq(bits=2)"])
def test_a_canary_in_a_personal_tensor_never_appears_in_a_payload(codec):
    """A payload is a function of the shared values alone: other personal values change nothing."""
    model = Personal(WHOLE, ["2.*"])
    one = learner(model)
    payload = one.train("t1", 0, model.initial(0), SETTINGS).payload
    own = one.kept["model/personal/2.weight"]
    for value in own.reshape(-1):
        assert np.float32(value).tobytes() not in payload
    canary = np.float32(123.456)
    sent = []
    for value in (0.0, canary):
        again = learner(model, codec)
        trained = next(again.train_epochs("t1", model.initial(0), SETTINGS)).trained
        marked = {**trained.local, "personal/2.weight": np.full((2, 6), value, np.float32)}
        moved = type(trained)(trained.vector, trained.steps, trained.loss, marked)
        sent.append(again.send("t1", 0, model.initial(0), moved).payload)
        assert (again.kept["model/personal/2.weight"] == value).all()
    assert sent[0] == sent[1]
    assert canary.tobytes() not in sent[1]


def test_personal_layers_survive_at_the_site_and_go_on_from_there():
    model = Personal(WHOLE, ["2.*"])
    one, start = learner(model), model.initial(0)
    one.train("t1", 0, start, SETTINGS)
    kept = one.kept
    second = one.train("t2", 1, start, SETTINGS).payload
    again = learner(model)
    again.restore(kept)
    assert again.train("t2", 1, start, SETTINGS).payload == second
    assert learner(model).train("t2", 1, start, SETTINGS).payload != second


def test_an_evaluator_uses_its_own_personal_layers_for_the_shared_part_of_others():
    model = Personal(WHOLE, ["2.*"])
    straight = Learner("a", model, site(1), parse("raw"), 3, site(2))
    flipped = Learner("b", model, site(3, flipped=True), parse("raw"), 3, site(4, flipped=True))
    shared = model.initial(0)
    for one in (straight, flipped):
        one.train("t1", 0, shared, SETTINGS)
    for one, other in ((straight, flipped), (flipped, straight)):
        mine, theirs = (model.score(shared, one.validation, who._local) for who in (one, other))
        assert one.evaluate(shared) == count(mine.predictions, one.validation.y, mine.loss)
        assert one.evaluate(shared) != count(theirs.predictions, one.validation.y, theirs.loss)


def test_all_ways_of_training_agree(tmp_path):
    model = Personal(cifar10_cnn(size=4, classes=2, response_norm=False), ["*.bias"])
    rng = np.random.default_rng(0)
    data = Examples(rng.normal(size=(6, 3, 4, 4)).astype(np.float32), rng.integers(0, 2, 6))
    assert model.way(data) == "processes"
    settings, payloads = TrainSettings(batch_size=3), []
    for workers in (1, 2):
        learners = {n: Learner(n, model, data, parse("raw"), 0) for n in "ab"}
        with Crew(learners, workers=workers) as crew:
            for task in ("t1", "t2"):
                jobs = [Job(n, task, 0, model.initial(0), settings) for n in learners]
                payloads.append([update.payload for update in crew.train(jobs)])
        assert "model/personal/0.bias" in learners["a"].kept
    assert payloads[:2] == payloads[2:]


@pytest.mark.parametrize("wrong", [["nothing.*"], [], ["*"], ["2.*", "9.*"]])
def test_patterns_that_fit_nothing_or_everything_are_refused(wrong):
    with pytest.raises(SettingsError, match="personal layers"):
        Personal(WHOLE, wrong)


def test_estimators_may_have_personal_parts_too():
    from sklearn.linear_model import SGDClassifier

    model = Personal(
        SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=4, classes=2), ["*intercept*"]
    )
    update = learner(model).train("t1", 0, model.initial(0), SETTINGS)
    assert update.payload


def federation(model, policy: str) -> Federation:
    odd = {i: i % 2 == 1 for i in range(6)}
    sites = {f"s{i}": Holding(site(i, flipped=f), site(100 + i, 40, flipped=f)) for i, f in odd.items()}
    rules = Rules(learners=6, rounds=24, training=SETTINGS, **POLICIES[policy])
    return Federation(model, sites, rules)


def accuracy(store: Store, made: Federation, run: str) -> float:
    """How well each site does with the community model and, if it has some, its own layers."""
    vector = store.vectors.get(store.models(run)[-1].digest)
    right = []
    for name, mine in made.sites.items():
        one = Learner(name, made.model, mine.train, parse("raw"), 0)
        if isinstance(made.model, Personal):
            one.train(
                "last", 0, vector, SETTINGS
            )  # a site's own layers, a few epochs from the community model
        held = mine.validation
        said = made.model.score(vector, held, one._local).predictions.argmax(1)
        right.append(float((said == held.y).mean()))
    return float(np.mean(right))


@pytest.mark.parametrize("policy", ["SyncFedAvg", "AsyncDVW(na)"])
def test_a_run_gains_where_sites_differ_in_a_layer_and_resumes(tmp_path, monkeypatch, policy):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    with Store(tmp_path) as store:
        own, none = federation(Personal(WHOLE, ["2.*"]), policy), federation(WHOLE, policy)
        own.run("own", store=store)
        none.run("none", store=store)
        assert accuracy(store, own, "own") > accuracy(store, none, "none") + 0.2
        digests = [model.digest for model in store.models("own")]

        class Crash(BaseException):
            pass

        heard = []

        def watch(*_: object) -> None:
            heard.append(0)
            if len(heard) == 40:
                raise Crash

        with pytest.raises(Crash):
            own.run("cut", store=store, watch=watch)
        own.run("cut", store=store)
        assert [model.digest for model in store.models("cut")] == digests


def test_asynchronous_rules_hold_only_the_shared_part(tmp_path):
    made = federation(Personal(WHOLE, ["2.*"]), "AsyncFedAvg")
    assert isinstance(made.rules.pacing, Asynchronous)
    with Store(tmp_path) as store:
        made.run("run", store=store)
        journal = Journal(store, "run")
        sizes = {len(journal.payloads.get(b["payload"])) for k, b in journal.rows() if k == "Arrived"}
    assert sizes == {28 + 4 * made.model.layout.size}
