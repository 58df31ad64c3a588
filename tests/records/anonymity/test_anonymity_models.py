import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.anonymity import Closeness, Diversity, Sensitive
from abaton.anonymity.equivalence_classes import SensitiveCounts
from abaton.anonymity.privacy_models import (
    class_counts,
    closeness_of,
    diversity_of,
    safe,
)

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=40)


def counted(rows, asked=None):
    """Rows of (class, value, count) as the models see them; every class is a combination of its own."""
    owners = sorted({row[0] for row in rows})
    values = sorted({row[1] for row in rows})
    tuples = np.array([owners.index(row[0]) for row in rows])
    codes = np.array([values.index(row[1]) for row in rows])
    sensitive = SensitiveCounts(
        asked or Sensitive("s"), tuple(map(str, values)), tuples, codes, np.array([row[2] for row in rows])
    )
    return class_counts(sensitive, np.arange(len(owners)), len(owners), sensitive.overall), sensitive


def histograms(rows):
    whole, classes = Counter(), {}
    for owner, value, count in rows:
        whole[value] += count
        classes.setdefault(owner, Counter())[value] += count
    return whole, [classes[owner] for owner in sorted(classes)]


def plain_entropy(tally):
    total = sum(tally.values())
    return math.exp(-sum(n / total * math.log(n / total) for n in tally.values()))


def plain_ratio(tally, l):  # noqa: E741
    ranked = sorted(tally.values(), reverse=True)
    tail = sum(ranked[l - 1 :])
    return ranked[0] / tail if tail else math.inf


def plain_distance(tally, whole, *, ordered):
    total, everything = sum(tally.values()), sum(whole.values())
    gaps = [tally[v] / total - whole[v] / everything for v in sorted(whole)]
    if not ordered:
        return 0.5 * sum(abs(gap) for gap in gaps)
    return sum(abs(sum(gaps[: i + 1])) for i in range(len(gaps))) / (len(gaps) - 1) if len(gaps) > 1 else 0.0


@given(ROWS, st.integers(1, 4))
def test_diversity_is_what_its_definition_says(rows, l):  # noqa: E741
    counts, _ = counted(rows)
    _, classes = histograms(rows)
    assert diversity_of(counts, Diversity(l)).tolist() == [len(tally) for tally in classes]
    assert diversity_of(counts, Diversity(l, "entropy")) == pytest.approx([plain_entropy(t) for t in classes])
    ratios = diversity_of(counts, Diversity(l, "recursive"))
    assert ratios == pytest.approx([plain_ratio(tally, l) for tally in classes])


@given(ROWS)
def test_closeness_is_what_its_definition_says(rows):
    counts, _ = counted(rows)
    whole, classes = histograms(rows)
    for distance in ("equal", "ordered"):
        expected = [plain_distance(tally, whole, ordered=distance == "ordered") for tally in classes]
        assert closeness_of(counts, Closeness(0.1, distance)) == pytest.approx(expected, abs=1e-9)


@given(ROWS, st.integers(1, 6))
def test_safe_keeps_exactly_the_classes_that_satisfy_everything(rows, k):
    asked = Sensitive("s", Diversity(2), Closeness(0.4, "ordered"))
    _, sensitive = counted(rows, asked)
    whole, classes = histograms(rows)
    sizes = np.array([float(sum(tally.values())) for tally in classes])
    kept = safe(np.arange(len(classes)), sizes, k, (sensitive,), [sensitive.overall])
    assert kept.tolist() == [
        sum(tally.values()) >= k
        and len(tally) >= 2
        and plain_distance(tally, whole, ordered=True) <= 0.4 + 1e-9
        for tally in classes
    ]


def test_a_class_on_the_threshold_is_safe():
    # Two of four against one half: the distance is exactly 0.25.
    rows = [(0, 0, 3), (0, 1, 1), (1, 0, 1), (1, 1, 3)]
    _, sensitive = counted(rows, Sensitive("s", closeness=Closeness(0.25)))
    assert safe(np.arange(2), np.array([4.0, 4.0]), 1, (sensitive,), [sensitive.overall]).all()
    _, sensitive = counted(rows, Sensitive("s", Diversity(2, "recursive", 3.0)))
    assert not safe(np.arange(2), np.array([4.0, 4.0]), 1, (sensitive,), [sensitive.overall]).any()
