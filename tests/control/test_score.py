import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics

from abaton.metrics import counts as score
from abaton.metrics.predictions import count


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(arrays(np.int64, (60, 2), elements=st.integers(0, 3)))
def test_measures_equal_the_reference(pairs):
    actual, said = pairs.T
    counts = score.from_confusion(metrics.confusion_matrix(actual, said, labels=range(4)).tolist())
    assert counts == count(np.eye(4)[said], actual)
    assert score.accuracy(counts) == pytest.approx(metrics.accuracy_score(actual, said))
    assert score.micro_f1(counts) == pytest.approx(score.accuracy(counts))
    assert score.macro_f1(counts) == pytest.approx(
        metrics.f1_score(actual, said, average="macro", zero_division=0.0)
    )
    assert score.mcc(counts) == pytest.approx(max(0.0, metrics.matthews_corrcoef(actual, said)), abs=1e-9)
    recalls = metrics.recall_score(actual, said, labels=np.unique(actual), average=None, zero_division=0.0)
    assert score.geometric_mean(counts) == pytest.approx(np.prod(recalls) ** (1 / len(recalls)))


@given(arrays(np.int64, (40, 2), elements=st.integers(0, 2)), st.integers(0, 40))
def test_counts_of_two_evaluators_add_up(pairs, cut):
    def counted(part):
        return count(np.eye(3)[part[:, 1]], part[:, 0]) if len(part) else ()

    assert score.add(counted(pairs[:cut]), counted(pairs[cut:])) == counted(pairs)


def test_values_are_measured_by_error_sums():
    rng = np.random.default_rng(0)
    y = rng.normal(3, 2, 100)
    said = y + rng.normal(0, 0.5, 100)
    counts = score.add(count(said[:30], y[:30]), count(said[30:], y[30:]))
    assert score.r_squared(counts) == pytest.approx(metrics.r2_score(y, said))
    assert score.closeness(counts) == pytest.approx(1 / (1 + metrics.mean_squared_error(y, said)))


def test_nothing_counted_is_no_merit():
    assert all(
        score.MEASURES[name]((0,) * 6) == 0
        for name in ("micro_f1", "macro_f1", "accuracy", "mcc", "geometric_mean")
    )
    assert score.r_squared((0, 0, 0, 0)) == score.closeness((0, 0, 0, 0)) == 0
