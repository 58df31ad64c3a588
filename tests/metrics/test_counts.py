import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics

from abaton.metrics import counts as counts_module
from abaton.metrics.predictions import validation_counts


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(arrays(np.int64, (60, 2), elements=st.integers(0, 3)))
def test_metrics_equal_the_reference(pairs):
    actual, predicted = pairs.T
    counts = counts_module.from_confusion(
        metrics.confusion_matrix(actual, predicted, labels=range(4)).tolist()
    )
    assert counts == validation_counts(np.eye(4)[predicted], actual)
    assert counts_module.accuracy(counts) == pytest.approx(metrics.accuracy_score(actual, predicted))
    assert counts_module.micro_f1(counts) == pytest.approx(counts_module.accuracy(counts))
    assert counts_module.macro_f1(counts) == pytest.approx(
        metrics.f1_score(actual, predicted, average="macro", zero_division=0.0)
    )
    assert counts_module.mcc(counts) == pytest.approx(
        max(0.0, metrics.matthews_corrcoef(actual, predicted)), abs=1e-9
    )
    recalls = metrics.recall_score(
        actual, predicted, labels=np.unique(actual), average=None, zero_division=0.0
    )
    assert counts_module.geometric_mean(counts) == pytest.approx(np.prod(recalls) ** (1 / len(recalls)))


@given(arrays(np.int64, (40, 2), elements=st.integers(0, 2)), st.integers(0, 40))
def test_counts_of_two_evaluators_add_up(pairs, cut):
    def counted(pairs_of_site):
        return (
            validation_counts(np.eye(3)[pairs_of_site[:, 1]], pairs_of_site[:, 0])
            if len(pairs_of_site)
            else ()
        )

    assert counts_module.add_counts(counted(pairs[:cut]), counted(pairs[cut:])) == counted(pairs)


def test_regression_metrics_from_error_sums():
    rng = np.random.default_rng(0)
    y = rng.normal(3, 2, 100)
    predicted = y + rng.normal(0, 0.5, 100)
    counts = counts_module.add_counts(
        validation_counts(predicted[:30], y[:30]), validation_counts(predicted[30:], y[30:])
    )
    assert counts_module.r_squared(counts) == pytest.approx(metrics.r2_score(y, predicted))
    assert counts_module.inverse_mse_score(counts) == pytest.approx(
        1 / (1 + metrics.mean_squared_error(y, predicted))
    )


def test_metrics_of_no_examples_are_zero():
    assert all(
        counts_module.METRICS[name]((0,) * 6) == 0
        for name in ("micro_f1", "macro_f1", "accuracy", "mcc", "geometric_mean")
    )
    assert counts_module.r_squared((0, 0, 0, 0)) == counts_module.inverse_mse_score((0, 0, 0, 0)) == 0
