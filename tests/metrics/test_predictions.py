import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from abaton.metrics.predictions import auroc


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=50))
def test_auroc_equals_the_reference_with_ties(pairs):
    scores, labels = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    if labels.all() or not labels.any():
        assert np.isnan(auroc(scores, labels))
    else:
        assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
