from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from abaton.errors import SettingsError
from abaton.learning import Evaluator, Examples, mlp, shakespeare, tally


def data(count: int = 50, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    return Examples(rng.normal(size=(count, 6)).astype(np.float32), rng.integers(0, 4, count))


@pytest.mark.parametrize("workers", [1, 3])
def test_confusion_equals_the_reference_for_several_models_at_once(workers):
    model, seen = mlp(features=6, classes=4), data()
    vectors = [model.initial(s) for s in range(5)]
    made = Evaluator("north", model, seen, workers=workers).score(vectors)
    for vector, one in zip(vectors, made, strict=True):
        score = model.score(vector, seen)
        said = score.predictions.argmax(1)
        assert one.confusion.dtype == np.int64
        assert np.array_equal(one.confusion, confusion_matrix(seen.y, said, labels=range(4)))
        assert one.loss == pytest.approx(score.loss * 50)
        assert one.count == 50 == one.confusion.sum()


def test_tallies_of_sites_add_up_to_the_tally_of_all():
    model = mlp(features=6, classes=4)
    parts = [data(30, 1), data(20, 2)]
    union = Examples(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))
    vector = model.initial(0)
    first, second, whole = (Evaluator("x", model, d).score([vector])[0] for d in (*parts, union))
    assert np.array_equal((first + second).confusion, whole.confusion)
    assert (first + second).loss == pytest.approx(whole.loss)


def test_values_give_error_sums():
    model = mlp(features=6, task="value")
    rng = np.random.default_rng(0)
    seen = Examples(rng.normal(size=(40, 6)).astype(np.float32), rng.normal(size=40))
    (one,) = Evaluator("north", model, seen).score([model.initial(0)])
    said = model.score(model.initial(0), seen).predictions.astype(np.float64)
    assert one.count == 40
    assert one.squared_error == pytest.approx(((said - seen.y) ** 2).sum())
    assert one.total == pytest.approx(seen.y.sum())
    assert one.squares == pytest.approx((seen.y**2).sum())
    assert one.confusion.size == 0
    assert (one + one).squared_error == 2 * one.squared_error


def test_sequences_count_every_position():
    model = shakespeare(symbols=5, width=4)
    rng = np.random.default_rng(0)
    seen = Examples(rng.integers(0, 5, (3, 7)), rng.integers(0, 5, (3, 7)))
    (one,) = Evaluator("north", model, seen).score([model.initial(0)])
    assert one.count == 21 == one.confusion.sum()


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(SettingsError, match="evaluator 'north' has no examples"):
        Evaluator("north", mlp(features=6), data(0))
    with pytest.raises(SettingsError, match="classes from 0 to 1"):
        tally(np.ones((2, 2)), np.array([0, 7]), loss=0.0)
